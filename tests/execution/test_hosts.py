"""One table for all hosts: an act on the tasks of a run, and the records that must follow.

A run on a laptop has one agent for all tasks, and containers have one each; on Ray, a real driver starts those, where Ray is
installed, and on Kubernetes a Job of the test cluster. Where a host differs, the row says so in data.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import pytest
from ray_clusters import MISSING
from support import full_only

from .hosts import LOCAL, Containers, Given, OnKubernetes, OnRay, Play, Player, Submitted

pytestmark = [pytest.mark.process, pytest.mark.spread]

# Where the tasks run, or where their containers have their records, and how many tasks there are.
HOSTS = {"local 1": 1, "local 3": 3, "folder 2": 2, "bucket 1": 1, "bucket 2": 2, "ray 2": 2, "kubernetes 2": 2}
# Where agents alone act: Ray and Kubernetes start the agents of "folder 2", so they have the rows in which a service acts, too.
AGENTS = ("local 1", "local 3", "folder 2", "bucket 1", "bucket 2")
SEVERAL_AGENTS = ("local 3", "folder 2", "bucket 2")
SEVERAL = ("local 3", "folder 2", "bucket 2", "ray 2", "kubernetes 2")
RAY = [pytest.mark.full, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
LACKING = [name for name in ("lightkube", "starlette", "uvicorn") if find_spec(name) is None]
KUBERNETES = [pytest.mark.full, pytest.mark.skipif(bool(LACKING), reason=f"not installed: {LACKING}")]
MARKS = {"ray 2": RAY, "kubernetes 2": KUBERNETES}
# The state of a run, its exit code, and the exit code of containers that one of these has ended.
VERDICTS = {
    "done": ("SUCCEEDED", 0, 0),
    "user_error": ("FAILED", 1, None),
    "killed": ("FAILED", 3, 137),
    "hung": ("FAILED", 3, 3),
    "checkpointed": ("CHECKPOINTED", 75, 75),
    "cancelled": ("CANCELLED", 4, 75),
    "timeout": ("FAILED", 1, None),
    "accelerator_idle": ("FAILED", 1, 1),
}


@dataclass(frozen=True)
class Exit:
    """The record of a task's exit: `collateral` if another task, or the agent, has caused it."""

    code: int
    reason: str
    collateral: bool = False


# The records of tasks in containers that a service has asked to stop: only the service knows why.
ASKED = {"cancelled": "checkpointed", "timeout": "preempted"}
# A task that another one's end has ended: one agent sends SIGTERM first (`Scope.failed_grace_s`), others SIGKILL.
ENDED = {"local": Exit(-15, "preempted", True), "containers": Exit(-9, "killed", True)}
KILLED_BY_AGENT = Exit(-9, "killed", True)
KILLED, SAVED, DONE = Exit(-9, "killed"), Exit(75, "checkpointed"), Exit(0, "done")
STOPPED = Exit(-15, "preempted")


@dataclass(frozen=True, kw_only=True)
class End:
    """The records of an attempt.

    Args:
        reason: why it ended.
        victim: the exit of the task that the act hits.
        others: the exit of the others, by kind of host where it differs.
        why: a part of the sentence about what follows.
        failure: the beginning of the message about it, where the record has one; "VICTIM" stands for the task.
    """

    reason: str
    victim: Exit
    others: Exit | Mapping[str, Exit] = field(default_factory=lambda: ENDED)
    why: str = ""
    failure: str = ""


