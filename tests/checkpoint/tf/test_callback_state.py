"""Callbacks restore their counters, or a message says that they do not."""

import random
from functools import cache

import pytest
from support import Later, full_only, needs

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]

needs("numpy", "keras", "tensorflow")
import numpy as np  # noqa: E402

keras, callback_state = Later("keras"), Later("sdk.checkpoint.tf.callback_state")


def moved(before, after):
    kept, sentences = callback_state.capture(before)
    return sentences + callback_state.restore(after, kept)


@pytest.mark.parametrize("package", ["keras", full_only("tf_keras")])
@pytest.mark.parametrize(
    ("name", "options", "state"),
    [
        ("EarlyStopping", {}, {"wait": 2, "best": 0.25, "stopped_epoch": 0, "best_epoch": 4}),
        ("ReduceLROnPlateau", {}, {"wait": 1, "best": np.float32(0.5), "cooldown_counter": 3}),
        ("ModelCheckpoint", {"filepath": "x.keras"}, {"best": 0.125, "_batches_seen_since_last_saving": 7}),
        ("History", {}, {"history": {"loss": [1.0, float("inf")]}, "epoch": [0, 1]}),
    ],
)
def test_counters_of_keras_callbacks_are_kept(package, name, options, state):
    before, after = (getattr(pytest.importorskip(package).callbacks, name)(**options) for _ in range(2))
    vars(before).update(state)
    assert moved([before], [after]) == []
    assert {key: vars(after)[key] for key in state} == state


def test_the_best_weights_of_early_stopping_are_kept_in_any_type():
    import tensorflow as tf

    before, after = keras.callbacks.EarlyStopping(), keras.callbacks.EarlyStopping()
    before.best_weights = [np.eye(3, dtype="f4"), np.array(tf.ones([2], tf.bfloat16)), np.zeros([0, 4])]
    moved([before], [after])
    assert [w.dtype for w in after.best_weights] == [w.dtype for w in before.best_weights]
    assert all(np.array_equal(a, b) for a, b in zip(after.best_weights, before.best_weights, strict=True))


def test_two_callbacks_of_one_class_keep_apart():
    before, after = ([keras.callbacks.EarlyStopping() for _ in range(2)] for _ in range(2))
    before[0].wait, before[1].wait = 1, 5
    moved(before, after)
    assert [callback.wait for callback in after] == [1, 5]


@cache
def own_class():
    class Own(keras.callbacks.Callback):
        def __init__(self, patience=3):
            super().__init__()
            self.patience, self.seen = patience, []
            self.random, self.numbers = random.Random(1), np.random.default_rng(2)
            self.when = {"a": (1, None)}

    return Own


def own(**options):
    return own_class()(**options)


def test_a_callback_of_the_program_keeps_its_plain_attributes_and_generators():
    before, after = own(), own()
    callback_state.watch([before])
    before.seen += [1.5, np.float32(2.5)]
    before.random.random(), before.numbers.normal()
    before.when["b"] = {3}
    assert moved([before], [after]) == []
    assert (after.seen, after.when) == ([1.5, np.float32(2.5)], {"a": (1, None), "b": {3}})
    assert (after.random.random(), after.numbers.normal()) == (before.random.random(), before.numbers.normal())


def test_an_option_that_the_user_changes_before_a_resume_stays_changed():
    before, after = own(patience=3), own(patience=9)
    callback_state.watch([before])
    before.seen.append(1)
    moved([before], [after])
    assert (after.patience, after.seen) == (9, [1])


def test_a_callback_may_name_its_state_itself():
    class Counts(keras.callbacks.Callback):
        total, hidden = 0, object()

        def get_state(self):
            return {"total": self.total}

        def set_state(self, state):
            self.total = state["total"]

    before, after = Counts(), Counts()
    before.total = 4
    assert moved([before], [after]) == []
    assert after.total == 4


def test_state_that_cannot_be_kept_is_reported_by_name():
    before = own()
    before.seen = [object()]
    csv, backup = keras.callbacks.CSVLogger("log.csv"), keras.callbacks.BackupAndRestore("backup")
    _, sentences = callback_state.capture([before, csv, backup, keras.callbacks.TerminateOnNaN()])
    assert len(sentences) == 3
    assert "Own" in sentences[0] and "seen" in sentences[0] and "get_state" in sentences[0]
    assert "append=True" in sentences[1] and "BackupAndRestore" in sentences[2]


def test_the_state_of_a_callback_that_is_gone_is_told():
    assert "EarlyStopping" in moved([keras.callbacks.EarlyStopping()], [])[0]
