"""The latest job of a run: found by the name in the run's directory or by its label, and its last known state."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ....clock import Clock
from ....errors import MissingError
from ....job.plan import Plan
from ....records.events import Event, continues, last_resume, resume_count, source_of
from ....records.recorder import has_ended, read_events
from ....records.sync.index import SYNC_RETRY
from ....storage import emulator, emulator_clock
from ....storage.gcs.files import BucketFiles
from ....storage.retry import Outage
from ....storage.store import Store
from .. import service
from ..client import JobClient, OutcomeUnknownError, VertexRejectedError
from ..options import Vertex
from . import create_job, states
from .create_job import KEYS, CreatedJob
from .states import VendorJob

# A run without a job counts as lost after this time: its start may take long, and the list of jobs may be out of date.
_START_LIMIT_S = 600.0
_STRAYS_S = 30.0
_SHORT_S = 5.0


class LatestJob:
    """`vendor` is None while there is no job; `loss` is the reason why none will follow, or "".

    The times of an emulator's job are translated to this machine's clock, which its tasks use for their records.
    """

    def __init__(self, plan: Plan, store: Store, clock: Clock) -> None:
        self.vendor: VendorJob | None = None
        self.loss = ""
        self.client = JobClient(str(Vertex.of(plan.target).project), clock=clock)
        self._plan = plan
        self._regions = Vertex.of(plan.target).region_names
        self._store = store
        self._files = BucketFiles(plan.url, retry=SYNC_RETRY, clock=clock)
        self._clock = clock
        self._created: dict[int, CreatedJob] = {}
        self._ahead_s: dict[str, float] = {}
        self._searched_strays = -_STRAYS_S
        self._outage = Outage(
            clock, "The state of the job cannot be read", "Until then, its last known state is shown."
        )

    @property
    def number(self) -> int:
        """Its number within the run, from 1. Each resume creates one, and so does each job that continues."""
        return resume_count(self._events("resumed", "final")) + 1

    @property
    def first(self) -> int:
        """The number of the first job since the last resume by a user: a cancel request for one counts for all later ones."""
        return last_resume(self._events("resumed")) + 1

    @property
    def predecessor(self) -> Event | None:
        """The final record of the job before it, if that one continues; None after a submit or a resume."""
        source = source_of("supervisor", self.number - 2)
        return next((final for final in self._events("final") if final.source == source and continues(final)), None)

    @property
    def location(self) -> int:
        """Its location in the order of the plan's locations, or the first one that may get it."""
        created, before = self._created.get(self.number), self.predecessor
        return created.location if created else int(before.data["continues"]["location"]) if before else 0

    @property
    def is_created(self) -> bool:
        """True once its name is known, even if the service has forgotten it."""
        return self.created(self.number) is not None

    def continued(self, since: int) -> list[Event]:
        """Return the final records that continue, of the jobs from this number on."""
        finals = [event for event in self._events("final") if continues(event) and event.data["number"] >= since]
        return sorted(finals, key=lambda event: int(event.data["number"]))

    @property
    def timeout_s(self) -> float | None:
        """The time limit of the job: the limit of the run, minus the time of earlier jobs."""
        before = self.predecessor
        limit_s: float | None = before.data["continues"]["timeout_s"] if before else self._plan.job.limits.timeout_s
        return limit_s

    def intent_age_s(self) -> float | None:
        """Return the age of its intent, by the clock of the bucket; None if there is none."""
        with suppress(MissingError):
            return self._files.age_s(KEYS.intent(self.number))
        return None

    def requested_age_s(self) -> float:
        """Return how long ago the job was last requested or promised, by the clock of the bucket."""
        number = self.number
        before = KEYS.event(0, source_of("supervisor", number - 2), 1, "final")
        resumed = KEYS.event(0, source_of("client", number - 1), 1, "resumed")
        for key in (KEYS.intent(number), *((resumed, before) if number > 1 else (KEYS.plan,))):
            with suppress(MissingError):
                return self._files.age_s(key)
        return math.inf

    @property
    def over(self) -> bool:
        return bool(self.loss) or (self.vendor is not None and self.vendor.over)

    def refresh(self) -> None:
        created = self.created(self.number) or self._find_by_label(self.number)
        self.loss = ""
        if created is None:
            self.vendor, self.loss = None, self._why_lost()
            return
        is_current = self.vendor is not None and self.vendor.name == created.name
        if is_current and self.over and has_ended(self._plan.paths):
            return
        try:
            if not is_current:
                self.vendor = self._get(created, self.number)
            elif self._outage.due:
                # While the service does not answer, the last known state remains valid, and each refresh tries only once.
                within_s = 0.0 if self._outage.failures else None
                job = self._outage.outlive(lambda: self._get(created, self.number, within_s))
                self.vendor = job or self.vendor
        except MissingError:
            self.vendor, self.loss = None, states.loss_message(created.name, service.service_name())

    def _get(
        self, created: CreatedJob, number: int, within_s: float | None = None, timeout_s: float | None = None
    ) -> VendorJob:
        """Return the job; MissingError only if the list does not have it either, because another job follows a lost one."""
        try:
            return self._translated(self.client.get(created.name, within_s=within_s, timeout_s=timeout_s))
        except MissingError:
            listed = create_job.find_labelled(self.client, [created.region], self._plan.run_id, number)
            job = next((job for job in listed if job.name == created.name), None)
            if job is None:
                raise
            return self._translated(job)

    def ahead_s(self, number: int) -> float:
        """Return how far the times of a job are ahead of this machine: 0 unless an emulator with a moved clock ran it.

        An emulator that does not answer is not waited for.
        """
        created = self.created(number)
        if created is None or not emulator.address():
            return 0.0
        if created.name not in self._ahead_s:
            try:
                self._get(created, number, within_s=0.0, timeout_s=_SHORT_S)
            except MissingError:
                self._ahead_s[created.name] = 0.0
        return self._ahead_s[created.name]

    def _translated(self, job: VendorJob) -> VendorJob:
        if job.name not in self._ahead_s:
            # The clock of a job does not move with the emulator's.
            self._ahead_s[job.name] = 0.0 if job.created is None else emulator_clock.ahead_s(job.created)
        ahead_s = self._ahead_s[job.name]
        created, started, ended = (
            time if time is None else time - ahead_s for time in (job.created, job.started, job.ended)
        )
        return replace(job, created=created, started=started, ended=ended)

    def restore(self) -> None:
        finals = [event for event in self._events("final") if event.data.get("job")]
        if finals:
            self.vendor = states.job_of(max(finals, key=lambda event: int(event.source.partition("-")[2] or 0)))

    def notes(self) -> list[Mapping[str, object]]:
        """Return the problems before its job was created."""
        return [*create_job.read_notes(self._store, self.number)]

    def created(self, number: int) -> CreatedJob | None:
        if number not in self._created:
            created = create_job.read_created(self._store, number)
            if created is None or not created.name:
                return None
            self._created[number] = created
        return self._created[number]

    def write_tombstone(self) -> bool:
        """Prevent the creation of the job. Return False if another process created it first."""
        created = create_job.write_tombstone(self._store, self.number)
        if created.name:
            self.vendor = self._translated(self.client.get(created.name))
            return False
        create_job.cancel_strays(self.client, self._regions, self._plan.run_id, self.number, created)
        return True

    def cancel_strays(self) -> None:
        """Cancel a second job that an outdated list had hidden from the creator of this one."""
        created, now = self._created.get(self.number), self._clock.monotonic()
        if created is None or not created.unsure or now - self._searched_strays < _STRAYS_S:
            return
        self._searched_strays = now
        with suppress(VertexRejectedError, OutcomeUnknownError):
            create_job.cancel_strays(self.client, self._regions, self._plan.run_id, self.number, created)

    def _find_by_label(self, number: int) -> CreatedJob | None:
        """Return the job of a client that was killed before it recorded the name."""
        try:
            self._store.stat(KEYS.intent(number))
        except MissingError:
            return None
        jobs = create_job.find_labelled(self.client, self._regions, self._plan.run_id, number)
        if not jobs:
            return None
        job = CreatedJob(name=jobs[0].name, unsure=True, location=create_job.location_of(jobs[0], self.location))
        created = create_job.record_created(self._store, self.client, number, job)
        if not created.name:
            # The run was cancelled before, and this job with it.
            return None
        self._created[number] = created
        return created

    def _why_lost(self) -> str:
        """Return the reason why no further job will be created, or "" while one may be."""
        age_s = self.requested_age_s()
        if age_s < _START_LIMIT_S:
            return ""
        if age_s == math.inf:
            return "Its job was never requested."
        who = service.service_name()
        return f"The process that should have created its job ended too early, and {who} has no such job."

    def _events(self, *kinds: str) -> list[Event]:
        return read_events(self._plan.paths, kinds) if os.path.isdir(self._plan.paths.events) else []
