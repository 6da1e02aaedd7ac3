"""The end of a run with a model: it is registered and evaluated in another process, on the same machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from local_runs import supervisor
from support import LIMIT_S, said, until

import sdk
from sdk.cli import app
from sdk.clock import SystemClock
from sdk.execution.phase import failure_of
from sdk.job.layout import RunPaths
from sdk.records.events import PHASE, PHASE_FAILED
from sdk.records.recorder import Recorder, read_events
from sdk.runtime.evaluation import checked
from sdk.runtime.last_phase import judge
from sdk.status import EXIT_INFRASTRUCTURE

pytestmark = [pytest.mark.process]

PROGRAM = """
import sys, sdk
from pathlib import Path
ctx = sdk.context()
if ctx.is_chief:
    Path(ctx.dirs.model, "weights").write_text(sys.argv[1])
    ctx.report({"loss": 0.5}, step=7)
print("trained")
"""
# The text in the model decides the end of its evaluation.
QUALITY = """
import os, signal, time
from pathlib import Path
def measure(model, data):
    text = Path(model, "weights").read_text()
    print("measures", text, Path(data).read_text(), sorted({"TF_CONFIG", "CLUSTER_SPEC"} & {*os.environ}))
    if text == "hang":
        print("phase", os.getppid())
    if text == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    while text == "hang" and not Path(data + ".go").exists():
        time.sleep(0.05)
    return {"accuracy": 0.9 if text == "hang" else float(text)}
"""
GATE = sdk.Gate(evaluate="quality:measure", data="test", metric="accuracy")


@pytest.fixture
def project(write) -> Path:
    write("quality.py", QUALITY)
    write("test.csv", "rows")
    return write("train.py", PROGRAM).parent


def submit(weights: str, *, workers: int = 1, restarts: int = 0, gate: sdk.Gate = GATE) -> sdk.Run:
    about = {"resources": sdk.Resources(workers=workers), "retry": sdk.Retry(infrastructure=restarts)}
    job = sdk.Job("train.py", args=[weights], inputs={"test": "test.csv"}, model="digits", gate=gate, **about)
    return sdk.submit(job)


def registered(weights: str) -> sdk.Status:
    run = submit(weights)
    status = run.wait(LIMIT_S)
    assert (status.state, status.registered is None) == (sdk.State.SUCCEEDED, False), run.why()
    return status


def evaluating(run: sdk.Run) -> int:
    """Wait until the model is being evaluated, and return the id of the last phase's process."""

    def found() -> list[int]:
        return [int(line.text.split()[1]) for line in run.logs() if line.text.startswith("phase ")]

    until(found, run.why)
    return found()[-1]


