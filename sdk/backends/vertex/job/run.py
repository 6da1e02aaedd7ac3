"""The handle of a run on Vertex AI: its records in the bucket, its job at the vendor, and the resulting status.

Such a run has no supervisor. Its tasks write their records, the vendor restarts tasks on preempted machines, and the first
client that finds the job ended records the decision, which then holds for every client: a verdict, or another job. Only clients
that wait for the run submit the next job (`attending`); read-only clients never do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain

from ....clock import Clock
from ....errors import AccessError, PodliftError, StoreError, UnavailableError
from ....execution.tail import TAIL_BYTES
from ....job.plan import Plan
from ....job.targets import LONGEST_S
from ....logs import logger
from ....records import spending, verdicts
from ....records.events import Event
from ....records.recorder import has_ended, read_events
from ....records.sync import cancels, index
from ....records.sync.index import SYNC_RETRY
from ....records.timeline import NOW, Moment
from ....records.verdicts import AttemptEnd, ServiceAnswer, failed
from ....runtime import secret_values
from ....status import Failure, Reason, State, Status
from ....storage.gcs.files import BucketFiles
from ....text import size
from ...base import LogLine
from ...containers import Archives
from ...folder import CopiedRun, with_lost_job
from .. import service
from ..client import OutcomeUnknownError, VertexRejectedError
from ..options import Vertex
from ..wait import resubmit
from ..wait.keeper import KeeperFacts
from ..wait.waiting import Resubmission, WaitingLease
from . import create_job, history, logs, states
from .create_job import CreatedJob
from .latest_job import LatestJob
from .request import replica_names

_log = logger("backends.vertex")

# The job is cancelled this long after the end of the requested grace.
_CANCEL_MARGIN_S = 15.0
# A job's error text is available about a minute after its end.
_ERROR_TEXT_S = 120.0
_NOBODY_WAITED = (
    "The retry budget allows another job, but no process waited for the run and could submit one. Next: podlift resume, then "
    "podlift wait."
)


class VertexRun(CopiedRun):
    """`archives` are the archives of a keeper's start; a client uploads its own."""

    def __init__(self, plan: Plan, clock: Clock, archives: Archives | None = None) -> None:
        self._polling = logs.polling()
        super().__init__(plan, clock, self._polling.poll_s)
        service.check()
        self._options = Vertex.of(plan.target)
        self._store = self._copy.store
        self._job = LatestJob(plan, self._store, clock)
        self._lease = WaitingLease(plan.url, self._store, clock)
        self._attended: Resubmission | None = None
        self._archives = archives
        self._keeper = KeeperFacts(plan, self._store, clock)
        self._files = BucketFiles(plan.url, retry=SYNC_RETRY, clock=clock)
        # When each cancel request was made, by the clock of the bucket, and the monotonic time at which its grace is over.
        self._cancels: dict[str, tuple[float, float]] = {}
        self._continuing = False  # the job has ended, and the waiting clients are about to submit another
        self._cancelled = ""  # the name of the job that was cancelled at the end of its grace
        self._beginnings: Sequence[Event] = ()  # of attempts, as of the last look

    def _download(self, *, logs: bool) -> None:
        if has_ended(self._plan.paths) and self._job.vendor is None:
            # Its verdict is here, so the vendor is not queried.
            self._copy.refresh(self._plan.tasks, logs=logs)
            if has_ended(self._plan.paths):
                self._job.restore()
                return
        while True:
            number = self._job.number
            # Queried first, so that everything that tasks wrote before the end of the job is read.
            self._job.refresh()
            self._copy.refresh(self._plan.tasks, logs=logs)
            if self._job.number == number:
                break
        self._continuing = False
        if has_ended(self._plan.paths):
            return
        if not self._job.is_created:
            if self._cancel_requests():
                self._end_without_job()
        elif self._job.over:
            self._conclude()
        elif self._job.vendor is not None:
            self._enforce_cancel(self._job.vendor)
        self._job.cancel_strays()

    def supervised(self) -> bool:
        self.refresh()
        return not ((self._job.loss and not self._continuing) or has_ended(self._plan.paths))

    def merge(self, status: Status) -> Status:
        merged = states.merge(status, self._job.vendor, project=str(self._options.project), stand_in=service.stand_in())
        if not has_ended(self._plan.paths):
            merged = self._spent().merged(merged)
        if self._continuing and not merged.state.terminal:
            return replace(merged, state=State.RUNNING, reason=Reason.RESTARTING)
        return with_lost_job(merged, self._job.loss)

    @contextmanager
    def attending(self) -> Iterator[Callable[[], None]]:
        """Submit the next job of the run whenever one is to follow, as long as the function that this yields is called."""
        missing = [name for name in self._plan.job.copied if name not in os.environ]
        if missing:
            _log.warning(
                f"This process cannot submit another job if this one is taken away: {', '.join(missing)} is not set here, and "
                "the program needs it."
            )
            yield lambda: None
            return
        self._attended = Resubmission(self._plan, self._copy.store, self._job, self._clock, self._archives)
        try:
            yield self._attend
        finally:
            attended, self._attended = self._attended, None
            with suppress(StoreError):
                attended.lease.release()

    @property
    def refused(self) -> str:
        """Why this process, which waits, may not submit the next job; "" while it may."""
        return self._attended.refused if self._attended is not None else ""

    def _attend(self) -> None:
        self.refresh()
        attended, now = self._attended, self._clock.monotonic()
        if attended is None:
            return
        attended.tell()
        if now - attended.last_look < self._polling.poll_s or has_ended(self._plan.paths):
            return
        attended.last_look = now
        if not attended.gave_up:
            try:
                attended.lease.renew()
            except AccessError as error:
                attended.give_up(str(error))
        if attended.submit_next():
            # The next refresh must not be skipped.
            self._refreshed.clear()

    def history(self) -> Sequence[Moment]:
        """Return the actions of Vertex AI on the run's jobs, from its log if that is readable."""
        job, log = self._job.vendor, list[logs.LogEntry]()
        unread: list[Moment] = []
        try:
            if job is not None:
                ahead_s = self._job.ahead_s(self._job.number)
                log = logs.of_service(str(self._options.project), job.id, self._clock, ahead_s)
        except PodliftError as error:
            # The times and the state of the job explain a lot without it.
            unread = [Moment(time=NOW, source=logs.SERVICE, text=str(error))]
        moments = unread + history.moments(
            read_events(self._plan.paths, ("final",)),
            job,
            self._job.notes(),
            log,
            provisioning=self._provisioning,
            now=self._clock.now(),
        )
        return [
            replace(
                moment, text=service.quoted(moment.text), causes=tuple(service.quoted(cause) for cause in moment.causes)
            )
            for moment in moments
        ]

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the tasks' lines. The lines of "service" come from the vendor."""
        names = replica_names(self._plan.tasks)
        replica = logs.replica_of(task, self._plan.tasks, names)
        if task == logs.SERVICE:
            names = {logs.SERVICE: logs.SERVICE}
        return self._lines(replica, names, attempt, follow)

    def _lines(
        self, replica: str | None, names: dict[str, str], attempt: int | None, follow: bool
    ) -> Iterator[LogLine]:
        number = 1
        while True:
            created = self._wait_for_job(number, follow)
            self._beginnings = read_events(self._plan.paths, logs.BEGINNINGS)
            # A job that was never created has no lines: a resume created the next one.
            if created is not None:
                reader = logs.LogReader(
                    partial(logs.query, clock=self._clock),
                    str(self._options.project),
                    created.id,
                    polling=self._polling,
                    clock=self._clock,
                    ahead_s=self._job.ahead_s(number),
                )
                following = follow and number == self._job.number
                ended = partial(self._has_ended, number)
                entries = reader.follow(replica, ended) if following else reader.read(replica)
                tasks = [name for key, name in names.items() if name != logs.SERVICE and replica in (None, key)]
                service_lines = logs.lines(entries, names, self._attempt_at, attempt)
                for line in _or_uploaded(service_lines, self._uploaded_lines(number, attempt, tasks)):
                    own = line.task == logs.SERVICE
                    yield replace(line, text=service.quoted(line.text)) if own else line
            if not self._follows(number, follow):
                return
            number += 1

    def _follows(self, number: int, wait: bool) -> bool:
        """Return whether another job follows this one; `wait` until that is decided."""
        outage = logs.outage(self._clock)
        while number >= self._job.number:
            if not wait or has_ended(self._plan.paths) or (self._job.loss and not self._continuing):
                return False
            self._clock.sleep(max(self._polling.poll_s, outage.pause_s))
            with outage.asking():
                self.refresh()
        return True

    def _uploaded_lines(self, job: int, attempt: int | None, tasks: list[str]) -> Iterator[LogLine]:
        """Yield the lines in the run's directory, of the attempts of a job that have started so far."""
        job_attempts = {event.attempt for event in self._beginnings if event.data.get("job") == job}
        attempts = sorted(number for number in job_attempts if attempt in (None, number))
        yield from logs.kept_lines(self._plan.url, attempts if tasks else [], tasks)

    def _wait_for_job(self, number: int, follow: bool) -> CreatedJob | None:
        outage = logs.outage(self._clock)
        while True:
            with outage.asking() if follow else nullcontext():
                self.refresh()
            if outage.failures:
                self._clock.sleep(outage.pause_s)
                continue
            created = self._job.created(number)
            ended = self._job.loss or number < self._job.number or has_ended(self._plan.paths)
            if created is not None or not follow or ended:
                return created
            self._clock.sleep(self._polling.poll_s)

    def _attempt_at(self, task: str, time: float) -> int:
        return logs.attempt_at(self._beginnings, task, time)

    def _has_ended(self, number: int) -> tuple[bool, float]:
        self.refresh()
        self._beginnings = read_events(self._plan.paths, logs.BEGINNINGS)
        if number < self._job.number:
            # Another job follows it.
            return True, self._clock.now()
        job = self._job.vendor
        return self._job.over, (job.ended or 0.0) if job is not None else 0.0

    def cancel(self, grace_s: float) -> None:
        """Leave a cancel request for the tasks. Cancel the job itself if it does not run yet, or without a grace.

        The request counts for this job and for all later ones, so that it holds even if this process ends here.
        """
        self.refresh()
        self._copy.request_cancel(self._job.number - 1, grace_s)
        # Another process may just have decided that a job follows, before it could see the request.
        self._refreshed.clear()
        self.refresh()
        job = self._job.vendor
        if job is not None and not job.over and (grace_s <= 0 or job.is_waiting):
            self._job.client.cancel(job.name)
        # The next refresh must not be skipped.
        self._refreshed.clear()

    def _end_without_job(self) -> None:
        """End a cancelled run that has no job at this moment."""
        if self._job.write_tombstone():
            self._write_final(self._clock.now(), verdicts.final(verdicts.CANCELLED, vendor="", job=""))

    def _enforce_cancel(self, job: states.VendorJob) -> None:
        if any(self._clock.monotonic() >= over + _CANCEL_MARGIN_S for _, over in self._cancel_requests()):
            self._cancel_job(job.name)

    def _cancel_job(self, name: str) -> None:
        """Cancel a job, once, after its time to stop by itself."""
        if self._cancelled == name:
            return
        self._cancelled = name
        try:
            self._job.client.cancel(name)
        except VertexRejectedError as error:
            # A read-only client may not have the permission. The tasks have the request, too.
            _log.warning(f"The time to stop by itself is over for the job. {error}")
        except OutcomeUnknownError:
            self._cancelled = ""

    def _cancel_lost_job(self) -> bool:
        """Cancel the job, which the service may find again; False if the request may not have reached the service."""
        created = self._job.created(self._job.number)
        if created is not None:
            self._cancel_job(created.name)
        return created is None or bool(self._cancelled)

    def _cancel_requests(self) -> list[tuple[float, float]]:
        keys = self._copy.cancel_requests(self._job.number - 1, self._job.first - 1)
        for key in keys:
            if key not in self._cancels:
                # The clock of the machine that has written it may be wrong.
                time, age_s = self._files.written(key)
                _, grace_s = cancels.cancel_request(self._store, key, now=time, grace_s=0.0)
                self._cancels[key] = time, self._clock.monotonic() + grace_s - age_s
        return [self._cancels[key] for key in keys]

    def _now(self) -> float:
        """Return the Unix time by the clock of the bucket: this machine's clock may be wrong."""
        return sum(self._files.written(create_job.KEYS.plan))

    def _conclude(self) -> None:
        """Record the decision after the end of the job, unless another client was faster, and download it."""
        job, cancelled_at = self._job.vendor, min((time for time, _ in self._cancel_requests()), default=None)
        end, more = self._end(job, cancelled_at), dict[str, object]()
        is_known = end is not None
        if end is None and job is None:
            end = failed(Reason.JOB_LOST, Failure(task="", message=self._job.loss))
        if end is None:
            return
        booked = spending.booked(self._spent())
        # A cancelled run never continues.
        if cancelled_at is None:
            ended = resubmit.JobEnd(
                plan=self._plan,
                number=self._job.number,
                first=self._job.first,
                location=self._job.location,
                end=end,
                booked=booked,
                events=read_events(self._plan.paths),
            )
            end, more = resubmit.following(ended)
        if more and (self._attended is None or self._attended.gave_up):
            # A keeper needs some minutes to start.
            if self._lease.is_held() or self._keeper.is_starting(self._job.first):
                self._continuing = True
                return
            end, more = replace(end, why=_NOBODY_WAITED), {}
        if not is_known and not more:
            # Without a verdict, a lost job may be found again.
            return
        if job is None and end.state is State.CANCELLED and not self._cancel_lost_job():
            return
        about = states.about(job) if job else {"vendor": "", "job": ""}
        self._write_final((job and job.ended) or self._now(), verdicts.final(end, **about, **booked, **more))
        # Until the next refresh, the lost job is still the latest one that is known here.
        self._continuing = bool(more)

    def _write_final(self, time: float, data: Mapping[str, object]) -> None:
        index.write_final(self._store, self._job.number, time, data)
        self._copy.refresh(self._plan.tasks, logs=True)

    def _end(self, job: states.VendorJob | None, cancelled_at: float | None) -> AttemptEnd | None:
        """Return how the run has ended if no job follows; None while that is not known."""
        events, tasks = read_events(self._plan.paths), self._plan.tasks
        run = index.run_end(self._store, events, tasks, self._plan.model, ServiceAnswer(job="forgotten"), cancelled_at)
        if job is None:
            return verdicts.verdict(run)
        answer = partial(
            states.answer,
            job,
            tasks,
            is_done=verdicts.done_at(events, tasks[0]) is not None,
            provisioning=self._provisioning,
            timeout_s=self._job.timeout_s,
        )
        report = answer()
        end = verdicts.verdict(replace(run, service=report))
        if end is None or end.failure is None or report.end is None or end.failure is not report.end.failure:
            return end and self._worded(states.advised(end))
        if (
            job.state == f"{states.PREFIX}FAILED"
            and not job.message
            and self._now() < (job.ended or 0.0) + _ERROR_TEXT_S
        ):
            return None
        replica = states.diagnosed(job, self._provisioning).replica
        if report.knows == "exit" and replica:
            query = partial(logs.query, clock=self._clock)
            output = logs.last_output(query, str(self._options.project), job.id, replica)
            # They are known here only if this shell has them.
            secrets = secret_values.words(os.environ, self._plan.job.copied)
            report = answer(last_output=secret_values.hidden(output, secrets))
            end = verdicts.verdict(replace(run, service=report))
        return end and self._worded(end)

    def _worded(self, end: AttemptEnd) -> AttemptEnd:
        failure = end.failure
        return (
            end if failure is None else replace(end, failure=replace(failure, message=service.quoted(failure.message)))
        )

    @property
    def _provisioning(self) -> str:
        """The provisioning of the latest job."""
        return str(self._options.locations_for(self._plan.job.resources)[self._job.location].provisioning)

    def _spent(self) -> spending.Spent:
        """Return the expenses of the latest job so far."""
        job, price = self._job.vendor, resubmit.price(self._plan, self._job.location)
        started, until = (job.started, job.ended or self._clock.now()) if job else self._may_have_run()
        used = spending.spent(started, until, price)
        since = max((event.time for event in self._job.continued(self._job.first)), default=None)
        return self._keeper.added(used, self._job.first, since, until)

    def _may_have_run(self) -> tuple[float | None, float]:
        """Return the start of the first attempt of a job that the service has lost, and until when it may have run."""
        starts = read_events(self._plan.paths, ("attempt_started",))
        started = min((event.time for event in starts if event.data.get("job") == self._job.number), default=None)
        if started is None:
            return None, 0.0
        return started, min(self._now(), started + (self._job.timeout_s or LONGEST_S))


def _or_uploaded(lines: Iterator[LogLine], uploaded_lines: Iterator[LogLine]) -> Iterator[LogLine]:
    """Yield the service's lines; if it has none, or refuses them, the lines in the run's directory."""
    why = "The log service has no lines of this job"
    first = None
    try:
        first = next(lines, None)
    except (AccessError, UnavailableError) as error:
        other = next(uploaded_lines, None)
        if other is None:
            raise
        why, uploaded_lines = str(error), chain([other], uploaded_lines)
    if first is not None:
        yield first
        yield from lines
        return
    for number, line in enumerate(uploaded_lines):
        if number == 0:
            _log.warning(
                f"{why.rstrip('.')}. These lines are the last {size(TAIL_BYTES)} of each task, from the run's directory."
            )
        yield line
