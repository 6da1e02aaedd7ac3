"""How an attempt ends, for every agent: one table of observations and consequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sdk.execution import ending
from sdk.execution.ending import SHARED, WHOLE, Stop, View
from sdk.job.policies import Limits
from sdk.records.events import Event
from sdk.records.exits import OutOfMemory
from sdk.records.verdicts import AttemptEnd
from sdk.status import Failure, Reason, State

TASKS = ("chief-0", "worker-0", "worker-1")
SERVED = ("chief-0", "worker-0", "ps-0", "evaluator-0")
LIMITS = Limits(grace_s=5.0, exit_wait_s=60.0)
LOST = {"type": "UnavailableError", "message": "Socket closed"}
WRONG = {"type": "ValueError", "message": "no such column"}
MANY = {"type": "OSError", "message": "[Errno 24] Too many open files"}
FULL = {"type": "OSError", "message": "[Errno 28] No space left on device"}


def record(task: str, data: dict[str, Any], time: float = 1.0, kind: str = "failed") -> Event:
    return Event(attempt=1, source=task, sequence=1, kind=kind, time=time, data={"traceback": "here", **data})


class Evidence:
    """An agent that finds out a little."""

    def memory(self, task: str) -> OutOfMemory:
        return OutOfMemory.YES if task == "worker-1" else OutOfMemory.NO

    def cpu_limit(self, task: str) -> float | None:
        return None

    def full_disk(self) -> str:
        return "the disk is full"

    def lost_peers(self, message: str) -> str:
        return f"Lost contact. {message}"

    def last_lines(self, task: str) -> str:
        return "\n".join(map(str, range(9)))

    def log(self, task: str) -> str:
        return f"{task}.log"


def end_of(view: View) -> AttemptEnd | None:
    cause = ending.cause(view)
    return cause and ending.explained(cause, view, Evidence())


FAILED = {task: record(task, WRONG) for task in TASKS}
CHIEF_LOST, LATER = record("chief-0", LOST), record("worker-0", WRONG, 2.0)
# The observation: exit codes, records of failures; then the reason, and the task that is the cause.
ENDS = {
    "nothing has ended": ({}, [], ""),
    "a worker is done": ({"worker-0": 0}, [], ""),
    "the first task is done": ({"chief-0": 0}, [], "done chief-0"),
    "the first task is done, a worker failed": ({"chief-0": 0, "worker-0": 1}, [FAILED["worker-0"]], "done chief-0"),
    "a task asks for a restart": ({"worker-0": 75}, [], "checkpointed worker-0"),
    "two ask for a restart, one after the other": ({"worker-1": 75, "worker-0": 75}, [], "checkpointed worker-1"),
    "an error": ({}, [FAILED["worker-0"]], "user_error worker-0"),
    "the earliest error": ({}, [record("worker-1", WRONG, 2.0), FAILED["worker-0"]], "user_error worker-0"),
    "an error that is not the consequence of another": ({}, [CHIEF_LOST, LATER], "user_error worker-0"),
    "a peer is lost": ({}, [CHIEF_LOST], "infrastructure chief-0"),
    "a peer was done before": ({"worker-0": 0}, [CHIEF_LOST], "user_error chief-0"),
    "a silent end explains a lost peer": ({"worker-0": 3}, [CHIEF_LOST], "user_error worker-0"),
    "SIGKILL explains every error": ({"worker-0": -9}, [FAILED["chief-0"]], "killed worker-0"),
    "SIGKILL explains SIGABRT": ({"chief-0": -6, "worker-0": -9}, [], "killed worker-0"),
    "the memory was full": ({"worker-1": -9}, [], "out_of_memory worker-1"),
    "SIGTERM from outside": ({"worker-0": -15}, [], "preempted worker-0"),
    "SIGKILL without a full memory": ({"worker-0": -9}, [], "killed worker-0"),
    "an abort on a machine with a full memory": ({"worker-1": -6}, [], "killed worker-1"),
    "one asks for it, another failed": ({"worker-0": 75, "worker-1": 1}, [FAILED["worker-1"]], "checkpointed worker-0"),
    "a silent end, and an error of another": ({"worker-0": 3}, [FAILED["chief-0"]], "user_error chief-0"),
    "an exit code without an error": ({"chief-0": 3}, [], "user_error chief-0"),
    "a full disk": ({}, [record("chief-0", FULL)], "infrastructure chief-0"),
}
STATES = {"done": "SUCCEEDED", "checkpointed": "CHECKPOINTED"}


@pytest.mark.parametrize(("codes", "failed", "wanted"), ENDS.values(), ids=ENDS)
def test_codes_and_records_say_why_an_attempt_ends(codes, failed, wanted) -> None:
    view = View(tasks=TASKS, own=TASKS, codes=codes, failed=failed)
    end, cause = end_of(view), ending.cause(view)
    reason, _, task = wanted.partition(" ")
    assert (cause is not None and cause.is_asked) is (reason in STATES)
    assert (end is None) is (wanted == "")
    if end:
        assert (end.reason.value, cause.task) == (reason, task)
        state = STATES.get(reason, "FAILED")
        assert (end.state.value, end.failure.task if end.failure else "") == (state, task if state == "FAILED" else "")


ASKED_ENDS = [(0, Reason.DONE), (75, Reason.CHECKPOINTED), (-9, Reason.PREEMPTED), (1, Reason.PREEMPTED)]


@pytest.mark.parametrize(("code", "reason"), ASKED_ENDS)
def test_a_task_that_was_asked_to_end_was_preempted_unless_it_is_done(code, reason) -> None:
    failed = [record("chief-0", WRONG)] if code == 1 else []
    view = View(tasks=TASKS, own=["chief-0"], codes={"chief-0": code}, failed=failed, stop_requested=True)
    end = end_of(view)
    assert end.reason is reason


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (WRONG, "chief-0 failed: ValueError: no such column"),
        (LOST, "Lost contact. chief-0 failed: UnavailableError: Socket closed"),
        (FULL, "chief-0 failed: OSError: [Errno 28] No space left on device: the disk is full."),
        (MANY, f"chief-0 failed: OSError: {MANY['message']}: the process reached its limit of open files (ulimit -n)."),
    ],
)
def test_a_failure_is_explained_with_the_findings_of_the_agent(data, message) -> None:
    end = end_of(View(tasks=TASKS, own=TASKS, codes={}, failed=[record("chief-0", data)]))
    assert end.failure == Failure(task="chief-0", message=message, traceback="here", log="chief-0.log")


@pytest.mark.parametrize(("said", "printed"), [("3", True), ("-1 (usage)", True), ("no data", False)])
def test_an_exit_with_a_number_shows_the_last_five_lines_of_the_output(said: str, printed: bool) -> None:
    seen = [record("chief-0", {"type": "SystemExit", "message": said})]
    end = end_of(View(tasks=TASKS, own=TASKS, codes={}, failed=seen))
    lines = "\nLast lines of its output:\n4\n5\n6\n7\n8" if printed else ""
    assert end.failure.traceback == f"here{lines}"


# The observation of an agent of all tasks, and of the agent of chief-0 alone; how long each waits for the first failure.
ECHOES = {
    "its own error": ({"chief-0": 1}, [FAILED["chief-0"]], 0.0, 0.0),
    "a lost peer": ({"chief-0": 1}, [CHIEF_LOST], 3.0, 5.0),
    "it aborted": ({"chief-0": -6}, [], 0.0, 5.0),
    "it was killed": ({"chief-0": -9}, [], 0.0, 0.0),
    "one aborted, one was killed": ({"chief-0": -6, "worker-0": -9}, [], 0.0, 0.0),
    "nothing": ({}, [], 0.0, 0.0),
}


@pytest.mark.parametrize(("codes", "failed", "whole_s", "shared_s"), ECHOES.values(), ids=ECHOES)
def test_the_consequence_of_another_failure_waits_for_it(codes, failed, whole_s, shared_s) -> None:
    whole = View(tasks=TASKS, own=TASKS, codes=codes, failed=failed)
    shared = replace(whole, own=["chief-0"])
    assert (ending.echo_s(whole, WHOLE, LIMITS), ending.echo_s(shared, SHARED, LIMITS)) == (whole_s, shared_s)
    alone = replace(whole, tasks=TASKS[:1], own=TASKS[:1])
    assert ending.echo_s(alone, WHOLE, LIMITS) == 0.0


def test_the_first_task_is_done_until_it_has_ended() -> None:
    cases = ({}, "chief-0"), ({"worker-1": 1}, "chief-0"), ({}, "worker-1"), ({"chief-0": 0}, "chief-0")
    found = [View(tasks=TASKS, own=TASKS, codes=codes, done=[done]).first_is_done for codes, done in cases]
    assert found == [True, True, False, False]


@pytest.mark.parametrize("codes", [{}, {"worker-0": -6}])
def test_a_first_task_that_is_done_may_take_its_time_to_exit_before_its_peers_fail(codes) -> None:
    failed = [record("worker-1", LOST)]
    view = View(tasks=TASKS, own=TASKS, codes=codes, failed=failed, done=["chief-0"])
    assert ending.echo_s(view, WHOLE, LIMITS) == 60.0
    assert ending.echo_s(replace(view, codes={**codes, "chief-0": 1}), WHOLE, LIMITS) < 60.0


ALONE = {
    "a worker of parameter servers": ("worker-0", {"worker-0": 1}, "worker-0"),
    "an evaluator that has recorded its failure": ("evaluator-0", {}, "evaluator-0"),
    "a parameter server": ("ps-0", {"ps-0": 1}, ""),
    "the first task": ("chief-0", {"chief-0": 1}, ""),
    "a worker, and the first task too": ("worker-0", {"worker-0": 1, "chief-0": 1}, ""),
    "an evaluator that asks for a restart": ("", {"evaluator-0": 75}, "evaluator-0"),
    "an evaluator that asks for it after a worker's end": ("", {"worker-0": 1, "evaluator-0": 75}, "evaluator-0"),
    "a worker, while a server is done": ("worker-0", {"worker-0": 1, "ps-0": 0}, "worker-0"),
    "an error of the first task, seen with a worker's end": ("chief-0", {"worker-0": 1}, ""),
}


@pytest.mark.parametrize(("task", "codes", "wanted"), ALONE.values(), ids=ALONE)
def test_a_task_restarts_alone_if_the_others_can_go_on(task, codes, wanted) -> None:
    end = ending.failed(Reason.USER_ERROR, Failure(task=task, message=""))
    if not task:
        end = AttemptEnd(state=State.CHECKPOINTED, reason=Reason.CHECKPOINTED)
    assert ending.restarts_alone(end, SERVED, codes) == wanted


DONE = AttemptEnd(state=State.SUCCEEDED, reason=Reason.DONE)
SAVED = AttemptEnd(state=State.CHECKPOINTED, reason=Reason.CHECKPOINTED)
ERROR = ending.failed(Reason.USER_ERROR, Failure(task="worker-1", message=""))
DISK = ending.failed(Reason.INFRASTRUCTURE, Failure(task="worker-1", message=""))
IDLE = ending.failed(Reason.ACCELERATOR_IDLE, Failure(task="", message=""))
HUNG = ending.failed(Reason.HUNG, Failure(task="worker-1", message=""))
# As another container reads it: the task has recorded its failure, and the next attempt may have begun.
READ = AttemptEnd(state=State.FAILED, reason=Reason.INFRASTRUCTURE, task="worker-1", restart=True)
LATE = ending.failed(Reason.TIMEOUT, Failure(task="", message=""))
# How containers write it.
ASKED = AttemptEnd(state=State.FAILED, reason=Reason.CHECKPOINTED, task="worker-1", restart=True)
# The end, the running task, its progress; how it is ended by an agent of all tasks, and by one of several agents.
STOPS = {
    "done, and it runs": (DONE, "worker-0", {}, Stop(grace_s=2.0), Stop(grace_s=2.0)),
    "both are done": (DONE, "worker-0", {"done": True}, Stop(wait_s=60.0, grace_s=2.0), Stop(wait_s=60.0, grace_s=2.0)),
    "it saves with the others": (SAVED, "worker-0", {"steps": True}, Stop(wait_s=30.0, grace_s=2.0), Stop(wait_s=30.0)),
    "it reports no steps": (SAVED, "worker-0", {}, Stop(grace_s=2.0), Stop()),
    "it serves": (SAVED, "ps-0", {"steps": True}, Stop(grace_s=2.0), Stop()),
    "another failed": (ERROR, "worker-0", {}, Stop(grace_s=2.0), Stop()),
    "it failed too, and saves": (ERROR, "worker-0", {"saving_s": 9.0}, Stop(wait_s=9.0, grace_s=2.0), Stop(wait_s=9.0)),
    "the disk of another is full": (DISK, "worker-0", {}, Stop(grace_s=2.0), Stop()),
    "one failed elsewhere": (READ, "worker-0", {"saving_s": 4.0}, Stop(wait_s=4.0, grace_s=2.0), Stop(wait_s=4.0)),
    "another left elsewhere": (ASKED, "worker-0", {"steps": True}, Stop(wait_s=30.0, grace_s=2.0), Stop(wait_s=30.0)),
    "the time is over": (LATE, "worker-0", {}, Stop(grace_s=5.0), Stop(grace_s=5.0)),
    "no task uses its GPU": (IDLE, "worker-0", {}, Stop(grace_s=5.0), Stop(grace_s=5.0)),
    "all hang": (HUNG, "worker-0", {"steps": True}, Stop(), Stop()),
}


@pytest.mark.parametrize(("end", "task", "about", "whole", "shared"), STOPS.values(), ids=STOPS)
def test_a_task_that_outlives_the_attempt_is_ended(end, task, about, whole, shared) -> None:
    seen = {"done": False, "saving_s": 0.0, "steps": False, **about}
    tasks = SERVED if task == "ps-0" else TASKS
    assert ending.stop(end, task, tasks, scope=WHOLE, limits=LIMITS, **seen) == whole
    assert ending.stop(end, task, tasks, scope=SHARED, limits=LIMITS, **seen) == shared


MAY_SAVE = (IDLE, LATE)
MAY_NOT_SAVE = (READ, replace(IDLE, restart=True), DISK, ERROR, HUNG, SAVED, DONE)


def test_a_task_may_save_on_sigterm_only_if_none_has_failed() -> None:
    assert [end for end in (*MAY_SAVE, *MAY_NOT_SAVE) if ending.may_save(end)] == [*MAY_SAVE]


def test_a_long_grace_gives_saving_tasks_more_time_and_a_short_one_gives_others_less() -> None:
    seen = {"done": False, "saving_s": 0.0, "steps": True, "scope": WHOLE}
    assert ending.stop(SAVED, "worker-0", TASKS, limits=Limits(grace_s=45.0), **seen).wait_s == 45.0
    assert ending.stop(ERROR, "worker-0", TASKS, limits=Limits(grace_s=1.0), **seen).grace_s == 1.0
    assert ending.stop(DONE, "worker-0", TASKS, limits=Limits(grace_s=1.0), **seen).grace_s == 1.0


def test_a_failed_task_saves_for_the_time_that_it_announced_until_it_has_left() -> None:
    saving = record("worker-0", {"saving_s": 9.0})
    assert ending.announced_s([saving, record("worker-0", {})]) == 9.0
    assert ending.announced_s([saving, record("worker-0", {}, kind="left")]) == 0.0
    assert ending.announced_s([]) == 0.0
