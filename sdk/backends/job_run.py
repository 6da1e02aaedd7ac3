"""The handle of a run whose agents a cluster runs as one job: its records in the root, its job, and the resulting status.

Ray and Kubernetes share it. Everything but the state of the job is in the root, so that a client can look at a run without the
cluster. The first client that sees a job end without a verdict writes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import ClassVar, Generic, Protocol, TypeVar

from ..clock import Clock
from ..errors import InputError, MissingError, PodliftError, StoreError, UnavailableError
from ..job.plan import Plan
from ..records import verdicts
from ..records.events import last_resume, source_of
from ..records.recorder import has_ended, known_resumes, read_events
from ..records.sync import cancels, index
from ..records.sync.index import KEYS
from ..records.verdicts import ServiceAnswer
from ..status import Failure, Reason, State, Status
from ..storage.registry import open_store
from ..storage.retry import Outage
from .containers import job_name
from .folder import CopiedRun, with_lost_job

_REFRESH_S = 1.0
# The process that submits a run creates its job within this time.
_START_LIMIT_S = 120.0
# The time that the agents get for a cancel request after its grace.
_CANCEL_MARGIN_S = 20.0


class RejectedError(PodliftError):
    """The cluster rejected a request without executing it. `status` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ClusterJob(Protocol):
    """A job as its cluster describes it."""

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> str:
        """The cluster's own word for its state."""

    @property
    def over(self) -> bool: ...

    @property
    def failed(self) -> bool: ...

    @property
    def is_waiting(self) -> bool:
        """True before it has machines, so that no task can read a request."""

    @property
    def started(self) -> float | None:
        """In Unix time."""


J = TypeVar("J", bound=ClusterJob)


