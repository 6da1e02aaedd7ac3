"""How far a training is within an epoch, on the machine of the run, from a bucket, and on the screen."""

from __future__ import annotations

import json
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from support import LIMIT_S, FakeClock, holds, until

import sdk
from sdk.cli import watch
from sdk.cli.pace import MetricRecord, TrainingPace, Update, caught_up, is_stale, recorded_pace
from sdk.clock import SystemClock
from sdk.job.layout import RunPaths
from sdk.records.recorder import position, read_position
from sdk.records.sync.index import SyncedRun
from sdk.records.sync.push import ContainerUploader
from sdk.runtime import reporting as runtime
from sdk.status import Progress
from sdk.storage.gcs.store import GcsStore

pytestmark = [pytest.mark.process]

IN_EPOCH = Progress(step=107, epoch=2, epochs=5, epoch_step=7, epoch_steps=100)
RUNNING = sdk.Status(state=sdk.State.RUNNING, reason=sdk.Reason.TRAINING, created=1.0, attempts=1)
FITTING = """
import pathlib, time, sys
import numpy as np, keras

def batches():
    for _ in range(4):
        yield np.zeros((2, 3), "float32"), np.zeros((2, 1), "float32")

class Waits(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.second = epoch == 1
    def on_train_batch_end(self, batch, logs=None):
        place = pathlib.Path(sys.argv[1])
        while self.second and batch == 2 and not place.exists():
            time.sleep(0.02)

import tensorflow as tf
data = tf.data.Dataset.from_generator(batches, output_signature=(tf.TensorSpec((2, 3)), tf.TensorSpec((2, 1))))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, epochs=3, verbose=0, callbacks=[Waits()])

import sdk

class Reports(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        sdk.context().report({"mine": 1.0}, step=epoch)
    def on_train_batch_end(self, batch, logs=None):
        sdk.context().report({"batch": batch})

model.compile("sgd", "mse", steps_per_execution=10)
model.fit(data.repeat(), steps_per_epoch=20, epochs=2, verbose=0, callbacks=[Reports()])
"""


@pytest.mark.parametrize(
    ("progress", "record", "shown"),
    [
        (IN_EPOCH, {"attempt": 1, "step": 200, "epoch": 2}, "epoch 2/5 step 100/100"),
        (IN_EPOCH, {"attempt": 1, "step": 325, "epoch": 4}, "epoch 4/5 step 25/100"),
        (IN_EPOCH, {"attempt": 1, "step": 107, "epoch": 2}, "epoch 2/5 step 7/100"),
        (IN_EPOCH, {"attempt": 2, "step": 200, "epoch": 2}, "epoch 2/5 step 7/100"),
        (IN_EPOCH, {"attempt": 1, "step": 9000, "epoch": None}, "epoch 2/5 step 7/100"),
        (Progress(step=107), {"attempt": 1, "step": 200, "epoch": 2}, "step 107"),
        (replace(IN_EPOCH, epoch_steps=None), {"attempt": 1, "step": 200, "epoch": 2}, "None"),
    ],
)
def test_the_bar_is_never_older_than_the_last_metrics_of_the_attempt(progress: Progress, record, shown: str) -> None:
    assert str(caught_up(progress, [record], attempt=1)) == shown
    assert caught_up(progress, [], attempt=1) is progress


def test_a_row_of_metrics_never_stands_above_the_bar_of_before(drawn) -> None:
    rows: list[MetricRecord] = [{"attempt": 1, "step": 200, "epoch": 2, "metrics": {"loss": 0.5}}]
    later = Update(status=RUNNING, position="epoch 2/5 step 100/100", records=rows)
    *_, shown = drawn(80, Update(status=RUNNING, position="epoch 1/5 step 9/100"), later)
    holds(shown.partition("loss")[2], "epoch 2/5", lacks=["epoch 1/5"])


@pytest.mark.full
@pytest.mark.tensorflow
def test_a_fit_says_epoch_and_step_while_it_trains_to_every_client(write, here, tmp_path: Path) -> None:
    write("train.py", FITTING)
    go_on = tmp_path / "go on"
    run = sdk.submit("train.py", args=[str(go_on)])
    try:
        # Data of unknown size: the first epoch has told that it is four batches. The callback that waits precedes ours.
        expected = Progress(step=6, epoch=2, epochs=3, epoch_step=2, epoch_steps=4)
        until(lambda: run.progress() == expected, lambda: (run.progress(), run.why()))
        assert expected.left == 6
        assert "\nprogress   epoch 2/3 step 2/4, step 6 in total\n" in here("status", run.id).stdout
        found = json.loads(here("status", run.id, "--json").stdout)["progress"]
        assert found == {"step": 6, "epoch": 2, "epochs": 3, "epoch_step": 2, "epoch_steps": 4}
    finally:
        go_on.touch()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    # The second fit does ten steps in an execution, and its callback reports other numbers.
    assert run.progress() == Progress(step=12 + 40, epoch=2, epochs=2, epoch_step=20, epoch_steps=20)
    last = cast("MetricRecord", run.metric_records()[-1])
    assert (last["step"], is_stale(run.progress(), last, attempt=1)) == (40, False)
    assert "\nprogress" not in here("status", run.id).stdout