SUCCEEDED = End(reason="done", victim=DONE, others=DONE)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A program, the acts on it, and the ends of its attempts; the run ends as the last of them.

    Args:
        faults: acts of tasks on themselves (`hosts.PROGRAM`); "VICTIM" is a worker, or the only task.
        steps: of an attempt; None for as many as it takes until all that is done is done.
        acts: of the test, once all tasks are in a step: methods of `Player`.
        gpu_use: of the GPU of each agent, in percent; None for no GPU.
        any_exit: whether any one of the tasks may be the one with an exit that is not collateral.
        says: text in the output of the victim's first attempt.
        says_all: text in the outputs of all tasks of the first attempt.
        finding: the end of the record about the run beside its end.
        sample: hosts of containers that the default run has.
        full: whether local runs are left to the full run, too.
    """

    ends: tuple[End, ...]
    faults: str = ""
    steps: int | None = 5
    acts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    retry: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    gpu_use: int | None = None
    hosts: tuple[str, ...] = tuple(HOSTS)
    any_exit: bool = False
    says: str = ""
    says_all: str = ""
    finding: str = ""
    sample: str = ""
    full: bool = False


ONCE = {"infrastructure": 1}
RESTARTS = "Restarting after an infrastructure failure (killed). Restarts left after this one: 0."
KILL = End(reason="killed", victim=KILLED, why=RESTARTS, failure="VICTIM was killed by SIGKILL: ")
# The container of the other one was asked to end.
KILL_AT_SAVE = replace(KILL, others={**ENDED, "containers": Exit(-9, "preempted", True)})
ERROR = End(reason="user_error", victim=Exit(1, "user_error"), failure="VICTIM failed: ValueError: no such column")
HANG = End(
    reason="hung",
    victim=KILLED_BY_AGENT,
    others=KILLED_BY_AGENT,
    failure="The run hangs. No task has finished a batch for 1.5 s (limit_hang). Batches so far: chief-0 ",
)
IDLE = End(
    reason="accelerator_idle",
    victim=ENDED["local"],
    others=ENDED["local"],
    failure="The accelerator stood idle: no GPU of the run was used for 1.5s (limit_idle_accelerator).",
)
USED_UP = "Not restarted: 1 of 1 restarts after {} are used up"

ROWS = {
    "success": Row(ends=(SUCCEEDED,), says="through"),
    "error": Row(faults="VICTIM step 1 error", ends=(ERROR,), retry=ONCE, says="ValueError: no such column"),
    "error twice, with a budget of one": Row(
        hosts=AGENTS,
        faults="VICTIM step 1 error;VICTIM step 2 error",
        ends=(ERROR, End(reason="user_error", victim=ERROR.victim, why=USED_UP.format("an error in the program"))),
        retry={"user_errors": 1},
    ),
    "exit code": Row(
        faults="VICTIM step 1 exit",
        ends=(
            End(reason="user_error", victim=Exit(7, "user_error"), failure="VICTIM ended with exit code 7 and no trace"),
        ),
        says="last words",
    ),
    "killed at the start": Row(hosts=AGENTS, faults="VICTIM start 1 kill", ends=(KILL, SUCCEEDED), retry=ONCE),
    "killed in a step": Row(faults="VICTIM step 1 kill", ends=(KILL, SUCCEEDED), retry=ONCE, sample="folder 2"),
    "killed at the end": Row(hosts=AGENTS, faults="VICTIM end 1 kill", ends=(KILL, SUCCEEDED), retry=ONCE),
    "killed while all save": Row(
        faults="VICTIM save 1 kill", steps=None, acts=("preempt_other",), ends=(KILL_AT_SAVE, SUCCEEDED), retry=ONCE,
        env={"SAVES": "1"}, hosts=SEVERAL_AGENTS,
    ),
    "first task killed": Row(faults="chief-0 step 1 kill", ends=(KILL, SUCCEEDED), retry=ONCE, hosts=SEVERAL),
    "lost peer": Row(
        faults="VICTIM step 1 kill", ends=(KILL, SUCCEEDED), retry=ONCE, env={"NOTICES": "1"}, hosts=SEVERAL_AGENTS
    ),
    "all killed": Row(
        faults="all step 1 kill", ends=(End(reason="killed", victim=KILLED, others=KILLED, why=RESTARTS), SUCCEEDED),
        retry=ONCE, hosts=SEVERAL_AGENTS, any_exit=True,
    ),
    "crash after the end": Row(
        hosts=AGENTS,
        faults="VICTIM end 1 crash", ends=(SUCCEEDED,), retry=ONCE, says="through",
        finding=" was killed by SIGABRT in its exit handlers, after its program had returned and the last checkpoint "
        "was committed: it counts as done.",
    ),
    "nothing trained": Row(
        hosts=AGENTS,
        faults="chief-0 end 1 complain", steps=0, ends=(SUCCEEDED,),
        finding="No training step was seen; last error line: OSError: no such bucket",
    ),
    "a child that stays": Row(hosts=AGENTS, faults="VICTIM end 1 child", ends=(SUCCEEDED,)),
    "left with 75 twice, with a budget of one": Row(
        faults="all step 1 leave;all step 2 leave",
        ends=(
            End(reason="checkpointed", victim=SAVED, others=SAVED, why="Restarts left after this one: 0."),
            End(reason="checkpointed", victim=SAVED, others=SAVED, why="1 of 1 restarts after a preemption are used up"),
        ),
        retry={"preemptions": 1}, any_exit=True,
    ),
    "killed twice, with a budget of one": Row(
        hosts=AGENTS,
        faults="VICTIM step 1 kill;VICTIM end 2 kill",
        ends=(KILL, End(reason="killed", victim=KILLED, why=USED_UP.format("an infrastructure failure"))),
        retry=ONCE,
        full=True,
    ),
    "crash loop": Row(
        hosts=AGENTS,
        faults="VICTIM step 1 kill;VICTIM step 2 kill;VICTIM step 3 kill;VICTIM step 4 kill",
        ends=(
            End(reason="killed", victim=KILLED, why="Restarts left after this one: 8."),
            End(reason="killed", victim=KILLED, why="Restarts left after this one: 7."),
            End(reason="killed", victim=KILLED, why="Not restarted: 3 consecutive attempts ended at step "),
        ),
        retry={"infrastructure": 9},
        full=True,
    ),
    "hang": Row(
        hosts=AGENTS,
        faults="VICTIM step 1 hang;VICTIM step 2 hang",
        ends=(HANG, replace(HANG, why=USED_UP.format("an infrastructure failure"))),
        retry=ONCE,
        limits={"hang_s": 1.5},
        says="in stuck_here",
        says_all="most recent call first",
        full=True,
    ),
    "idle": Row(
        steps=None,
        ends=(IDLE,),
        retry=ONCE,
        acts=("idle",),
        limits={"idle_accelerator_s": 1.5},
        gpu_use=50,
        full=True,
    ),
    "preempted": Row(
        steps=None,
        sample="bucket 1",
        acts=("preempt",),
        ends=(End(reason="preempted", victim=STOPPED, why="after a preemption (preempted)"), SUCCEEDED),
        retry={"preemptions": 1},
    ),
    "preempted, and all save": Row(
        steps=None,
        acts=("preempt",),
        ends=(End(reason="checkpointed", victim=SAVED, others=SAVED, why="a preemption (checkpointed)"), SUCCEEDED),
        retry={"preemptions": 1},
        env={"SAVES": "1"},
        any_exit=True,
        says="saves after step",
    ),
    "container replaced": Row(
        steps=None, acts=("replace",), ends=(End(reason="preempted", victim=Exit(0, "")), SUCCEEDED),
        retry={"preemptions": 1}, hosts=("folder 2", "bucket 1", "bucket 2", "ray 2", "kubernetes 2"),
    ),
    "cancelled": Row(
        steps=None, acts=("cancel",), ends=(End(reason="cancelled", victim=SAVED, others=SAVED),), any_exit=True,
        says="saves after step",
    ),
    "cancelled, and the programs end by themselves": Row(
        steps=None, acts=("cancel",), ends=(End(reason="cancelled", victim=DONE, others=DONE),), any_exit=True,
        env={"LEAVES": "0"}, says="saves after step", hosts=LOCAL,
    ),
    # The state of other containers is the service's.
    "time limit": Row(
        steps=None, ends=(End(reason="timeout", victim=STOPPED, others=STOPPED, failure="The run took longer than timeout="),),
        limits={"timeout_s": 2, "grace_s": 1}, any_exit=True, hosts=(*LOCAL, "ray 2", "kubernetes 2"),
    ),
}  # fmt: skip


ALONE_USED_UP = USED_UP.format("an infrastructure failure")


def kind_of(host: str) -> str:
    return "local" if host in LOCAL else "containers"


def cases() -> list[Any]:
    """Return the rows with their hosts; the default run has the quick ones, and a sample of each host."""
    found = []
    for name, row in ROWS.items():
        for host in row.hosts:
            quick = host == row.sample or (host in LOCAL and not row.full)
            marks = [] if quick else MARKS.get(host, [pytest.mark.full])
            # A cluster serves all rows.
            marks = [*marks, pytest.mark.xdist_group(f"hosts: {host}")]
            found.append(pytest.param(name, host, id=f"{name}-{host}", marks=marks))
    return found


@pytest.mark.fidelity("whole-job-restarts", "local")
@pytest.mark.fidelity("timeout", "local")
@pytest.mark.fidelity("permanent-errors", "local")
@pytest.mark.parametrize(("name", "host"), cases())
def test_the_records_say_the_same_on_every_host(name: str, host: str, play: Play) -> None:
    row, workers = ROWS[name], HOSTS[host]
    victim = (
        row.faults.partition(" ")[0] if row.faults.startswith("chief") else "worker-0" if workers > 1 else "chief-0"
    )
    env = {**row.env, **({} if row.steps is None else {"STEPS": str(row.steps)})}
    faults = row.faults.replace("VICTIM", victim)
    given = Given(
        resources={"workers": workers}, faults=faults, env=env, retry=row.retry, limits=row.limits, gpu_use=row.gpu_use
    )
    player = play(host, given)
    act(player, row, victim)
    player.wait()
    check_attempts(player, row, victim, kind_of(host))
    check_output(player, row, victim)
    if isinstance(player, Submitted):
        check_verdict(player, row, victim)
    if isinstance(player, Containers | OnRay | OnKubernetes):
        check_containers(player, row)


@pytest.mark.parametrize("budget", [2, 1])
@pytest.mark.parametrize(
    "host",
    [
        "local 3",
        full_only("folder 2"),
        full_only("bucket 2"),
        *(pytest.param(host, marks=MARKS[host]) for host in MARKS),
    ],
)
def test_a_lost_worker_of_parameter_servers_is_restarted_alone(host: str, budget: int, play: Play) -> None:
    faults = "worker-0 step 1 kill;worker-0 step 1.1 kill"
    player = play(host, Given(resources={"workers": 2, "ps": 1}, faults=faults, retry={"infrastructure": budget}))
    if budget == 2:
        player.reach("step", tasks=["worker-0"], restarts=2)
        player.reach("step", tasks=["chief-0", "ps-0"])
        player.finish()
    player.wait()
    events = player.events("attempt_started", "restarting", "task_restarting", "attempt_ended", "final")
    alone = [event.data for event in events if event.kind == "task_restarting"]
    assert [(data["task"], data["code"], data["reason"]) for data in alone] == [("worker-0", -9, "killed")] * budget
    assert all(data["failure"]["message"].startswith("worker-0 was killed by SIGKILL: ") for data in alone)
    assert "Restarting worker-0 alone after an infrastructure failure (killed)." in alone[0]["why"]
    assert [event.attempt for event in events if event.kind in ("attempt_started", "restarting")] == [1]
    entered = [event.sequence for event in player.events("entry") if event.source == "worker-0"]
    assert entered == [*range(1, budget + 2)], "each life continues the records of the one before"
    exits = {event.data["task"]: event.data for event in player.events("exited")}
    if budget == 2:
        assert (exits["chief-0"]["code"], exits["chief-0"]["reason"]) == (0, "done")
    else:
        assert (exits["worker-0"]["code"], exits["worker-0"]["collateral"]) == (-9, False)
        assert exits["chief-0"]["collateral"] and exits["ps-0"]["collateral"]
    reason, state = ("done", "SUCCEEDED") if budget == 2 else ("killed", "FAILED")
    if isinstance(player, Submitted):
        status = player.status
        assert (status.reason.value, status.state.value, status.attempts) == (reason, state, 1)
        assert budget == 2 or status.failure.task == "worker-0"
        assert budget == 2 or status.failure.message.endswith(f"{ALONE_USED_UP} (retry_infrastructure).")
    elif isinstance(player, Containers):
        assert player.codes == dict.fromkeys(player.plan.tasks, VERDICTS[reason][2])
        assert [ALONE_USED_UP in e.data["why"] for e in events if e.kind == "attempt_ended"] == [True] * (budget == 1)


def act(player: Player, row: Row, victim: str) -> None:
    if not row.acts:
        return
    player.reach("step")
    for name in row.acts:
        if name == "cancel":
            player.cancel()
        elif name == "preempt_other":
            player.preempt(next(task for task in reversed(player.plan.tasks) if task != victim))
        else:
            getattr(player, name)(victim)
    if len(row.ends) > 1:
        player.reach("step", attempt=2)
        player.finish()


def check_attempts(player: Player, row: Row, victim: str, kind: str) -> None:
    events = player.events("attempt_started", "restarting", "attempt_ended", "exited", "final")
    assert [event.attempt for event in events if event.kind == "attempt_started"] == [*range(1, len(row.ends) + 1)]
    followed = {event.attempt: event for event in events if event.kind in ("restarting", "attempt_ended")}
    assert [event.attempt for event in events if event.kind == "restarting"] == [*range(1, len(row.ends))]
    for number, end in enumerate(row.ends, 1):
        if number in followed:
            data = followed[number].data
            asked = ASKED[end.reason] if end.reason in player.asked else end.reason
            assert (data["reason"], end.why in data["why"]) == (asked, True), data
            if followed[number].kind == "restarting":
                message = (data["failure"] or {"message": ""})["message"]
                assert message.startswith(end.failure.replace("VICTIM", victim))
                slowest = end.reason == "hung" and len(player.plan.tasks) > 1
                assert not slowest or f"The slowest task is {victim}" in message
        exits = {e.data["task"]: e for e in events if e.kind == "exited" and e.attempt == number}
        check_exits(exits, end, row, victim, kind, player)


def check_exits(exits: Any, end: End, row: Row, victim: str, kind: str, player: Player) -> None:
    found = {task: Exit(*map(event.data.get, ("code", "reason", "collateral"))) for task, event in exits.items()}
    if "replace" in row.acts and end.reason != "done":
        # The agent is gone with its task.
        assert victim not in found
        found[victim] = end.victim
    if kind == "local" and end.victim == ERROR.victim and found[victim].code == -15:
        # The record of its failure ends the attempt (`Scope.ends_with_record`), and it had not exited yet.
        found[victim] = replace(found[victim], code=1)
    others = end.others if isinstance(end.others, Exit) else end.others[kind]
    wanted = {task: end.victim if task == victim else others for task in player.plan.tasks}
    if player.stops_others:
        # A service that does may be faster than the agents.
        by_service = {task for task in found if (found[task], wanted[task]) == (ENDED["local"], ENDED["containers"])}
        found |= dict.fromkeys(by_service, ENDED["containers"])
    if row.any_exit and end.reason != "done":
        assert sum(bool(each.code) and not each.collateral for each in found.values()) <= 1
        found = {task: Exit(each.code, each.reason) for task, each in found.items()}
    if "NOTICES" in row.env and end.reason != "done":
        # It has noticed before it was ended, or not.
        assert all(found[task].collateral for task in found if task != victim)
        found = {victim: found[victim]}
        wanted = {victim: end.victim}
    assert found == wanted


def check_output(player: Player, row: Row, victim: str) -> None:
    said = {task: player.output(task, 1) for task in player.plan.tasks}
    assert row.says in said[victim]
    assert all(row.says_all in each for each in said.values())
    steps = [re.findall(r"saves after step (\d+)", each) for each in said.values()]
    assert steps == [steps[0]] * len(steps), "all stop after the same step"
    if "replace" not in row.acts:  # the rest that was not uploaded is gone with the container
        for number in range(1, len(row.ends) + 1):
            # On a busy machine, the time limit may come before the program.
            began = "timeout_s" not in row.limits or (player.shared / str(number) / f"{victim}.start").exists()
            said_it = f"attempt {number} {victim}" in player.output(victim, number)
            assert said_it or not began, "every attempt keeps its output"
    if "exit" in row.faults:
        exited = [event.data for event in player.events("exited") if event.data["task"] == victim]
        assert row.says in exited[-1]["output"], "the verdict on the run shows it"
    for file in player.shared.glob("*/*.child"):
        with file.open() as held:
            # It had the lock.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    findings = [event.data["text"] for event in player.events("finding")]
    assert (len(findings), row.finding in "".join(findings)) == (1 if row.finding else 0, True)


def check_verdict(player: Submitted, row: Row, victim: str) -> None:
    status, end = player.status, row.ends[-1]
    assert (status.reason.value, status.attempts) == (end.reason, len(row.ends)), player.why()
    assert (status.state.value, status.exit_code) == VERDICTS[end.reason][:2]
    if end.failure or end.why:
        assert status.failure is not None and status.failure.message.startswith(end.failure.replace("VICTIM", victim))
        assert end.why in status.failure.message
        # The stacks of a hang are longer than that.
        assert end.reason == "hung" or row.says in status.failure.traceback


def check_containers(player: Containers | OnRay | OnKubernetes, row: Row) -> None:
    end = row.ends[-1]
    if isinstance(player, Containers):
        code = VERDICTS[end.reason][2]
        assert player.codes == dict.fromkeys(player.plan.tasks, end.victim.code if code is None else code)
    # The others have stayed.
    assert player.started == len(player.plan.tasks) + sum(name not in ("cancel", "idle") for name in row.acts)
