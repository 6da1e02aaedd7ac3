"""Every pipeline with a position that tf.data can save continues with the very elements that would have come next."""

import gc
import json
import random
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from support import Later, heard, needs, python

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]

needs("numpy", "tensorflow")
import numpy as np  # noqa: E402

tf, position = Later("tensorflow"), Later("sdk.checkpoint.tf.position")
D = Later("tensorflow", "data.Dataset")


def records(folder):
    paths = [str(folder / f"{i}.tfrecord") for i in range(3)]
    for i, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for j in range(20):
                writer.write(f"{i}/{j}".encode())
    return D.from_tensor_slices(paths).interleave(tf.data.TFRecordDataset, cycle_length=3, num_parallel_calls=3)


def from_generator():
    def generate():
        for i in range(60):
            yield i + random.random()

    return D.from_generator(generate, output_signature=tf.TensorSpec([], tf.float64))


def adds(variable):
    return lambda element: element + variable


EXACT = {
    "range": lambda _: D.range(60),
    "map_batch_prefetch": lambda _: D.range(60).map(lambda x: x * 2, num_parallel_calls=4).batch(4).prefetch(3),
    "shuffle_seeded": lambda _: D.range(60).shuffle(20, seed=1),
    "shuffle": lambda _: D.range(60).shuffle(20),
    "shuffle_repeat": lambda _: D.range(20).shuffle(20).repeat(3),
    "shuffle_same_each_time": lambda _: D.range(20).shuffle(20, seed=2, reshuffle_each_iteration=False).repeat(3),
    "repeat": lambda _: D.range(7).repeat(),
    "interleave": records,
    "cache": lambda _: D.range(20).map(lambda x: x + 1).cache().shuffle(10).repeat(3),
    "cache_half_full": lambda _: D.range(60).cache(),
    "sample": lambda _: D.sample_from_datasets([D.range(40), D.range(100, 140)], [0.3, 0.7], seed=4),
    "bucket": lambda _: (
        D.range(60).map(lambda x: tf.range(x % 9 + 1)).bucket_by_sequence_length(tf.size, [3, 6], [4, 4, 4])
    ),
    "random": lambda _: D.random(seed=5).take(60),
    "scan": lambda _: D.range(60).scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s * x)),
    "filter": lambda _: D.range(90).filter(lambda x: x % 3 > 0),
    "unbatch": lambda _: D.range(60).batch(7).unbatch(),
    "ignore_errors": lambda _: D.range(60).map(lambda x: tf.gather(tf.range(7), x % 8)).ignore_errors(),
    "flat_map": lambda _: D.range(20).flat_map(lambda x: D.range(x)),
    "zip_concatenate": lambda _: D.zip(D.range(50), D.range(50).shuffle(9)).concatenate(D.zip(D.range(9), D.range(9))),
    "window": lambda _: D.range(60).window(3, shift=2).flat_map(lambda w: w.batch(3)),
    "stateless_random_map": lambda _: D.range(60).map(lambda x: tf.random.stateless_uniform([2], [x, 1])),
}
SKIP = {
    "from_generator": (lambda _: from_generator(), "PyFunc"),
    "py_function": (lambda _: D.range(60).map(lambda x: tf.py_function(lambda v: v + 1, [x], tf.int64)), "EagerPyFunc"),
    "numpy_function": (
        lambda _: D.range(60).map(lambda x: tf.numpy_function(lambda v: v + np.random.randint(9), [x], tf.int64)),
        "PyFunc",
    ),
    "seeded_random_map": (lambda _: D.range(60).map(lambda x: tf.random.uniform([2], seed=3)), "RandomUniform"),
    "variable": (lambda _: D.range(60).map(adds(tf.Variable(1, dtype=tf.int64))), "ReadVariableOp"),
}
INEXACT = {
    "unseeded_random_map": (lambda _: D.range(60).map(lambda x: tf.random.uniform([2])), "without a seed"),
    "no_order": (
        lambda _: D.range(60).interleave(lambda x: D.range(x), num_parallel_calls=2, deterministic=False),
        "not deterministic",
    ),
    "no_order_by_options": (lambda _: loose(D.range(60).map(lambda x: x, num_parallel_calls=4)), "not deterministic"),
}


