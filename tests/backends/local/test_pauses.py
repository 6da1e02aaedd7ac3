"""Tasks, and whole runs, that stand still for a while: a SIGSTOP, a laptop that sleeps."""

from __future__ import annotations

import pytest
from support import LIMIT_S, FakeClock

import sdk
from sdk.process import exit_reasons
from sdk.process.hang import Activity, HangDetector, Pauses
from sdk.records.events import Event, is_collateral, reason_of
from sdk.records.recorder import read_events
from sdk.status import Reason

pytestmark = [pytest.mark.process]

# What TensorFlow 2.21 says after a pause of 22 s of: a worker, the chief, both; and when a barrier or a connection is lost.
LOST = [
    ("UnavailableError", "Collective ops is aborted by: Error reported from /job:worker/task:0: The following tasks are "
     "unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:0\nThe tasks have crashed."),
    ("DeadlineExceededError", "Collective ops is aborted by: Deadline Exceeded\n\nRPC: "
     "/tensorflow.CoordinationService/Heartbeat"),
    ("AbortedError", "Collective ops is aborted by: Unexpected heartbeat request from an already-in-error task: "
     "/job:worker/replica:0/task:0 with existing error: UNAVAILABLE: Task /job:worker/replica:0/task:0 heartbeat timeout."),
    ("InternalError", "Barrier timed out. Id: WaitForAllTasks::1. This usually happens because a task triggered the barrier "
     "too early or too slowly."),
    ("FailedPreconditionError", "Device /job:worker/replica:0/task:1/device:CPU:0 current incarnation doesn't match with one "
     "in the group. This usually means this worker has restarted but the collective leader hasn't"),
    ("UnavailableError", "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused"),
]  # fmt: skip
OWN = [
    ("ValueError", "heartbeat"),
    ("InternalError", "Blas GEMM launch failed"),
    ("CancelledError", ""),
    ("UnavailableError", "the data service of the program is closed"),
    ("OutOfRangeError", "Collective ops is aborted by: End of sequence"),
    ("InternalError", "Collective ops is aborted by: Collective instance 109 expected type 0 and data_type 1 but got type 0 "
     "and data_type 9"),
    ("InvalidArgumentError", "Collective ops is aborted by: Shape mismatch in the collective instance 142. Op at device "
     "/job:chief/replica:0/task:0/device:CPU:0 expected shape [2] but another member in the group expected shape [5]."),
]  # fmt: skip


def failure(kind: str, message: str) -> Event:
    frame = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
    data = {"type": kind, "message": message, "traceback": f"{frame}{kind}: {message}"}
    return Event(attempt=1, source="chief-0", sequence=1, kind="failed", time=1.0, data=data)


REASONS = {Reason.INFRASTRUCTURE: LOST, Reason.USER_ERROR: OWN}


@pytest.mark.parametrize(("reason", "seen"), [(reason, seen) for reason, found in REASONS.items() for seen in found])
def test_a_lost_heartbeat_is_no_error_of_the_program_and_its_own_exception_is_one(reason, seen) -> None:
    event = failure(*seen)
    assert reason_of(event) is reason
    assert is_collateral(event) or reason is Reason.USER_ERROR
    assert reason_of(event, ["worker-0"]) is Reason.USER_ERROR, "a peer that has ended with 0 before was not lost"


@pytest.mark.parametrize(
    ("stopped", "paused_s", "said"),
    [
        (["worker-0"], 0.1, "worker-0 was suspended (SIGSTOP or a debugger)"),
        ([], 22.0, "suspended for 22 s"),
        ([], 0.1, "paused, too busy, or disconnected"),
    ],
)
def test_why_tasks_lost_touch_is_said_as_far_as_it_is_known(stopped: list[str], paused_s: float, said: str) -> None:
    assert said in exit_reasons.lost_peers_message("chief-0 failed.", stopped=stopped, paused_s=paused_s)


def test_a_gang_that_lost_touch_with_a_stopped_worker_starts_again(submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODLIFT_RETRY_INFRASTRUCTURE")
    run = submit(f"""
        import os, pathlib, signal, time

        class UnavailableError(Exception):
            pass

        mark = pathlib.Path(os.environ["AIP_MODEL_DIR"], "pid")
        if os.environ["PODLIFT_ATTEMPT"] == "2":
            pass
        elif os.environ["PODLIFT_TASK"] == "worker-0":
            mark.symlink_to(f"/proc/{{os.getpid()}}/stat")
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            while not mark.is_symlink() or " T " not in mark.read_text():
                time.sleep(0.01)
            raise UnavailableError({LOST[0][1]!r})
        """, workers=2)  # fmt: skip
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    (again,) = read_events(run.plan.paths, ("restarting",))
    assert again.data["reason"] == "infrastructure"
    assert "worker-0 was suspended (SIGSTOP or a debugger)" in again.data["failure"]["message"]


def test_time_without_a_look_at_the_tasks_makes_no_hang() -> None:
    clock = FakeClock()
    pauses = Pauses(clock)
    clock.sleep(100.0)  # imports
    pauses.begin()
    nothing = Activity(beats=(0, 0), output_bytes=0, cpu_s=0.0)
    detector = HangDetector(10.0, lambda: nothing, clock)

    def look(seconds: float) -> bool:
        until = clock.time + seconds
        while clock.time < until:
            clock.sleep(0.05)
            pauses.update()
            if detector.hang() is not None:
                return True
        return False

    assert not look(8.0)
    clock.sleep(3600.0)
    assert not look(0.5)
    assert pauses.longest_s == pytest.approx(3600.05)
    assert look(3.0)