class JobRun(CopiedRun, Generic[J]):
    """A subclass asks its cluster.

    Args:
        cluster: the cluster in a sentence, such as "The Ray cluster at http://head:8265".
    """

    # How long a process of the job may take to write the verdict after the end of the job.
    verdict_s: ClassVar[float] = 0.0

    def __init__(self, plan: Plan, clock: Clock, cluster: str) -> None:
        super().__init__(plan, clock, _REFRESH_S)
        self._cluster = cluster
        self._job: J | None = None
        self._loss = self._unreachable = ""
        self._over_since: float | None = None
        self._outage = Outage(clock, f"{cluster} does not answer", "The run goes on.")
        self._grace_over: dict[str, float] = {}
        self._stopped = ""

    def _ask(self, *, within_s: float) -> J:
        """Return the job from the cluster; MissingError if there is none. `within_s`: how long to repeat the request."""
        raise NotImplementedError

    def _stop(self) -> None:
        """Stop the job. Has no effect if it has ended."""
        raise NotImplementedError

    def _answer(self, job: J) -> ServiceAnswer:
        """Return the end of a job without a verdict."""
        raise NotImplementedError

    def _waits_for(self, job: J) -> tuple[State, Reason] | None:
        """Return the state of a run before its first attempt; None if the records have it."""
        raise NotImplementedError

    @property
    def _where(self) -> str:
        """The service and its address, for `status`."""
        raise NotImplementedError

    @property
    def _page(self) -> str:
        """The URL of the job in the cluster's own pages, "" for none."""
        return ""

    @property
    def _number(self) -> int:
        return known_resumes(self._plan.paths) + 1

    @property
    def _name(self) -> str:
        return job_name(self._plan.run_id, self._number)

    def _download(self, *, logs: bool) -> None:
        self._copy.refresh(self._plan.tasks, logs=logs)
        if has_ended(self._plan.paths):
            self._loss = ""
            return
        self._look()
        # What the tasks wrote before the end of the job is read.
        self._copy.refresh(self._plan.tasks, logs=logs)
        if has_ended(self._plan.paths):
            return
        if self._loss:
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
                self._job = self._ask(within_s=within_s)
                self._loss = self._unreachable = ""
        except MissingError:
            self._job, self._unreachable = None, ""
            self._loss = self._why_lost()
        except (RejectedError, InputError) as error:
            # Another machine may lack the address or the credentials of the cluster. The root has the records.
            self._unreachable = str(error)
        if self._outage.error is not None:
            self._unreachable = str(self._outage.error)

    def _why_lost(self) -> str:
        """Return why the job will not run, "" while it may be about to be created."""
        events = read_events(self._plan.paths, ("resumed", "attempt_started"))
        has_begun = any(event.data.get("job") == self._number for event in events if event.kind == "attempt_started")
        resumed = any(event.kind == "resumed" for event in events)
        record_key = KEYS.event(0, source_of("client", self._number - 1), 1, "resumed") if resumed else KEYS.plan
        with suppress(StoreError):
            if not has_begun and self._copy.files.age_s(record_key) < _START_LIMIT_S:
                return ""
        return (
            f"{self._cluster} has no job {self._name}: it was never created, or it was removed since. Next: podlift resume "
            "continues from the last checkpoint."
        )

    def supervised(self) -> bool:
        self.refresh()
        return not (self._loss or has_ended(self._plan.paths))

    def merge(self, status: Status) -> Status:
        job = self._job
        merged = replace(status, service=self._where, console=self._page)
        if job is not None and not merged.state.terminal:
            merged = replace(merged, vendor=job.status)
        merged = with_lost_job(merged, self._loss)
        if job is None or merged.state is not State.PENDING or (waits := self._waits_for(job)) is None:
            return merged
        state, reason = waits
        return replace(merged, state=state, reason=reason, since=max(merged.since, job.started or 0.0))

    def cancel(self, grace_s: float) -> None:
        """Leave a cancel request, which the agents read. Stop the job itself if it has not begun."""
        self.refresh()
        if has_ended(self._plan.paths):
            return
        self._copy.request_cancel(self._number - 1, grace_s)
        if self._job is not None and self._job.is_waiting:
            self._tried_to_stop()
        # The next refresh must not be skipped.
        self._refreshed.clear()

    def _cancel_keys(self) -> list[str]:
        resumes = last_resume(read_events(self._plan.paths, ("resumed",)))
        return self._copy.cancel_requests(self._number - 1, since=resumes)

    def _cancel_request(self, key: str) -> tuple[float, float]:
        return cancels.cancel_request(self._copy.store, key, now=self._clock.now(), grace_s=0.0)

    def _enforce_cancel(self, job: J) -> None:
        """Stop a job that has not begun, or has not ended some time after the grace of a cancel request."""
        # A resume takes back the requests before it.
        now, keys = self._clock.monotonic(), self._cancel_keys()
        for key in keys:
            if key not in self._grace_over:
                self._grace_over[key] = now + self._cancel_request(key)[1] + _CANCEL_MARGIN_S
        due = any(now >= self._grace_over[key] or job.is_waiting for key in keys)
        if self._stopped != job.id and due and self._tried_to_stop():
            self._stopped = job.id

    def _tried_to_stop(self) -> bool:
        try:
            self._stop()
        except (UnavailableError, RejectedError) as error:
            # For `why`. The next refresh tries again.
            self._unreachable = str(error)
            return False
        return True

    def _conclude(self, job: J) -> None:
        """Write the verdict of a job that left none."""
        now = self._clock.monotonic()
        self._over_since = self._over_since or now
        if now - self._over_since < self.verdict_s and not self._cancel_keys() and not job.failed:
            return
        self._write_verdict(self._answer(job), job)

    def _write_verdict(self, answer: ServiceAnswer, job: J | None = None) -> None:
        """Write the final record if the run has ended."""
        plan, store = self._plan, self._copy.store
        cancelled_at = min((self._cancel_request(key)[0] for key in self._cancel_keys()), default=None)
        run = index.run_end(store, read_events(plan.paths), plan.tasks, plan.model, answer, cancelled_at)
        if (end := verdicts.verdict(run)) is not None:
            data = verdicts.final(end, vendor=job.status if job else "", job=job.id if job else "")
            index.write_final(store, self._number, self._clock.now(), data)
            self._copy.refresh(plan.tasks, logs=True)


@contextmanager
def creating(plan: Plan, number: int, clock: Clock) -> Iterator[None]:
    """Record the verdict of a job that the cluster refuses to create, and name the next step after each error."""
    try:
        yield
    except RejectedError as error:
        store = open_store(plan.url, retry=index.SYNC_RETRY, clock=clock)
        end = verdicts.failed(Reason.REFUSED, Failure(task="", message=str(error)))
        index.write_final(store, number, clock.now(), verdicts.final(end, vendor="", job=""))
        raise PodliftError(
            f"The run {plan.run_id} was not started: {error} Next: podlift resume {shlex.quote(plan.url)} tries again."
        ) from error
    except UnavailableError as error:
        raise UnavailableError(
            f"It is unknown whether the run {plan.run_id} was started. {error} A job has the name of its run: no second one "
            f"is created. Next: podlift status {shlex.quote(plan.url)}."
        ) from error