def test_a_clusters_first_model_becomes_champion_and_a_worse_one_is_only_registered(project, capsys) -> None:
    run = submit("0.5", workers=2)
    status = run.wait(LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED, run.why()
    assert str(status.registered).startswith("version 1 of 'digits' was promoted: The first model: accuracy is 0.5")
    # In the chief's log, without a cluster: the other task is gone.
    assert said(run, "chief-0") == ["trained", "measures 0.5 rows []"]
    assert "version 1 of 'digits' was promoted" in run.why()
    assert app.run(["wait", run.id]) == 0
    promoted = "\nIts model: version 1 of 'digits' was promoted: The first model: accuracy is 0.5."
    assert promoted in capsys.readouterr().err
    version = sdk.models()["digits"].champion()
    assert (version.record.run, dict(version.metrics), version.record.state) == (run.id, {"loss": 0.5}, "SUCCEEDED")
    assert [each.path for each in version.files()] == ["weights"]
    worse = registered("0.4")
    assert worse.registered is not None and worse.registered.outcome == "kept"
    assert worse.registered.reason == "accuracy is 0.4, the champion's 0.5: worse by 0.1"
    (evidence,) = sdk.models()["digits"].version(2).evidence()
    assert (evidence.champion, dict(evidence.metrics)) == (1, {"accuracy": 0.4})
    assert dict(evidence.champion_metrics) == {"accuracy": 0.5}


def test_a_crashed_evaluation_neither_promotes_nor_fails_and_a_crashed_champion_asks(project) -> None:
    crashed = registered("crash").registered
    assert crashed is not None and crashed.outcome == "kept"
    assert "failed: Its process was killed by SIGSEGV" in crashed.reason
    assert sdk.models()["digits"].history() == ()
    sdk.models()["digits"].promote(1)
    asks = registered("0.6").registered
    assert asks is not None and (asks.outcome, asks.version) == ("asks", 2)
    assert "The champion could not be evaluated: Its process was killed by SIGSEGV" in asks.reason
    assert str(asks).endswith("Next: podlift models promote digits 2 --as-compared")
    assert sdk.models()["digits"].promote(2, as_compared=True).number == 2


@pytest.mark.full
def test_the_model_of_a_failed_run_is_not_the_one_that_its_resume_trains(project: Path) -> None:
    there = f"Path({str(project / 'data')!r}).exists()"
    trained = PROGRAM.replace("sys.argv[1]", f"'0.5' if {there} else '0.4'")
    (project / "train.py").write_text(f"{trained}sys.exit(not {there})\n")
    run = submit("")
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    assert sdk.models().add(run.id).record.state == "FAILED"
    (project / "data").touch()
    run.resume()
    assert str(run.wait(LIMIT_S).registered).startswith("version 2 of 'digits' was promoted"), run.why()
    assert dict(sdk.models()["digits"].champion().evidence()[0].metrics) == {"accuracy": 0.5}


def test_a_run_without_a_model_is_named(project: Path) -> None:
    (project / "train.py").write_text("print('no model')")
    none = registered("").registered
    assert none is not None and (none.outcome, none.version) == ("none", 0)
    assert "its program wrote no file to ctx.dirs.model" in none.reason


@pytest.mark.full
def test_a_version_without_a_gate_is_judged_by_the_gate_of_another_run(project: Path, capsys) -> None:
    gated = submit("0.5")
    assert gated.wait(LIMIT_S).state is sdk.State.SUCCEEDED, gated.why()
    run = submit("0.7", gate=sdk.Gate())
    assert str(run.wait(LIMIT_S).registered) == "version 2 of 'digits' was registered", run.why()
    root, payload = gated.plan.root, gated.plan.paths.last_phase(1)
    found = judge(root, "digits", 2, payload)
    assert str(found).startswith("version 2 of 'digits' was promoted: accuracy is 0.7, the champion's 0.5")
    assert judge(root, "digits", 1, payload).outcome == "promoted", "it was the champion, and stays decided"
    assert sdk.models()["digits"].champion().number == 2
    assert app.run(["status", run.id]) == 0
    assert "version 2 of 'digits' was registered. Since then it has become the champion\n" in capsys.readouterr().out


def test_a_last_phase_that_is_killed_is_repeated_without_the_training(project: Path) -> None:
    run = submit("hang", restarts=1)
    os.kill(evaluating(run), signal.SIGKILL)
    Path("test.csv.go").touch()
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1), run.why()
    assert said(run).count("trained") == 1 and said(run).count("measures hang rows []") == 2
    model = sdk.models()["digits"]
    assert (model.numbers(), len(model.history()), len(model.version(1).evidence())) == ([1], 1, 1)


@pytest.mark.full
def test_a_run_with_a_supervisor_killed_in_the_last_phase_is_resumed_there(project: Path) -> None:
    run = submit("hang")
    phase = psutil.Process(evaluating(run))
    assert run.status().reason is sdk.Reason.EVALUATING
    os.kill(supervisor(run), signal.SIGKILL)
    assert run.wait(LIMIT_S).state is sdk.State.LOST
    assert not phase.is_running()
    Path("test.csv.go").touch()
    run.resume()
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1), run.why()
    assert said(run).count("trained") == 1
    assert len(read_events(run.plan.paths, ("entry",))) == 1
    model = sdk.models()["digits"]
    assert (model.numbers(), len(model.history())) == ([1], 1)


def test_a_run_can_be_cancelled_in_its_last_phase(project: Path) -> None:
    run = submit("hang")
    phase = psutil.Process(evaluating(run))
    run.cancel()
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert not phase.is_running()
    assert sdk.models()["digits"].history() == ()


def test_a_crashed_or_killed_phase_does_not_end_with_the_message_of_an_earlier_one(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    Path(paths.events).mkdir()
    Recorder(paths, PHASE, 1, SystemClock()).record(PHASE_FAILED, message="The bucket does not answer.")
    assert failure_of(paths, EXIT_INFRASTRUCTURE) == "The bucket does not answer."
    assert failure_of(paths, -9) == "its process ended with -9"
    assert failure_of(paths, 1) == "its process ended with 1"


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ({"accuracy": 1, "loss": float("inf")}, {"accuracy": 1.0, "loss": float("inf")}),
        (None, "It returned None instead of numbers by name."),
        (0.9, "It returned a float instead of numbers by name."),
        ({}, "It returned no numbers by name: an empty dict."),
        ({"accuracy": "0.9", "good": True}, "It returned no numbers by name: 'accuracy': a str, 'good': a bool."),
        ({1: 0.5}, "It returned no numbers by name: 1 is no text."),
    ],
)
def test_a_function_must_return_numbers_by_name_and_other_values_are_named(returned: object, found: object) -> None:
    evaluated = checked(returned)
    assert (evaluated.problem or dict(evaluated.metrics)) == found
