"""The explanation of a run for people: live, after its end, after a crash, from anywhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timezone
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import LIMIT_S, REPO, command, holds, until

import sdk
from sdk.job.layout import RunPaths
from sdk.records.events import Event, first_failure, fold, is_collateral, reason_of
from sdk.records.explain import MEANINGS, RunContext, explain
from sdk.records.recorder import read_events
from sdk.records.timeline import NOW, Moment

PATHS, TASKS = RunPaths("/r/runs/digits-aaaaaa"), ["chief-0", "worker-0"]
CONTEXT = RunContext(ref="REF", paths=PATHS, tasks=TASKS, now=100.0, zone=timezone.utc)


def event(kind: str, time: float, source: str = "supervisor", attempt: int = 0, **data: object) -> Event:
    return Event(attempt=attempt, source=source, sequence=int(time * 10), kind=kind, time=time, data=data)


def failed(kind: str, time: float, source: str, attempt: int = 1, message: str = "m") -> Event:
    text = f'Traceback (most recent call last):\n  File "t.py", line 1\n{kind}: {message}\n'
    return event("failed", time, source, attempt, type=kind, message=message, traceback=text)


def stopping(time: float, reason: str, attempt: int = 1) -> Event:
    return event("stopping", time, attempt=attempt, reason=reason)


def restarting(time: float, message: str, **data: object) -> Event:
    return event("restarting", time, attempt=1, failure={"message": message}, **data)


def final(state: str, reason: str, **data: object) -> Event:
    return event("final", 40.0, state=state, reason=reason, **data)


def told(*events: Event, alive: bool = True) -> str:
    return explain(events, fold(events, supervisor_alive=alive), CONTEXT)


SUBMITTED = event("submitted", 10.0, "client")
LAUNCHED = event("launched", 10.1, "launcher", supervisor="boot:77:5")
STARTED = event("started", 11.0, supervisor="boot:77:5")
BEGUN = [SUBMITTED, LAUNCHED, STARTED, event("attempt_started", 12.0, attempt=1)]
ENTERED = [*BEGUN, event("entry", 13.0, "chief-0", 1), event("entry", 13.5, "worker-0", 1)]
STEPPED = [*ENTERED, event("first_step", 20.0, "chief-0", 1)]

FAILURE = {"task": "worker-0", "message": "worker-0 failed: KeyError: m"}
USER_ERROR = final("FAILED", "user_error", failure=FAILURE)
RAISED = [*STEPPED, failed("KeyError", 30, "worker-0")]
RESUME = event("resumed", 50, "client-1", attempts=1, cancel_requests=0)
RESUMED = [*RAISED, stopping(31, "user_error"), USER_ERROR, RESUME]
AGAIN = [event("started", 52, "supervisor-1", supervisor="boot:88:5"), event("attempt_started", 53, attempt=2)]
EARLIER = [
    "00:00:30 worker-0 failed: KeyError: m 00:00:31 attempt 1 ended (user_error)",
    "00:00:40 run FAILED (user_error) 00:00:50 client resumed the run",
]
STOPPED = [*STEPPED, stopping(40, "cancelled"), event("exited", 41, attempt=1, task="chief-0")]
LOST = restarting(41, "chief-0 was killed.", reason="killed", why="Started again.")
KILLED = [*STEPPED, stopping(40, "killed"), LOST]
HUNG = [*KILLED, event("attempt_started", 42, attempt=2), stopping(43, "hung", attempt=2)]
SILENT = event("hung", 50, attempt=1, silent_s=90.0, task="worker-0")
PENDING = "has been PENDING (submitted) for 1 min 30 s, since 1970-01-01 00:00:10."
WAITING = "Waiting for worker-0 to exit."
ENDED = "is SUCCEEDED (done). It ended at 1970-01-01 00:00:40, 30 s after it was submitted."
HISTORY = [
    "attempt 1 ended (killed) chief-0 was killed. Started again. 00:00:42 attempt 2 started",
    "attempt 2 ended (hung)",
]


def test_a_run_that_goes_on_tells_which_task_was_restarted_alone_and_why() -> None:
    message = "worker-0 failed: KeyError: m"
    restarting = event("task_restarting", 30.5, attempt=1, task="worker-0", failure={"message": message}, why="Again.")
    events = [*RAISED, restarting]
    status = fold(events, supervisor_alive=True)
    assert (status.state, status.attempts, status.restarted_alone) == (sdk.State.RUNNING, 1, {"worker-0": 1})
    text = told(*events)
    assert "It has been training since" in text
    assert f"worker-0 was restarted alone 1 time, last at 1970-01-01 00:00:30. {message} Again." in text
    # In the next attempt it is history.
    later = [*events, event("attempt_started", 40.0, attempt=2)]
    assert fold(later, supervisor_alive=True).restarted_alone == {}


@pytest.mark.parametrize(
    ("events", "alive", "parts"),
    [
        ([SUBMITTED], True, [PENDING, "has not been launched yet"]),
        ([SUBMITTED, LAUNCHED], True, ["has not reported yet", "Next: podlift wait REF"]),
        ([SUBMITTED, LAUNCHED, STARTED], True, ["RUNNING (training)", "Waiting for ports"]),
        ([SUBMITTED, STARTED, event("preparing", 12)], True, ["(preparing)", "/r/runs/digits-aaaaaa/environment.log"]),
        (BEGUN, True, ["Waiting for chief-0, worker-0 to reach the program", "Next: podlift logs REF -f"]),
        (ENTERED, True, ["No training step has been reported yet"]),
        (STEPPED, True, ["It has been training since 1970-01-01 00:00:20."]),
        ([*STEPPED, event("done", 30, "chief-0", 1)], True, ["Done: chief-0. Waiting for worker-0."]),
        (RAISED, True, ["worker-0 failed: KeyError: m", "worker-0.log"]),
        ([*STEPPED, SILENT], True, ["no task has been active for 1 min 30 s", "The slowest task is worker-0."]),
        (STOPPED, True, ["RUNNING (stopping)", "Reason: cancelled.", WAITING, "Next: podlift wait REF"]),
        (KILLED, True, ["RUNNING (restarting)", "Started again.", "chief-0 was killed."]),
        ([*HUNG, event("attempt_started", 44, attempt=3)], True, ["RUNNING (training)", "in attempt 3", *HISTORY]),
        ([SUBMITTED], False, ["LOST (supervisor_lost). It was last seen", "supervisor was never started"]),
        (STEPPED, False, ["gone and left no verdict", "It was process 77", "Next: podlift logs REF"]),
        (RESUMED, True, ["PENDING (submitted) for 50 s", "that resumed the run does that", *EARLIER]),
        ([*RESUMED, *AGAIN], True, ["RUNNING (training)", "in attempt 2", "Waiting for chief-0, worker-0", *EARLIER]),
        ([*RESUMED, *AGAIN], False, ["LOST", "It was process 88", *EARLIER]),
        (RAISED, False, ["LOST", "worker-0 failed: KeyError: m"]),
        ([*STEPPED, final("SUCCEEDED", "done")], False, [ENDED, "Next: podlift get REF"]),
        ([*STEPPED, final("CANCELLED", "cancelled")], False, ["It was cancelled on request."]),
        ([*STEPPED, final("CHECKPOINTED", "checkpointed")], False, ["asked to be restarted"]),
    ],
)
def test_why_names_the_state_the_wait_and_the_next_command(events: list[Event], alive: bool, parts: list[str]) -> None:
    text = told(*events, alive=alive)
    words = " ".join(text.split())
    assert [part for part in parts if part not in words] == [], text
    assert text.count("worker-0 failed: KeyError") <= 1


def test_the_cause_comes_first_and_the_deaths_of_its_peers_are_folded_under_it() -> None:
    failure = {**FAILURE, "message": "worker-0 failed: KeyError: 'x'", "traceback": "T", "log": "/l/worker-0.log"}
    text = told(
        *STEPPED,
        failed("UnavailableError", 29.0, "chief-0", message="Socket\n closed " + "x" * 500),
        failed("KeyError", 30.0, "worker-0"),
        failed("ValueError", 30.5, "worker-2"),
        event("exited", 31.0, attempt=1, task="worker-1", code=-6),
        event("exited", 31.0, attempt=1, task="worker-0", code=1),
        stopping(32.0, "user_error"),
        event("exited", 33.0, attempt=1, task="chief-0", code=-9),
        final("FAILED", "user_error", failure=failure),
    )
    lines = text.splitlines()
    assert lines[1] == "worker-0 failed: KeyError: 'x'"
    assert "Full log: /l/worker-0.log" in lines
    second = lines.index("Also failed: worker-2 (ValueError: m).")
    assert lines[second + 1 : second + 5 : 3] == ["worker-2:", "ValueError: m"], "it has another traceback"
    failure = next(at for at, line in enumerate(lines) if "worker-0    failed: KeyError: m" in line)
    assert "as a consequence: chief-0 (UnavailableError), worker-1" in lines[failure + 1], "below its cause"
    assert "SIGABRT" in lines[failure + 2]
    assert "SIGKILL" not in text, "podlift itself ended the others"
    assert lines[-1] == "Next: podlift logs REF --task worker-0 · podlift resume REF --code current"
    assert max(map(len, lines)) < 300


def continued(step: int) -> list[Event]:
    """A second attempt that trains, from a step on."""
    entered = [event("entry", 54, "chief-0", 2), event("entry", 54, "worker-0", 2)]
    began = [event("continued", 55, "chief-0", 2, step=step), event("first_step", 56, "chief-0", 2)]
    return [*RESUMED, *AGAIN, *entered, *began]


@pytest.mark.parametrize(
    ("events", "changes", "sentence"),
    [
        ([*STEPPED, USER_ERROR], {"saved_step": 480}, "If it is resumed, attempt 2 continues at step 480."),
        ([*STEPPED, USER_ERROR], {}, "If it is resumed, no checkpoint was saved: attempt 2 starts from the beginning."),
        ([*ENTERED, USER_ERROR], {}, ""),
        ([*RESUMED, *AGAIN, event("continued", 54, "chief-0", 2, step=480), event("entry", 54, "chief-0", 2)], {}, ""),
        (continued(480), {}, "Attempt 2 continues at step 480."),
        (continued(0), {}, "No checkpoint was saved: attempt 2 starts from the beginning."),
    ],
)
def test_where_an_attempt_continues_is_said(events: list[Event], changes: dict, sentence: str) -> None:
    status = replace(fold(events, supervisor_alive=True), **changes)
    _, *lines = explain(events, status, CONTEXT).partition("\nTimeline:")[0].splitlines()
    assert [line for line in lines if "attempt 2 " in line.lower()] == ([sentence] if sentence else [])


def test_after_a_programs_error_the_next_command_starts_it_with_the_current_code() -> None:
    ending = fold([*STEPPED, USER_ERROR], supervisor_alive=True)
    assert explain([*STEPPED, USER_ERROR], ending, CONTEXT).endswith("podlift resume REF --code current")
    notebook = explain([*STEPPED, USER_ERROR], ending, replace(CONTEXT, generated=True))
    assert notebook.endswith("Next: podlift logs REF --task worker-0"), "there is no current code of a notebook's cells"
    late = replace(ending, reason=sdk.Reason.TIMEOUT)
    assert explain([*STEPPED, USER_ERROR], late, CONTEXT).endswith("podlift resume REF"), "its code may be right"


@pytest.mark.parametrize(
    ("reason", "changes", "command"),
    [
        ("quota", {}, "podlift resume REF"),
        ("stockout", {"vendor": "JOB_STATE_FAILED"}, "podlift resume REF"),
        ("permission", {"vendor": "JOB_STATE_FAILED"}, "podlift logs REF · podlift resume REF"),
        ("stockout", {"vendor": "JOB_STATE_FAILED", "attempts": 1}, "podlift logs REF · podlift resume REF"),
    ],
)
def test_the_next_command_names_logs_only_if_there_can_be_any(reason: str, changes: dict, command: str) -> None:
    events = [SUBMITTED, final("FAILED", reason, failure={"task": "", "message": "m"})]
    text = explain(events, replace(fold(events, supervisor_alive=False), **changes), CONTEXT)
    assert text.splitlines()[-1] == f"Next: {command}"
    assert ("\nThe service reports JOB_STATE_FAILED.\n" in text) is ("vendor" in changes)


def test_a_cancelled_runs_job_that_exited_with_0_shows_no_contradicting_state() -> None:
    events = [SUBMITTED, final("CANCELLED", "cancelled")]
    ended = replace(fold(events, supervisor_alive=False), vendor="JOB_STATE_SUCCEEDED", console="https://console/1")
    text = explain(events, ended, CONTEXT)
    assert "\nIts job: https://console/1\n" in text and "JOB_STATE" not in text


@pytest.mark.parametrize(
    ("events", "step", "saved", "sentence"),
    [
        (STEPPED, 512, 480, "Current step: 512. Last checkpoint: step 480, 30 s ago."),
        (STEPPED, 512, None, "Current step: 512. No checkpoint was saved yet."),
        ([*STEPPED, USER_ERROR], 512, None, "Last step: 512.\nIf it is resumed, no checkpoint was saved: attempt 2"),
        ([*STEPPED, USER_ERROR], 512, 480, "Last step: 512. Last checkpoint: step 480"),
        ([*STEPPED, final("SUCCEEDED", "done")], 512, 480, ""),
    ],
)
def test_the_last_step_and_the_last_checkpoint_are_named(events: list, step, saved, sentence: str) -> None:
    status = replace(fold(events, supervisor_alive=True), saved_step=saved, saved_at=saved and 70.0)
    text = explain(events, status, replace(CONTEXT, step=step))
    assert sentence in text
    assert ("step: 512" in text) is ("512" in sentence)
    assert (f"saved step {saved}, the last checkpoint" in text) is (saved is not None)


def test_the_services_reason_for_a_wait_comes_before_the_timeline() -> None:
    waiting = Moment(time=NOW, source="service", text="the job is QUEUED", causes=("Other jobs use the quota.",))
    status = replace(fold([SUBMITTED], supervisor_alive=True), reason=sdk.Reason.QUEUED)
    lines = explain([SUBMITTED], status, replace(CONTEXT, cloud=True, service=(waiting,))).splitlines()
    assert lines[1] == "Other jobs use the quota."
    assert lines[-3:] == ["  now       service  the job is QUEUED", "", "Next: podlift wait REF"]
    silent = explain([SUBMITTED], status, replace(CONTEXT, cloud=True)).splitlines()
    assert silent[1] == MEANINGS[sdk.Reason.QUEUED]


def test_every_reason_has_a_sentence() -> None:
    assert set(MEANINGS) == set(sdk.Reason)
    endings = [reason for reason in sdk.Reason if reason.value not in ("submitted", "training", "done")]
    assert [reason for reason in endings if not MEANINGS[reason]] == []
    assert len({MEANINGS[reason] for reason in endings}) == len(endings)


KINDS = "submitted preparing placed attempt_started entry first_step done stopping restarting task_restarting hung"
SOURCES = st.sampled_from(["client", "supervisor", "chief-0", "worker-0"])
of_one = partial(st.builds, event, attempt=st.just(1), time=st.floats(0, 100))
numbers = {"attempt": st.integers(0, 3), "sequence": st.integers(1, 9), "time": st.floats(0, 4e9)}
anything = st.builds(Event, source=SOURCES, kind=st.sampled_from(KINDS.split()), data=st.just({}), **numbers)
endings = of_one(st.just("exited"), task=st.sampled_from(["chief-0", "worker-0"]), code=st.integers(-70, 300))
alone = of_one(st.just("task_restarting"), task=st.just("worker-0"), failure=st.just(FAILURE), why=st.just("Again."))
failures = st.builds(failed, st.sampled_from(["KeyError", "UnavailableError"]), st.floats(0, 100), st.just("worker-0"))


@given(st.lists(st.one_of(anything, endings, failures, alone), max_size=12), st.booleans())
def test_whatever_the_records_are_there_is_an_explanation(events: list[Event], alive: bool) -> None:
    text = told(*events, alive=alive)
    assert text.startswith(("Run digits-aaaaaa is ", "Run digits-aaaaaa has been "))
    assert "\nNext: podlift " in text


@pytest.mark.parametrize(
    ("kind", "message", "collateral"),
    [
        ("UnavailableError", "", True),
        ("InternalError", "Collective ops is aborted by: ...", True),
        ("UnknownError", "Connection reset by peer", True),
        ("InternalError", "cudnn failed", False),
        ("ConnectionResetError", "[Errno 104]", True),
        ("ValueError", "connection reset", False),
    ],
)
def test_a_consequence_of_a_dead_peer_is_no_cause(kind: str, message: str, collateral: bool) -> None:
    echo = failed(kind, 1.0, "chief-0", message=message)
    cause = failed("KeyError", 2.0, "worker-0")
    assert is_collateral(echo) is collateral
    assert first_failure([echo, cause], 1) is (cause if collateral else echo)


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        ("from json import nothing", sdk.Reason.IMPORT_ERROR, "cannot import name 'nothing'"),
        ("def main(): pass\ndel main", sdk.Reason.WRONG_ENTRY, "has no attribute 'main'"),
        ("def main(): {}['x']", sdk.Reason.USER_ERROR, "KeyError: 'x'"),
        ("def main(): raise TypeError('mine')", sdk.Reason.USER_ERROR, "mine"),
    ],
)
def test_a_failed_import_and_a_wrong_entry_are_told_from_an_error_of_the_program(write, text, reason, said) -> None:
    write("train.py", text if "main" in text else f"def main():\n    {text}")
    run = sdk.submit("train:main")
    run.wait(LIMIT_S)
    record = first_failure(read_events(run.plan.paths), 1)
    assert record is not None
    assert reason_of(record) is reason
    assert said in run.why()


@pytest.mark.process
def test_a_run_is_explained_live_and_after_its_supervisor_was_killed_from_anywhere(write, tmp_path: Path) -> None:
    write("train.py", "import time; print('on its way', flush=True); time.sleep(600)")
    run = sdk.submit("train.py", workers=2)
    until(lambda: len([e for e in read_events(run.plan.paths) if e.kind == "entry"]) == 2)
    assert "No training step has been reported yet" in run.why()
    supervisor = next(e for e in read_events(run.plan.paths) if e.kind == "started").data["supervisor"].split(":")[1]
    os.kill(int(supervisor), signal.SIGKILL)
    assert run.wait(LIMIT_S).state is sdk.State.LOST
    line = [sys.executable, "-c", f"import sdk; print(sdk.attach({run.url!r}).why())"]
    env = {"PYTHONPATH": str(REPO), "PATH": os.defpath, "HOME": str(tmp_path)}
    shown = subprocess.run(line, capture_output=True, text=True, check=True, cwd="/", env=env).stdout
    assert f"Run {run.id} is LOST (supervisor_lost). It was last seen" in shown
    # That shell has another root.
    holds(shown, f"It was process {supervisor}. It was killed", f"Next: podlift logs {run.url}")
    assert f"Next: podlift logs {run.id}" in run.why()


@pytest.mark.process
def test_the_explanation_is_the_message_of_the_error_and_the_output_of_the_command(write, capsys) -> None:
    write("train.py", "def train():\n    {}['the column']\ntrain()")
    run = sdk.submit("train.py")
    with pytest.raises(sdk.RunFailedError) as caught:
        run.result(LIMIT_S)
    assert str(caught.value) == run.why()
    status = command(capsys, "status", run.id)
    assert status.code == 0
    # There are no metrics.
    holds(status.stdout, "KeyError: 'the column'", lacks=["\nmetrics"])
    timings = r"^timings    started after [\d.]+ s, program reached after [\d.]+ s, finished after"
    assert re.search(timings, status.stdout, re.MULTILINE)
    why = command(capsys, "why", run.id)
    assert why.code == 0
    holds(why.stdout, run.why(), "KeyError: 'the column'", f"Next: podlift logs {run.id} --task chief-0")
    wait = command(capsys, "wait", run.id)
    assert (wait.code, run.why() in wait.stderr) == (1, True)


@pytest.mark.parametrize(
    ("message", "explained"),
    [("`keras.optimizers.legacy` is not supported in Keras 3.", True), ("the label is missing", False)],
)
def test_an_error_that_only_keras_3_raises_is_explained_with_the_setting_for_keras_2(message: str, explained) -> None:
    failure = {"task": "worker-0", "message": f"worker-0 failed: ImportError: {message}"}
    ended = final("FAILED", "user_error", failure=failure)
    said = told(*ENTERED, failed("ImportError", 30, "worker-0", message=message), ended)
    assert ("--code-keras legacy" in said) is explained
