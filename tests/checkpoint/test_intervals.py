"""Intervals that are chosen while a training runs: `checkpoint_every` "continuous" and "auto"."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from support import FakeClock, heard

import sdk
from sdk.checkpoint.contents import Contents
from sdk.checkpoint.manager import CheckpointManager, UnsavedState
from sdk.checkpoint.opening import Env, TaskInfo
from sdk.checkpoint.saver import AsyncSaver
from sdk.records.recorder import read_events
from sdk.spec.layout import RunPaths
from sdk.spec.policies import Checkpoints


class Training:
    """A training of one task on a clock that the test moves."""

    def __init__(self, folder: Path, interval: Literal["fixed", "continuous", "auto"], *, attempt: int = 1) -> None:
        self.clock, self.paced = FakeClock(), list[float]()
        info = TaskInfo(run_id="test", attempt=attempt, task="chief-0", tasks=("chief-0",), since=self.clock.now())
        env = Env(clock=self.clock, paced=self.paced.append)
        self.manager = CheckpointManager(info, str(folder), Checkpoints(interval=interval), env)
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


def test_continuous_saves_take_a_twentieth_of_the_time(tmp_path: Path) -> None:
    said, training = heard("checkpoint"), Training(tmp_path, "continuous")
    training.save(10**9)
    # 0.4 s for the memory, and the processor time of the threads.
    assert 8 <= training.waits_s() < 20
    training.save(10**10)
    assert 80 <= training.waits_s() < 92
    assert len(training.paced) == 2
    assert 80 <= training.paced[1] < 92
    assert "(checkpoint_every=continuous)" in "\n".join(said)


def test_the_time_for_which_the_training_waits_is_part_of_what_a_save_costs(tmp_path: Path) -> None:
    training = Training(tmp_path, "continuous")
    training.save(10**9, waited_s=0.3)
    training.save(10**9, waited_s=60.0)
    # 0.4 s for the memory, and 0.3 s at both saves.
    assert 14 <= training.waits_s() < 26


def test_auto_saves_more_often_after_failures_and_never_for_more_than_a_twentieth_of_the_time(tmp_path: Path) -> None:
    first, tenth = Training(tmp_path / "1", "auto"), Training(tmp_path / "2", "auto", attempt=10)
    for training in (first, tenth):
        training.save(10**9)
    # sqrt(2 * 0.4 s * 1 day), and of a tenth of a day.
    assert 260 <= first.waits_s() < 400
    assert 80 <= tenth.waits_s() < 130
    tenth.save(4 * 10**10)
    assert tenth.waits_s() >= 16 * 20


@pytest.mark.parametrize("interval", ["continuous", "auto"])
def test_a_save_whose_interval_is_chosen_never_waits_for_a_slow_disk(
    tmp_path: Path, interval: Literal["continuous", "auto"], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, interval)
    training.save(10)
    with monkeypatch.context() as slow:
        slow.setattr(AsyncSaver, "busy", True)
        training.clock.sleep(10_000)
        assert training.manager.due(epochs=True) is None
    assert training.manager.due(epochs=True) == "save"


def test_a_full_disk_that_takes_no_record_of_the_interval_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, "continuous")

    def full(every_s: float) -> None:
        training.paced.append(every_s)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(training.manager, "_env", replace(training.manager._env, paced=full))
    training.save(10)
    assert training.waits_s() < 10
    assert training.paced


def test_a_fixed_interval_is_neither_chosen_nor_recorded(tmp_path: Path) -> None:
    training = Training(tmp_path, "fixed")
    training.save(10**9)
    assert training.waits_s() == 300
    assert training.paced == []


def test_the_plan_says_that_the_interval_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    for every, words in (("continuous", "at most 5% of the time"), ("auto", "the rate of failures")):
        plan = sdk.plan("train.py", checkpoint_every=every)
        assert (plan.job.checkpoints.interval, plan.job.checkpoints.every_s) == (every, None)
        assert words in str(plan)
        assert "at risk" in str(plan)


PROGRAM = """
import time, keras, numpy as np

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((80, 4), "float32"), np.ones((80, 1), "float32"), batch_size=1, verbose=0, callbacks=[Slow()])
"""


@pytest.mark.tensorflow
def test_a_fit_is_saved_continuously_and_the_run_records_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    run = sdk.submit("train.py", checkpoint_every="continuous", checkpoint_keep_last=50)
    status = run.wait(300)
    assert status.state is sdk.State.SUCCEEDED, run.why()
    # A save of so small a state costs next to nothing, and the shortest interval is a second.
    assert status.saved_every_s is not None
    assert 1.0 <= status.saved_every_s < 3.0
    assert len(read_events(RunPaths(run.plan.paths.url), ("paced",))) >= 1
    assert len(run.checkpoints()) >= 4
