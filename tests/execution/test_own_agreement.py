"""The agent of all tasks of a run, which needs no other to agree with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import FakeClock

import sdk
from sdk.execution.agreement import LeaveError, OwnAgreement
from sdk.execution.ending import failed
from sdk.job.layout import RunPaths
from sdk.job.payload import Payload
from sdk.job.policies import Retry
from sdk.records.verdicts import CANCELLED, AttemptEnd
from sdk.status import Failure, Reason


class Own(OwnAgreement):
    """Asked to stop at `stop`, for a run of one task that may restart twice."""

    def __init__(self, folder: Path, *, earlier: int = 0, stop: float = 9e9) -> None:
        payload = Payload(
            run_id="r", run_url="/r", attempt=1, kind="script", target="t.py", function="", argv=[], kwargs={},
            bundle="b", digest="d", roots=[], tasks=["chief-0", "worker-0"], writes="chief",
            limits=sdk.Limits(hang_s=60.0), checkpoints=sdk.Checkpoints(),
        )  # fmt: skip
        self.clock, self._stop = FakeClock(), stop
        super().__init__(RunPaths(str(folder)), payload, Retry(infrastructure=2), self, self.clock, earlier=earlier)

    def stop_requested(self) -> tuple[AttemptEnd, float] | None:
        return (CANCELLED, 0.0) if self.clock.time >= self._stop else None

    def cancel_grace_s(self) -> float | None:
        return None


@pytest.mark.parametrize(("earlier", "folders", "number"), [(0, [], 1), (2, [], 3), (2, ["0004", "notes"], 5)])
def test_an_attempt_has_the_number_after_the_last_with_a_record_or_a_file(tmp_path, earlier, folders, number) -> None:
    for folder in folders:
        os.makedirs(tmp_path / "attempts" / folder)
    own = Own(tmp_path, earlier=earlier)
    assert [own.join().attempt, own.join().attempt] == [number, number + 1]


def test_a_run_that_is_asked_to_stop_waits_for_no_attempt(tmp_path: Path) -> None:
    own = Own(tmp_path, stop=1005.0)
    own.join(2.0)
    assert 1002 <= own.clock.time < 1003
    with pytest.raises(LeaveError):
        own.join(60.0)
    assert own.clock.time < 1006


def test_tasks_that_restart_alone_and_attempts_share_the_budgets_of_one_agent(tmp_path: Path) -> None:
    own, killed = Own(tmp_path), failed(Reason.KILLED, Failure(task="worker-0", message=""))
    assert own.restart_alone(1, "worker-0", Reason.KILLED).restart
    own.clock.time += 60
    assert own.conclude(1, killed, step=5).restart
    end = own.conclude(2, killed, step=9)
    assert (end.restart, end.step) == (False, 9)
    assert own.is_own(end) and own.known_end(2) is None and own.finished(2) == set()


def test_the_agent_of_all_tasks_knows_at_once_that_they_hang_or_are_idle(tmp_path: Path) -> None:
    own = Own(tmp_path)
    hang = own.hang(1, {"chief-0": 7, "worker-0": 5})
    assert hang is not None and hang.task == "worker-0"
    assert [own.is_idle(1, idle=idle) for idle in (True, False)] == [True, False]
