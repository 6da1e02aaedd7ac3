"""Parameter servers, and tasks that are lost: a worker of servers or an evaluator restarts alone, any other one with all."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support import LIMIT_S, until

import sdk
from sdk.cli import app
from sdk.records.recorder import read_events

from .hosts import Containers, Given, Play, Player

pytestmark = [pytest.mark.process, pytest.mark.spread]

RETRY = {"infrastructure": 2, "preemptions": None}
SERVED = {"workers": 2, "ps": 1}


def lives(player: Player, task: str) -> list[tuple[str, str]]:
    """Return the first lines of each process of a task in the first attempt: after how many restarts, and its TF_CONFIG."""
    lines = [line for line in player.output(task, 1).splitlines() if line.startswith("attempt 1 ")]
    return [(restarts, config) for *_, restarts, config in (line.split(" ", 4) for line in lines)]


def attempts(player: Player) -> list[int]:
    return [event.attempt for event in player.events("attempt_started")]


def ended(player: Player) -> Player:
    player.finish()
    player.wait()
    return player


def test_servers_that_never_end_are_stopped_as_soon_as_the_chief_is_done(play: Play) -> None:
    # Who waited for the servers would wait for an hour.
    given = Given(resources={"workers": 3, "ps": 2}, env={"STEPS": "5"}, limits={"exit_wait_s": 3600.0})
    player = play("local 3", given)
    player.wait()
    assert player.status.state is sdk.State.SUCCEEDED
    assert player.run.result().metrics == {"loss": 1.0}
    assert player.plan.tasks == ["chief-0", "worker-0", "worker-1", "ps-0", "ps-1"]
    assert "limit_exit_wait" not in player.output("chief-0", 1)


def test_a_failure_of_a_server_is_the_failure_of_the_run(play: Play) -> None:
    player = play("local 3", Given(resources=SERVED, faults="ps-0 step 1 error"))
    player.wait()
    assert (player.status.state, player.status.reason) == (sdk.State.FAILED, sdk.Reason.USER_ERROR)
    assert "ps-0 failed: ValueError: no such column" in player.status.failure.message


def test_a_chief_with_servers_stops_between_two_steps_and_takes_them_along(play: Play) -> None:
    player = play("local 3", Given(resources=SERVED, env={"LEAVES": "0"}))
    player.reach("step")
    # Who gave the servers their time would take an hour.
    player.run.cancel(grace_s=3600)
    player.wait()
    assert player.status.state is sdk.State.CANCELLED
    assert "saves after step" in player.output("chief-0", 1)


def test_a_killed_worker_of_parameter_servers_restarts_alone_at_its_address(play: Play, capsys) -> None:
    player = play("local 3", Given(resources={"workers": 3, "ps": 1}, retry=RETRY))
    player.reach("step")
    player.kill("worker-0")
    player.reach("step", tasks=["worker-0"], restarts=1)
    status = player.run.status()
    assert (status.state, status.attempts, status.restarted_alone) == (sdk.State.RUNNING, 1, {"worker-0": 1})
    assert "worker-0 was restarted alone 1 time" in player.why()
    # Two at the same instant, one of them in a second life, while the budget allows one more.
    player.preempt("worker-1")
    player.kill("worker-0")
    player.reach("step", tasks=["worker-0"], restarts=2)
    player.reach("step", tasks=["worker-1"], restarts=1)
    status = ended(player).status
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1), player.why()
    assert status.restarted_alone == {"worker-0": 2, "worker-1": 1}
    app.run(["status", player.run.id])
    assert "restarted alone in the last one: worker-0 2 times, worker-1 1 time" in capsys.readouterr().out
    assert [len(lives(player, task)) for task in ("chief-0", "ps-0")] == [1, 1], "they were restarted"
    restarts, configs = zip(*lives(player, "worker-0"), strict=True)
    assert restarts == ("0", "1", "2")
    assert configs == (configs[0],) * 3, "the others would not find it"
    assert '"ps": ["' in configs[0]
    why = " ".join(player.why().split())
    assert "worker-0 was killed by SIGKILL" in why
    assert "Restarting worker-0 alone after an infrastructure failure (killed). Restarts left after this one: 0." in why
    assert "Restarting worker-1 alone after a preemption (preempted)." in why


def test_a_killed_ps_restarts_all_tasks_and_a_worker_that_exits_with_75_only_itself(play: Play) -> None:
    player = play("local 3", Given(resources=SERVED, faults="worker-0 step 1 leave", retry=RETRY))
    player.reach("step", tasks=["worker-0"], restarts=1)
    player.reach("step", tasks=["chief-0", "ps-0"])
    [left] = player.events("task_restarting")
    assert (left.attempt, left.data["code"], left.data["reason"]) == (1, 75, "checkpointed")
    player.kill("ps-0")
    player.reach("step", attempt=2)
    status = ended(player).status
    assert (status.state, status.attempts, status.restarted_alone) == (sdk.State.SUCCEEDED, 2, {}), player.why()


@pytest.mark.full
def test_without_ps_a_worker_restarts_all_and_an_evaluator_itself_with_both_records(play) -> None:
    faults = "evaluator-0 start 1 error;evaluator-0 start 2 error"
    given = Given(resources={"workers": 2, "evaluator": True}, faults=faults, retry={**RETRY, "user_errors": 1})
    player = play("local 3", given)
    player.reach("start", tasks=["evaluator-0"], restarts=1)
    player.reach("step", tasks=["chief-0", "worker-0"])
    player.kill("worker-0")
    # Its error of the second attempt is one more than the budget allows.
    player.wait()
    status = player.status
    assert (status.state, status.reason) == (sdk.State.FAILED, sdk.Reason.USER_ERROR), player.why()
    assert status.attempts == 2 and "evaluator-0 failed: ValueError: no such column" in status.failure.message
    events = [event for event in player.events("entry", "failed", "restarting") if event.attempt == 1]
    own = sorted((event.sequence, event.kind) for event in events if event.source == "evaluator-0")
    assert own == [(1, "entry"), (2, "failed"), (3, "entry")]
    [restarting] = [event for event in events if event.kind == "restarting"]
    assert restarting.data["failure"]["task"] == "worker-0", "the evaluator's first error was settled"


@pytest.mark.full
def test_a_workers_new_container_joins_the_attempt_and_continues_output_and_records(play: Play) -> None:
    player = play("bucket 2", Given(resources=SERVED, retry=RETRY))
    player.reach("step")
    others = {task: player.pid(task) for task in ("chief-0", "ps-0")}
    # It is stopped with a notice first, then its successor is killed without one.
    for number, lose in enumerate((player.preempt, player.replace), 1):
        lose("worker-0")
        player.reach("step", tasks=["worker-0"], restarts=number)
    assert ended(player).codes == dict.fromkeys(player.plan.tasks, 0)
    assert {task: player.pid(task) for task in others} == others and attempts(player) == [1]
    assert [event.data["reason"] for event in player.events("task_restarting")] == ["preempted"] * 2
    assert [event.sequence for event in player.events("entry") if event.source == "worker-0"][:2] == [1, 2]
    # Output that a container killed without a notice had not uploaded is lost.
    begun = lives(player, "worker-0")
    assert (begun[0][0], begun[-1][0]) == ("0", "2"), begun


def until_it_waits_for_chief(player: Containers) -> None:
    """Wait until the worker's container has ended the first attempt, while the chief's is stopped or gone."""
    worker = player.containers["worker-0"]
    until(lambda: "waiting for chief-0" in worker.said.partition("attempt 1 has ended")[2], player.why)


@pytest.mark.full
def test_a_chief_is_replaced_while_its_workers_task_is_killed(play: Play) -> None:
    player = play("bucket 2", Given(resources={"workers": 2}, retry=RETRY))
    player.reach("step")
    player.containers["chief-0"].process.kill()
    player.kill("worker-0")
    until_it_waits_for_chief(player)
    player.replace("chief-0")
    player.reach("step", attempt=2)
    assert ended(player).codes == dict.fromkeys(player.plan.tasks, 0)
    assert attempts(player) == [1, 2]


@pytest.mark.full
def test_between_attempts_a_signal_ends_its_container_and_a_cancel_request_ends_all(play: Play) -> None:
    # The second attempt never begins: the chief's container is stopped before.
    player = play("bucket 2", Given(resources={"workers": 2}, retry=RETRY))
    player.reach("step")
    chief, worker = player.containers["chief-0"], player.containers["worker-0"]
    os.kill(chief.process.pid, signal.SIGSTOP)
    player.kill("worker-0")
    until_it_waits_for_chief(player)
    player.cancel()
    assert worker.code() == 4
    assert "the run was cancelled" in worker.said
    chief.process.send_signal(signal.SIGTERM)
    os.kill(chief.process.pid, signal.SIGCONT)
    assert chief.code() in (134, 137), chief.said
    assert attempts(player) == [1]


LEFT = """
import os, pathlib, time
import sdk
ctx, begun = sdk.context(), pathlib.Path(os.environ["BEGUN"])
while not ctx.should_stop():
    if ctx.task == "chief-0":
        begun.touch()
    elif begun.exists() and begun.with_name("go").exists():
        os._exit(0)
    time.sleep(0.02)
print("leaves its loop", flush=True)
"""


@pytest.mark.parametrize("outage", [False, True])
def test_a_task_that_exits_without_a_word_keeps_no_other_one_waiting(write, tmp_path, *, outage: bool) -> None:
    write("train.py", LEFT)
    run = sdk.submit("train.py", workers=2, env={"BEGUN": str(tmp_path / "begun")})
    place = Path(run.plan.paths.rendezvous(1), "closed")
    until((tmp_path / "begun").exists, run.why)
    if outage:
        # A file system that takes no files.
        place.parent.mkdir(exist_ok=True)
        place.symlink_to("/proc")
    (tmp_path / "go").touch()
    until(lambda: any(e.data["task"] == "worker-0" for e in read_events(run.plan.paths, ("exited",))), run.why)
    if outage:
        place.unlink()
        until(lambda: any(place.glob("worker-0.*")), run.why)
    # Who waited for its answer would not leave by itself.
    run.cancel(grace_s=20)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert "leaves its loop" in [line.text for line in run.logs(task="chief-0")]
