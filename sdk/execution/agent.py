"""The agent owns the tasks of one host, attempt after attempt: all tasks of a run on a laptop, one in a container.

It joins an attempt, runs it to its end, and joins the next one if the end demands it. Two values hold the differences between
laptop and cloud: the host (`Host`) defines how tasks are started and where they write, and the agreement (`Agreement`) how all
agents of the run decide on one start and one end of each attempt.

For example, the process of worker 1 of 3 is killed. On a laptop the one agent sees that within a twentieth of a second,
concludes the end of the attempt by itself, and stops the two other tasks: SIGTERM, two seconds, SIGKILL. In a cloud, the
agent in the container of worker 1 sees it, and writes the end into the run's store unless another agent has; the two others
read that end within two seconds, and each stops its task in the same way. A kill counts against the restarts after
infrastructure failures; if none is left, the end forbids a restart, and the run ends. Otherwise all join the next attempt after
the delay that the end names: the laptop at once, the containers when each of them has reported that it is ready. If the whole
container is killed, its agent too, the service starts another one for worker 1, and its new agent finds in `join` an attempt
that it is not a member of, and ends that attempt as preempted. With parameter servers, `Attempt` restarts a worker alone: the
attempt continues, and nothing of this happens.

`attempt.py` has the course of one attempt; `ending.py` decides about its end.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Generic

from ..job.payload import Payload
from ..logs import logger
from ..records.recorder import Recorder
from ..records.verdicts import AttemptEnd
from ..status import Reason, State
from .agreement import Agreement, Membership
from .attempt import Attempt
from .host import B, Host

_log = logger("runtime")


class Agent(Generic[B]):
    """Runs the tasks of a host; `payload` is the same for all attempts."""

    def __init__(self, host: Host[B], payload: Payload, agreement: Agreement) -> None:
        self._host, self._payload, self._agreement = host, payload, agreement

    def run(self) -> AttemptEnd:
        """Run attempts until no other follows on this host, and return how the last one ended.

        Raises:
            LeaveError: the run is stopped or cancelled before its next attempt, or has ended without this container.
        """
        membership = self._agreement.join()
        while True:
            end = self._run(membership)
            if not end.restart or self._host.stop_requested:
                return end
            _log.info(f"attempt {membership.attempt} has ended ({end.reason.value}). {end.why}")
            membership = self._agreement.join(end.delay_s)

    def _run(self, membership: Membership) -> AttemptEnd:
        setup, restarts = self._host.begin(membership), False
        try:
            end = Attempt(self._host, self._payload, self._agreement, membership, setup).run()
            self._record(end, membership, setup.recorder)
            restarts = end.restart and not self._host.stop_requested
            return end
        finally:
            self._host.tidy(membership.attempt, setup, more=restarts)

    def _record(self, end: AttemptEnd, membership: Membership, recorder: Recorder) -> None:
        """Record the end of an attempt in one agent: the one that has concluded it, or the first task's if that is gone.

        `end.nonce` names the container of the agent that has concluded it; a laptop has none.
        """
        is_first = self._payload.tasks[0] in self._host.tasks
        if not self._agreement.is_own(end) and not (is_first and end.nonce not in membership.members.values()):
            return
        if end.restart:
            record_restart(end, recorder)
        elif end.nonce and end.state is not State.SUCCEEDED:
            # The verdict on the run takes the failure of a single task from the task's own records.
            common = end.failure if end.failure and (not end.failure.task or end.reason is Reason.HUNG) else None
            record_end(replace(end, failure=common), recorder)


def record_end(end: AttemptEnd, recorder: Recorder) -> None:
    about = {"why": end.why, "not_restarted": end.not_restarted, "step": end.step}
    recorder.record("attempt_ended", reason=end.reason.value, failure=end.failure and asdict(end.failure), **about)


def record_restart(end: AttemptEnd, recorder: Recorder) -> None:
    failure = end.failure and asdict(end.failure)
    recorder.record("restarting", reason=end.reason.value, failure=failure, why=end.why, delay_s=end.delay_s)
