"""The handle of a run on a Ray cluster. The driver of the job writes the verdict; if it is gone without one, as with the
cluster's head node, the first client that sees it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ...clock import Clock
from ...errors import UnavailableError
from ...job.plan import Plan
from ...records.events import source_of
from ...records.recorder import has_ended, read_events
from ...records.timeline import NOW, Moment
from ...records.verdicts import ServiceAnswer
from ...status import Reason, State
from ..job_run import JobRun, RejectedError
from . import answers
from .client import RayJob, RayJobs
from .options import Ray

SERVICE = "Ray"
# The state of a run before its first record of an attempt, by that of its job.
WAITING = {"PENDING": (State.PENDING, Reason.QUEUED), "RUNNING": (State.PENDING, Reason.PREPARING)}


class RayRun(JobRun[RayJob]):
    verdict_s = 10.0

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._client = RayJobs(Ray.of(plan.target), clock=clock)
        super().__init__(plan, clock, f"The Ray cluster at {self._client.address}")

    def _ask(self, *, within_s: float) -> RayJob:
        return self._client.get(self._name, within_s=within_s)

    def _stop(self) -> None:
        self._client.stop(self._name)

    def _answer(self, job: RayJob) -> ServiceAnswer:
        last = ""
        with suppress(UnavailableError, RejectedError):
            last = "\n".join(self._client.logs(job.id).splitlines()[-30:])
        return answers.of_ended(job.id, status=job.status, last_output=f"{last}\n{job.message}".strip())

    def _waits_for(self, job: RayJob) -> tuple[State, Reason] | None:
        if job.status not in WAITING:
            return None
        state, reason = WAITING[job.status]
        return state, Reason.PROVISIONING if self._waiting() is not None else reason

    @property
    def _where(self) -> str:
        return f"{SERVICE} at {self._client.address}"

    @property
    def _page(self) -> str:
        return f"{self._client.address}/#/jobs/{self._name}"

    def _waiting(self) -> str | None:
        """Return which resources the driver waits for; None if it waits for none."""
        own = source_of("driver", self._number - 1)
        waits = [event for event in read_events(self._plan.paths, ("waiting", "placed")) if event.source == own]
        last = max(waits, key=lambda event: event.sequence, default=None)
        return None if last is None or last.kind == "placed" else str(last.data.get("text", ""))

    def history(self) -> Sequence[Moment]:
        """Return the actions of the cluster that it reports for the job, and the waits of the driver."""
        moments = []
        texts = {"waiting": "waits for resources", "placed": "has the resources of all tasks"}
        for event in read_events(self._plan.paths, ("waiting", "placed", "container_restarting")):
            text = texts.get(event.kind, f"the container of {event.data.get('task')} is started again")
            causes = (str(event.data["text"]),) if event.data.get("text") else ()
            moments.append(Moment(time=event.time, source=SERVICE, text=text, causes=causes))
        job = self._job
        if job is not None and job.started is not None:
            moments.append(Moment(time=job.started, source=SERVICE, text=f"started job {job.id}"))
        if job is not None and job.over and job.ended is not None:
            causes = (job.message.partition("\n")[0],) if job.message else ()
            moments.append(Moment(time=job.ended, source=SERVICE, text=f"the job ended: {job.status}", causes=causes))
        if self._unreachable:
            moments.append(Moment(time=NOW, source=SERVICE, text=self._unreachable))
        elif not has_ended(self._plan.paths) and (resources := self._waiting()) is not None:
            moments.append(Moment(time=NOW, source=SERVICE, text="the job waits for resources", causes=(resources,)))
        return moments
