"""Intervals that are chosen while a training runs: `checkpoint_every` is "auto" by default."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from support import FakeClock, heard

import sdk
from sdk.checkpoint.contents import Contents
from sdk.checkpoint.manager import UnsavedState
from sdk.checkpoint.opening import Env
from sdk.checkpoint.saver import AsyncSaver
from sdk.job.layout import RunPaths
from sdk.job.policies import Checkpoints
from sdk.records.recorder import read_events

from .parts import manager
from .runs import succeeded, texts, trained


class Training:
    """A training of one task on a clock that the test moves."""

    def __init__(self, folder: Path, policy: Checkpoints | None = None) -> None:
        self.clock, self.paced = FakeClock(), list[float]()
        env = Env(clock=self.clock, paced=self.paced.append)
        self.manager = manager(folder, policy=policy or Checkpoints(), env=env)
        self.manager.begin("loop", "signature")
        self.steps = 0

    def save(self, size: int, waited_s: float = 0.0) -> None:
        """Save, as if the state had this size, which is most of what such a save costs."""
        self.steps += 1
        self.manager.size = size
        state = UnsavedState(phase=0, steps=self.steps, contents=Contents(), at={}, taken_s=waited_s)
        self.manager.save(state, reason="interval")
        self.manager.wait(20)

    def waits_s(self) -> int:
        """Return the whole seconds until the next save is due."""
        for seconds in range(10**5):
            if self.manager.due(epochs=False) == "save":
                return seconds
            self.clock.sleep(1)
        raise AssertionError("No save was ever due.")


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_a_small_state_is_saved_every_five_seconds(training: Training) -> None:
    assert training.waits_s() == 5, "also the first time, when the cost is not known"
    training.save(1000)
    assert training.waits_s() == 5


def test_saves_take_a_hundredth_of_the_time(training: Training) -> None:
    said = heard("checkpoint")
    training.save(10**8)
    # 0.04 s for the memory, and the processor time of the threads.
    assert 5 <= training.waits_s() < 60
    training.save(6 * 10**8)
    assert 24 <= training.waits_s() < 80
    assert len(training.paced) >= 1
    assert "the state is saved every" in said[-1] and "(checkpoint_every=auto)" in said[-1]


def test_no_save_is_more_than_five_minutes_after_the_last_one_whatever_it_costs(training: Training) -> None:
    training.manager.size = 10**12
    assert training.waits_s() == 300, "the first one"
    training.save(10**12)
    assert training.waits_s() == 300


def test_a_position_that_takes_a_quarter_of_a_second_is_saved_every_24_seconds(training) -> None:
    training.save(0, waited_s=0.24)
    training.save(0, waited_s=60.0)  # a single long wait may come from a machine that slept
    assert 24 <= training.waits_s() < 40


@pytest.mark.shows("there is no memory for a second copy")
def test_a_save_that_blocks_training_while_memory_is_short_counts_with_all_its_time(training, monkeypatch) -> None:
    for _ in range(2):
        training.save(1000)
        with monkeypatch.context() as slow:
            slow.setattr(training.manager, "wait", lambda timeout_s: training.clock.sleep(2.0))
            training.manager.wait_as_cost()
    assert 195 <= training.waits_s() <= 220


def test_in_a_bucket_the_state_is_saved_every_thirty_seconds(training, monkeypatch) -> None:
    training.save(1000)
    monkeypatch.setattr(training.manager, "_url", "gs://bucket/runs/test/store")
    assert training.waits_s() == 30


def test_a_save_with_a_chosen_interval_never_waits_for_a_slow_disk(training, monkeypatch) -> None:
    training.save(10)
    with monkeypatch.context() as slow:
        slow.setattr(AsyncSaver, "busy", True)
        training.clock.sleep(10_000)
        assert training.manager.due(epochs=True) is None
    assert training.manager.due(epochs=True) == "save"


def test_a_full_disk_that_takes_no_record_of_the_interval_does_not_end_the_training(training, monkeypatch) -> None:
    def full(every_s: float) -> None:
        training.paced.append(every_s)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(training.manager, "_env", replace(training.manager._env, paced=full))
    training.save(10)
    assert training.waits_s() < 10
    assert training.paced


def test_a_fixed_interval_is_neither_chosen_nor_recorded(tmp_path: Path) -> None:
    training = Training(tmp_path, Checkpoints(every_s=300.0))
    training.save(10**9)
    assert training.waits_s() == 300
    assert training.paced == []


def test_a_fixed_number_of_steps_leaves_nothing_to_the_time(tmp_path: Path) -> None:
    training = Training(tmp_path, Checkpoints(every_steps=500))
    training.clock.sleep(10_000)
    assert training.manager.due(epochs=True) is None


@pytest.mark.parametrize(
    ("every", "root", "at_risk"),
    [
        ("auto", "", "at risk: 5 s to 5 min"),
        ("auto", "gs://a-bucket/podlift", "at risk: 30 s to 5 min"),
        ("10m", "", "at risk: 10 min"),
        ("500steps,5m", "", "at risk: 500 steps or 5 min"),
        ("none", "", "at risk: all since the last save"),
    ],
)
@pytest.mark.usefixtures("here")
def test_the_plan_says_how_much_training_is_at_risk(every: str, root: str, at_risk: str) -> None:
    Path("train.py").write_text("print(1)\n")
    plan = sdk.plan("train.py", checkpoint_every=every)
    assert f"; {at_risk}; the last 3 are kept" in str(replace(plan, root=root or plan.root))


PROGRAM = """
import time, keras, numpy as np

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)
        if batch == 60:
            self.model.layers[0].kernel.assign(np.full((4, 1), np.nan))

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((80, 4), "float32"), np.ones((80, 1), "float32"), batch_size=1, verbose=0, callbacks=[Slow()])
"""


@pytest.mark.full
@pytest.mark.tensorflow
@pytest.mark.usefixtures("here")
def test_a_fit_is_saved_every_few_seconds_until_its_weights_are_no_numbers_any_more() -> None:
    run = succeeded(trained(PROGRAM, checkpoints=sdk.Checkpoints(keep_last=50)))
    every_s = run.status().saved_every_s
    assert every_s is not None and 5.0 <= every_s < 12.0
    assert len(read_events(RunPaths(run.plan.paths.url), ("paced",))) >= 1
    saved = [found.step for found in run.checkpoints() if found.reason == "interval"]
    assert saved and max(saved) <= 60, "a value that is no number replaces no earlier number"
    said = "sequential/dense/kernel holds NaN or infinity: the state is not saved until it is finite again"
    assert said in texts(run)