def test_a_loop_says_its_steps(write) -> None:
    write("train.py", "import sdk\nfor n in range(1, 8): sdk.context().report({}, step=n)\n")
    run = sdk.submit("train.py")
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert str(run.progress()) == "step 7"


def test_the_last_attempt_counts_and_no_position_is_read_of_a_file_that_is_cut_short(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "runs" / "a-aaaaaa"))
    assert position(paths, "chief-0") is None
    runtime.ProgressWriter(paths.progress(1, "chief-0")).step(9)
    runtime.ProgressWriter(paths.progress(2, "chief-0")).step(3)
    assert position(paths, "chief-0") == Progress(step=3)
    Path(paths.progress(2, "chief-0")).write_bytes(struct.pack("<QQ", 12, 15))
    assert read_position(paths.progress(2, "chief-0")) is read_position(str(tmp_path / "none")) is None


def test_a_pace_has_a_rate_and_the_time_that_is_left() -> None:
    clock = FakeClock()
    pace = TrainingPace(clock)
    shown = []
    for step in range(100, 131, 10):
        shown.append(pace(Progress(step=step, epoch=2, epochs=3, epoch_step=step - 100, epoch_steps=100)))
        clock.sleep(5)
    assert shown[:2] == ["epoch 2/3 step 0/100", "epoch 2/3 step 10/100"]
    assert shown[-1] == "epoch 2/3 step 30/100, 2 steps/s, 1 min 25 s left"
    clock.sleep(60)
    assert pace(Progress(step=130)) == "step 130, no step for 1 min 5 s"
    clock.sleep(1)
    assert pace(Progress(step=2)) == "step 2", "another attempt"
    assert pace(None) == ""


def test_the_limit_of_steps_decides_the_time_left() -> None:
    clock = FakeClock()
    pace = TrainingPace(clock, max_steps=30)
    for step in (0, 10, 20):
        shown = pace(Progress(step=step))
        clock.sleep(30)
    assert shown == "step 20, 3 s a step, 30 s left"
    assert pace(Progress(step=30)) == "step 30, all steps done", "no rate that falls until the program ends"


def test_the_first_step_is_in_no_rate_and_the_next_ones_are_no_estimate() -> None:
    clock = FakeClock()
    pace = TrainingPace(clock, max_steps=100)
    shown = [pace(Progress(step=0))]
    for step, seconds in [(1, 17.0), (3, 1.0), (5, 1.0), (11, 3.0)]:
        clock.sleep(seconds)
        shown.append(pace(Progress(step=step)))
    assert shown == ["step 0", "step 1", "step 3, 2 steps/s", "step 5, 2 steps/s", "step 11, 2 steps/s, 45 s left"]
    clock.sleep(40)
    shown = [pace(Progress(step=11), 2)]
    for step, seconds in [(12, 17.0), (14, 1.0)]:
        clock.sleep(seconds)
        shown.append(pace(Progress(step=step), 2))
    assert shown == ["step 11", "step 12", "step 14, 2 steps/s"], "the wait and the first step of an attempt, neither"


def test_without_a_terminal_a_line_comes_now_and_then_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    plain = watch.Plain(clock)
    run = type("", (), {"id": "digits-aaaaaa"})
    for second in range(61):
        plain.show(run, Update(status=RUNNING, position=f"epoch 1 step {second}"))  # type: ignore[arg-type]
        clock.sleep(1)
    said = capsys.readouterr()
    lines = "digits-aaaaaa RUNNING (training)\ndigits-aaaaaa epoch 1 step 30\ndigits-aaaaaa epoch 1 step 60\n"
    assert said == ("", lines)


@pytest.mark.parametrize(("width", "bar"), [(40, 0), (80, 18), (100, 20)])
def test_a_terminal_has_one_line_of_progress_whatever_its_width(drawn, width: int, bar: int) -> None:
    line = "epoch 1/30 step 2/300, 118 steps/s, 1 min 4 s left"
    running = replace(RUNNING, created=time.time() - 4000)
    *_, shown = drawn(width, Update(status=running, position=line, share=0.25))
    assert ("1:06:40  epoch 1/3" in shown, shown.count("\n")) == (True, 1)
    last = shown.rpartition("digits-aaaaaa")[2]
    assert sum(map(last.count, "━╸╺")) == bar, "as wide in the next second"
    assert ("118 steps/s" in shown, "1 min 4 s left" in shown) == (width == 100, width > 40)


