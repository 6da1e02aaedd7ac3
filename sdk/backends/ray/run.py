"""The handle of a run on a Ray cluster: its records in the root, its job on the cluster, and the resulting status.

The driver of the job writes the verdict. If it is gone without one, as with the cluster's head node, the first client that sees
it writes it. Everything but the state of the job is in the root, so that a client can look at a run without the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ...clock import Clock
from ...errors import MissingError, StoreError, UnavailableError
from ...job.plan import Plan
from ...records import verdicts
from ...records.events import last_resume, source_of
from ...records.recorder import has_ended, known_resumes, read_events
from ...records.sync import cancels, index
from ...records.sync.index import KEYS
from ...records.timeline import NOW, Moment
from ...records.verdicts import ServiceAnswer
from ...status import Reason, State, Status
from ...storage.retry import Outage
from ..folder import CopiedRun, with_lost_job
from . import answers
from .client import RayJob, RayJobs, RayRejectedError
from .options import Ray
from .request import submission_id

SERVICE = "Ray"
_REFRESH_S = 1.0
# The process that submits a run creates its job within this time.
_START_LIMIT_S = 120.0
# How long the driver may take for its verdict after the end of its job, and for a cancel request after its grace.
_VERDICT_S, _CANCEL_MARGIN_S = 10.0, 20.0
# The state of a run before its first record of an attempt, by that of its job.
WAITING = {"PENDING": (State.PENDING, Reason.QUEUED), "RUNNING": (State.PENDING, Reason.PREPARING)}


class RayRun(CopiedRun):
    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock, _REFRESH_S)
        self._client = RayJobs(Ray.of(plan.target), clock=clock)
        self._job: RayJob | None = None
        self._lost = self._unreachable = ""
        self._over_since: float | None = None
        self._outage = Outage(clock, f"The Ray cluster at {self._client.address} does not answer", "The run goes on.")
        self._grace_over: dict[str, float] = {}
        self._stopped = ""

    @property
    def _number(self) -> int:
        return known_resumes(self._plan.paths) + 1

    @property
    def _name(self) -> str:
        return submission_id(self._plan.run_id, self._number)

    def _download(self, *, logs: bool) -> None:
        self._copy.refresh(self._plan.tasks, logs=logs)
        if has_ended(self._plan.paths):
            self._lost = ""
            return
        self._look()
        # What the tasks wrote before the end of the job is read.
        self._copy.refresh(self._plan.tasks, logs=logs)
        if has_ended(self._plan.paths):
            return
        if self._lost:
            self._write_verdict(ServiceAnswer(job="forgotten"))
        elif self._job is not None and self._job.over:
            self._conclude(self._job)
        elif self._job is not None:
            self._enforce_cancel(self._job)

    def _look(self) -> None:
        """Ask the cluster for the job. While it does not answer, the last known state holds."""
        if self._job is not None and self._job.id != self._name:
            self._job, self._over_since = None, None
        if not self._outage.due:
            return
        within_s = 0.0 if self._outage.failures else 3.0
        try:
            with self._outage.asking():
                self._job = self._client.get(self._name, within_s=within_s)
                self._lost = self._unreachable = ""
        except MissingError:
            self._job, self._unreachable = None, ""
            self._lost = self._why_lost()
        except RayRejectedError as error:
            self._unreachable = str(error)
        if self._outage.error is not None:
            self._unreachable = str(self._outage.error)

    def _why_lost(self) -> str:
        """Return why the job will not run, "" while it may be about to be created."""
        resumed = [event for event in read_events(self._plan.paths, ("resumed",))]
        source = source_of("client", self._number - 1)
        known = [KEYS.event(0, source, 1, "resumed")] if resumed else [KEYS.plan]
        with suppress(StoreError):
            if self._copy.files.age_s(known[0]) < _START_LIMIT_S:
                return ""
        return (
            f"The Ray cluster at {self._client.address} has no job {self._name}: it was never created, or the cluster was "
            "started again since. Next: podlift resume continues from the last checkpoint."
        )

    def supervised(self) -> bool:
        self.refresh()
        return not (self._lost or has_ended(self._plan.paths))

    def merge(self, status: Status) -> Status:
        job = self._job
        merged = replace(status, service=f"{SERVICE} at {self._client.address}", console=self._page)
        if job is not None and not merged.state.terminal:
            merged = replace(merged, vendor=job.status)
        merged = with_lost_job(merged, self._lost)
        if job is None or merged.state is not State.PENDING or job.status not in WAITING:
            return merged
        state, reason = WAITING[job.status]
        if self._waiting() is not None:
            reason = Reason.PROVISIONING
        return replace(merged, state=state, reason=reason, since=max(merged.since, job.started or 0.0))

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
        """Return what the cluster did with the job, as far as it tells, and what the driver has waited for."""
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
        elif not has_ended(self._plan.paths) and (wanted := self._waiting()) is not None:
            moments.append(Moment(time=NOW, source=SERVICE, text="the job waits for resources", causes=(wanted,)))
        return moments

    def cancel(self, grace_s: float) -> None:
        """Leave a cancel request, which the tasks and the driver read. Stop the job itself if it has not begun."""
        self.refresh()
        if has_ended(self._plan.paths):
            return
        self._copy.request_cancel(self._number - 1, grace_s)
        if self._job is not None and self._job.status == "PENDING":
            with suppress(UnavailableError, RayRejectedError):
                self._client.stop(self._name)
        # The next refresh must not be skipped.
        self._refreshed.clear()

    def _cancel_keys(self) -> list[str]:
        resumes = last_resume(read_events(self._plan.paths, ("resumed",)))
        return self._copy.cancel_requests(self._number - 1, since=resumes)

    def _cancel_request(self, key: str) -> tuple[float, float]:
        return cancels.cancel_request(self._copy.store, key, now=self._clock.now(), grace_s=0.0)

    def _enforce_cancel(self, job: RayJob) -> None:
        """Stop a job whose driver has not ended some time after the grace of a cancel request."""
        now = self._clock.monotonic()
        for key in self._cancel_keys():
            if key not in self._grace_over:
                self._grace_over[key] = now + self._cancel_request(key)[1] + _CANCEL_MARGIN_S
        if self._stopped != job.id and any(now >= at for at in self._grace_over.values()):
            with suppress(UnavailableError, RayRejectedError):
                self._client.stop(job.id)
                self._stopped = job.id

    def _conclude(self, job: RayJob) -> None:
        """Write the verdict of a job whose driver left none."""
        now = self._clock.monotonic()
        self._over_since = self._over_since or now
        if now - self._over_since < _VERDICT_S and not self._cancel_keys() and job.status != "FAILED":
            return
        last = ""
        with suppress(UnavailableError, RayRejectedError):
            last = "\n".join(self._client.logs(job.id).splitlines()[-30:])
        output = f"{last}\n{job.message}".strip()
        self._write_verdict(answers.of_ended(job.id, status=job.status, last_output=output), job)

    def _write_verdict(self, answer: ServiceAnswer, job: RayJob | None = None) -> None:
        """Write the final record if the run has ended."""
        plan, store = self._plan, self._copy.store
        asked = min((self._cancel_request(key)[0] for key in self._cancel_keys()), default=None)
        run = index.run_end(store, read_events(plan.paths), plan.tasks, plan.model, answer, asked)
        if (end := verdicts.verdict(run)) is not None:
            data = verdicts.final(end, vendor=job.status if job else "", job=job.id if job else "")
            index.write_final(store, self._number, self._clock.now(), data)
            self._copy.refresh(plan.tasks, logs=True)
