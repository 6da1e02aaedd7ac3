"""The drill that kills a task every few minutes and reports the use of the time, scaled to seconds."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from support import REPO

import sdk
from sdk.cli import app
from sdk.clock import SystemClock
from sdk.drill.goodput import Disturbance, GoodputReport, execute_goodput, prepare_goodput
from sdk.planning.settings.merge import Destination
from sdk.status import Goodput, State

PAGE = (REPO / "docs" / "reference" / "json.md").read_text()
# It keeps nothing, so that all steps before the last kill are done again.
STEPS = """\
import time
import sdk

for step in range(1, 100_000):
    time.sleep(0.02)
    sdk.context().report({"loss": 1.0}, step=step)
"""


@pytest.mark.process
@pytest.mark.full
def test_tasks_are_killed_in_time_and_the_cost_is_reported(write, root: Path) -> None:
    write("train.py", STEPS)
    disturbance = Disturbance(for_s=6.0, kill_every_s=2.0, at_least=0.01)
    plan = prepare_goodput("train.py", {"workers": 2}, Destination(root=str(root)), {}, disturbance)
    assert plan.job.retry.infrastructure == sdk.Retry().infrastructure + 2
    report = execute_goodput(plan, disturbance, SystemClock())
    assert report.passed and report.state is State.CANCELLED and not report.message
    assert (report.attempts, report.kills_missed) == (3, 0)
    assert [kill.attempt for kill in report.kills] == [1, 2]
    assert all(kill.at_s >= 2.0 * kill.attempt and (kill.trains_again_s or 0) > 0 for kill in report.kills)
    run = sdk.attach(report.run)
    for task in run.plan.tasks:
        spent = run.goodput(task)
        assert spent is not None and spent.task == task
        whole = run.status().timings["finished"]
        assert sum(spent.parts.values()) == pytest.approx(whole, rel=0.01)
        # The steps of the last attempt alone were kept.
        assert spent.steps_lost > 20 and spent.step_s > 0.2 and spent.lost_to_failures_s > 2.0
    assert report.goodput == run.goodput()
    with pytest.raises(sdk.InputError, match="no task 'worker-7'"):
        run.goodput("worker-7")


def report_of(step_s: float, **given: object) -> GoodputReport:
    spent = Goodput(task="chief-0", total_s=100.0, start_s=100.0 - step_s - 6, step_s=step_s, evaluation_s=6.0)
    known = {
        "state": State.CANCELLED,
        "goodput": spent,
        "at_least": 0.95,
        "attempts": 2,
        "kills": (),
        "kills_missed": 0,
    }
    return GoodputReport(**{**known, "run": "/runs/x", **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("report", "code", "said"),
    [
        (report_of(90), 0, "passed: the program had 96.0% of 1 min 40 s, and 90.0% were steps"),
        (report_of(88), 1, "too low: the program had 94.0%"),
        (report_of(94, kills_missed=2), 1, "too short: the training ended before 2 kills"),
        (report_of(94, message="The disk is full."), 3, "failed: the training did not continue: The disk is full."),
        (report_of(94, message="KeyError: 'x'", user_fault=True), 1, "failed: the training did not continue: KeyError"),
        (report_of(94, goodput=None), 1, "failed: no task has accounted its time"),
    ],
)
def test_the_verdict_is_about_the_time_that_the_kills_left_to_the_program(report, code, said) -> None:
    assert (report.exit_code, report.passed) == (code, code == 0)
    assert str(report).startswith(said)
    section = PAGE.partition("\n## goodput\n")[2].partition("\n## ")[0]
    names = {field.name for field in fields(GoodputReport)} | {"passed", "exit_code"}
    assert set(report.to_data()) == names
    assert all(f"`{name}`" in section for name in names)
    assert json.loads(json.dumps(report.to_data()))["exit_code"] == code


def test_mistakes_are_reported_together_before_anything_starts(write, root: Path, capsys) -> None:
    write("train.py", "print(1)")
    words = ["--for", "5m", "--at-least", "0", "--retry-infrastructure", "2"]
    assert app.run(["goodput", "train.py", *words, "--backend", "vertex", "--root", str(root)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    for sentence in (
        "Received: one every 10 min, for 5 min. Next: --for longer than --kill-every",
        "Received: --at-least 0%",
        "retry_infrastructure: a drill sets this itself",
        "Received: --backend vertex",
    ):
        assert sentence in said
    assert not root.exists()