def loose(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def plain(element):
    return [np.asarray(value).tolist() for value in tf.nest.flatten(element)]


def rest(feed, limit=25):
    return [str(plain(element)) for element, _ in zip(feed, range(limit), strict=False)]


@pytest.fixture(autouse=True)
def unseeded():
    yield
    tf.random.set_seed(0)
    from tensorflow.python.eager import context

    context.context()._seed = None


# In every run: one with each kind of state, in its middle.
ALWAYS = {"shuffle_repeat", "interleave", "cache", "sample", "bucket", "filter", "unbatch", "flat_map"}


@pytest.mark.parametrize(
    ("name", "taken"),
    [pytest.param(n, at, marks=[pytest.mark.full] * (n not in ALWAYS or not at)) for n in EXACT for at in (0, 9)],
)
def test_the_same_elements_come_again(name, taken, tmp_path, monkeypatch):
    monkeypatch.setattr("sdk.checkpoint.tf.position._CHEAP", -1)  # through the state, however few batches it would save
    tf.random.set_seed(7)  # without one, the passes behind this one are in a new order, as in any two runs
    feed = position.ResumableIterator(EXACT[name](tmp_path))
    for _ in range(taken):
        next(feed)
    found = feed.position()
    assert (found.kind, found.why) == ("exact", "")
    expected = rest(feed, 45)
    tf.random.set_seed(7)
    assert rest(position.ResumableIterator(EXACT[name](tmp_path), state=found.state), 45) == expected


@pytest.mark.parametrize("name", SKIP)
def test_where_tf_data_cannot_save_it_the_elements_are_gone_through_again(name, tmp_path, capfd):
    make, reason = SKIP[name]
    random.seed(1), np.random.seed(1)
    feed = position.ResumableIterator(make(tmp_path))
    for _ in range(9):
        next(feed)
    found = feed.position()
    assert (found.kind, found.why) == ("skip", "") and reason in found.how
    assert "FAILED_PRECONDITION" not in capfd.readouterr().err, "a save that is in order reads like a failure"
    # To its end: tf.data fetches an element ahead in another thread, and a late draw would disturb the second pass.
    expected = rest(feed, 60)
    random.seed(2), np.random.seed(2)
    lines = heard("checkpoint")
    assert rest(position.ResumableIterator(make(tmp_path), state=found.state), 60) == expected
    # Python may make other elements than before, which nothing here can see.
    said = [line for line in lines if "first 9 batches were made again" in line and "give others a seed" in line]
    assert len(said) == (name not in ("seeded_random_map", "variable"))


@pytest.mark.parametrize("name", INEXACT)
def test_a_pipeline_that_does_not_repeat_itself_is_told_by_name(name, tmp_path):
    make, reason = INEXACT[name]
    feed = position.ResumableIterator(make(tmp_path))
    next(feed)
    assert reason in feed.position().why


def test_a_pipeline_that_draws_no_random_numbers_leaves_the_generators_unchanged():
    def made():
        return D.range(9).map(lambda x: tf.py_function(lambda v: v, [x], tf.int64))

    random.seed(3)
    feed = position.ResumableIterator(made())
    next(feed)
    random.random()
    found, expected = feed.position(), random.getstate()
    position.ResumableIterator(made(), state=found.state)
    assert random.getstate() == expected


@pytest.mark.full
def test_the_third_pass_over_shuffled_data_is_the_third_in_another_process():
    passes = """
import json, sys
import tensorflow as tf
from sdk.checkpoint.tf import position
tf.random.set_seed(5)
data = tf.data.Dataset.range(12).shuffle(12).map(lambda x: tf.numpy_function(lambda v: v, [x], tf.int64))
read = lambda feed: [int(x) for x in feed]
if sys.argv[1] == "whole":
    first, second = read(position.ResumableIterator(data)), read(position.ResumableIterator(data))
    between = position.next_pass(data)
    feed = position.ResumableIterator(data)
    begun = [int(next(feed)) for _ in range(4)]
    print(json.dumps([begun + read(feed), read(position.ResumableIterator(data)), between.state.hex()]))
else:
    state = bytes.fromhex(sys.argv[2])
    print(json.dumps([read(position.ResumableIterator(data, state=state)), read(position.ResumableIterator(data))]))
"""

    def run(*arguments):
        return json.loads(python("-c", passes, *arguments, CUDA_VISIBLE_DEVICES="-1"))

    third, fourth, state = run("whole")
    assert run("again", state) == [third, fourth]


def test_data_that_has_become_shorter_is_an_error():
    letters = D.from_tensor_slices(list("abcdefgh"))
    feed = position.ResumableIterator(letters.map(lambda x: tf.py_function(lambda v: v, [x], tf.string)))
    for _ in range(6):
        next(feed)
    with pytest.raises(ValueError, match="ended after 3 batches, and 6 had been used"):
        position.ResumableIterator([1, 2, 3], state=feed.position().state)


def test_one_cpu_under_a_strategy_has_an_exact_position():
    from sdk.checkpoint.tf import keras_input

    assert keras_input.install_plain_iterators() == ""
    for each in (tf.distribute.OneDeviceStrategy("CPU:0"), tf.distribute.MirroredStrategy(["CPU:0"])):

        def make(each=each):
            return each.experimental_distribute_dataset(D.range(60).shuffle(20, seed=1).batch(4))

        feed = position.ResumableIterator(make())
        for _ in range(3):
            next(feed)
        found = feed.position()
        assert found.kind == "exact", found.how
        assert rest(position.ResumableIterator(make(), state=found.state)) == rest(feed)


class Handler:
    """The data handler of a `fit` of tf_keras: it holds the data."""


@pytest.mark.parametrize("fails", [False, True])
def test_a_fit_of_tf_keras_that_is_over_or_failed_keeps_none_of_its_data(fails: bool) -> None:
    from sdk.checkpoint.tf import legacy_epochs

    made: list[weakref.ref[Handler]] = []

    def get_data_handler(**options: Any) -> Handler:
        made.append(weakref.ref(handler := Handler()))
        return handler

    class Model:
        _maybe_load_initial_counters_from_ckpt = None

        def fit(self, depth: int) -> None:
            handler = module.data_adapter.get_data_handler(model=self)
            if depth:
                # As a callback may, that trains the model for a while.
                self.fit(depth - 1)
            assert legacy_epochs._handlers[id(self)] is handler, "the one of the inner fit is gone"
            if fails:
                raise ValueError("the program's own")

    module = SimpleNamespace(Model=Model, data_adapter=SimpleNamespace(get_data_handler=get_data_handler))
    legacy_epochs.install(module)
    with pytest.raises(ValueError, match="own") if fails else nullcontext():
        module.Model().fit(1)
    gc.collect()
    assert [each() for each in made] == [None, None]
    assert not legacy_epochs._handlers