def test_nothing_is_drawn_again_until_something_has_changed(drawn) -> None:
    running = replace(RUNNING, created=time.time() - 0.1)
    first, second, third, _ = drawn(80, *(Update(status=running, position=f"step {step}") for step in (1, 1, 2)))
    assert len(first) == len(second) < len(third)


def test_each_task_has_a_separate_line_if_that_is_wanted(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "runs" / "digits-aaaaaa"))
    plan = type("", (), {"paths": paths, "tasks": [f"worker-{number}" for number in range(20)]})
    runtime.ProgressWriter(paths.progress(1, "worker-0")).step(9)
    paces = {task: TrainingPace(FakeClock()) for task in plan.tasks[:2]}
    said = watch.task_lines(type("", (), {"plan": plan}), paces)  # type: ignore[arg-type]
    assert said == ["worker-0  step 9", "worker-1  no step yet", "and 18 more tasks"]


def test_the_share_of_a_fit_counts_its_own_steps_and_is_unknown_without_an_end() -> None:
    pace = TrainingPace(FakeClock())
    pace(IN_EPOCH)
    assert pace.share == 107 / 500
    pace(Progress(step=1000, epoch=2, epochs=5, epoch_step=7, epoch_steps=100))
    assert pace.share == 107 / 500, "a second fit"
    pace(Progress(step=7))
    assert pace.share is None
    limited = TrainingPace(FakeClock(), max_steps=28)
    limited(Progress(step=7))
    assert limited.share == 0.25


def test_a_status_has_the_rate_that_the_records_show() -> None:
    records: list[MetricRecord] = [
        {"attempt": attempt, "time": time, "step": step, "epoch": 1, "metrics": {}}
        for attempt, time, step in [(1, 0.0, 900), (2, 100.0, 100), (2, 150.0, 200), (2, 200.0, 300)]
    ]
    expected = "epoch 2/5 step 7/100, 2 steps/s, about 3 min 17 s left"
    assert recorded_pace(IN_EPOCH, records, None) == expected
    at_the_end = Progress(step=300, epoch=5, epochs=5, epoch_step=100, epoch_steps=100)
    assert recorded_pace(at_the_end, records, None) == "epoch 5/5 step 100/100, 2 steps/s", "nothing is left"
    for few in (records[:2], []):
        assert recorded_pace(IN_EPOCH, few, None) == "epoch 2/5 step 7/100", "one record has no rate"


@pytest.fixture
def bucket(mine):
    return GcsStore("mine/podlift/runs/digits-aaaaaa")


def test_a_container_says_every_ten_seconds_how_far_the_run_is(bucket, tmp_path: Path) -> None:
    url, clock = "gs://mine/podlift/runs/digits-aaaaaa", FakeClock()
    paths = RunPaths(str(tmp_path / "runs" / "digits-aaaaaa"))
    first = ContainerUploader(paths, url, clock, task="chief-0", resumes=2)
    other = ContainerUploader(paths, url, clock)
    task = runtime.ProgressWriter(paths.progress(1, "chief-0"))
    task.epoch(2, 5, 100)
    task.step(107, 7)
    copy = SyncedRun(RunPaths(str(tmp_path / "copy" / "runs" / "digits-aaaaaa")), url, SystemClock())

    def later(seconds: float) -> Progress | None:
        clock.sleep(seconds)
        first.run_due()
        other.run_due()
        copy.read_heartbeat()
        return copy.progress

    with pytest.raises(sdk.PodliftError):
        later(9)
    assert later(1) == IN_EPOCH
    assert copy.read_heartbeat().resumes == 2
    task.step(108, 8)
    assert later(9) == IN_EPOCH
    assert later(1) == replace(IN_EPOCH, step=108, epoch_step=8)
    task.step(600, 100)
    # The container of the first task ends with the final step.
    for uploader, says in ((other, 108), (first, 600)):
        uploader.start()
        uploader.flush(10, last=True)
        copy.read_heartbeat()
        assert copy.progress is not None and copy.progress.step == says
    generation = bucket.stat("heartbeat.json").generation
    bucket.swap("heartbeat.json", [b'{"supervised": true, "resumes": 2}'], expected=generation)
    copy.read_heartbeat()
    assert copy.progress is None
