"""Creates a job exactly once, which Vertex AI itself does not offer.

A create request has no identity: sent twice, it creates two jobs, and if its response is lost, the outcome is unknown.
Therefore the request is first written to the run's directory, as an object that only one process can create (the intent).
It is the claim of that process, which renews it right before each request: a claim that is older than the lease is taken over
by compare-and-swap, after the list of jobs was searched. The job has the run's id as a label. After a lost response, the list
is searched for that label several times before another request is sent. If the list was out of date nevertheless and a second
job was created, one object decides which of the two counts. Only one of them gets the lease on the checkpoints, and the other
one is cancelled as soon as it is found.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ....clock import Clock
from ....errors import AlreadyExistsError, ConflictError, MissingError, PodliftError
from ....job.layout import RunPaths
from ....job.wire import parsed
from ....logs import logger
from ....records.sync.index import write_final
from ....records.verdicts import CANCELLED, failed, final
from ....status import Failure, Reason
from ....storage.store import Store, create
from ....text import duration
from .. import service
from ..client import JobClient, OutcomeUnknownError, VertexRejectedError
from . import diagnose
from .diagnose import Diagnosis
from .states import VendorJob

_log = logger("backends.vertex")

KEYS = RunPaths("")
RUN, JOB, LOCATION = "podlift-run", "podlift-job", "podlift-location"
# Delays before each search of the list, in seconds. It shows a new job within a few.
SEARCH_DELAYS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0)
_TRIES = 3
# How long to wait for a busy service, at least and at most: not as long as a claim is valid.
_BUSY_S, _LONGEST_BUSY_S = 20.0, 45.0
# A claim that was not renewed for this long may be taken over. A request takes less time.
LEASE_S = 60.0
_FRESH_S, _CLAIMED_S = 5.0, 2.0
# Another region may succeed.
_REGIONAL = (Reason.STOCKOUT, Reason.QUOTA)


@dataclass(frozen=True, kw_only=True)
class CreatedJob:
    """The job that counts."""

    name: str  # projects/P/locations/REGION/customJobs/ID, or "" for a tombstone: cancelled before there was a job
    unsure: bool = False  # a second job may exist and may still show up
    location: int = 0  # its location in the order of the plan's locations

    @property
    def region(self) -> str:
        return self.name.split("/")[3]

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]


class JobNotCreatedError(PodliftError):
    """Vertex AI rejected the job in every region, or the run was cancelled before."""

    def __init__(
        self, message: str, reason: Reason, notes: Sequence[Mapping[str, object]] = (), *, busy: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.notes = notes
        self.busy = busy  # the same request may succeed later


@dataclass(frozen=True, kw_only=True)
class LocatedRequest:
    """The request for a job in one location."""

    location: int  # in the order of the plan's locations
    region: str
    redacted_body: Mapping[str, object]  # for the record, with stars for values copied from the caller's environment
    body: Mapping[str, object]  # including those values: sent, but never stored
    provisioning: str = "standard"  # selects the advice after a rejection


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    run_id: str
    number: int  # number of the job within the run, from 1
    requests: Sequence[LocatedRequest]  # one for each location, in order of preference

    @property
    def regions(self) -> list[str]:
        return [request.region for request in self.requests]


def read_created(store: Store, number: int) -> CreatedJob | None:
    try:
        data = parsed(bytes(store.get(KEYS.created(number))))
    except MissingError:
        return None
    return CreatedJob(name=str(data["name"]), unsure=bool(data.get("unsure")), location=int(data.get("location", 0)))


class _NotOursError(Exception):
    """Another process has taken the claim over."""


class JobCreation:
    """`age_s` returns the age of an object in seconds, by the clock of its store."""

    def __init__(
        self, request: JobRequest, store: Store, jobs: JobClient, clock: Clock, age_s: Callable[[str], float]
    ) -> None:
        self._request = request
        self._store = store
        self._jobs = jobs
        self._clock = clock
        self._age_s = age_s
        self._unsure = False
        self._claimed = ""  # the generation of this process's intent
        # When it was written, by both clocks: the monotonic one stands still while a machine is suspended.
        self._renewed = (0.0, 0.0)
        # Problems before there was a job: part of the run's history.
        self._notes: list[Mapping[str, object]] = []

    def ensure(self) -> CreatedJob:
        """Return the job, creating it at most once. Waits while another process is creating it."""
        while True:
            job = self.attempt()
            if job is not None:
                return job
            self._clock.sleep(_CLAIMED_S)

    def attempt(self) -> CreatedJob | None:
        """Return the job, creating it at most once; None while another process is creating it."""
        try:
            job = self._attempt()
        except _NotOursError:
            return None
        if job is None or job.name:
            return job
        if self._unsure:
            _log.info("The run was cancelled. Searching the list of jobs for one that a lost request may have created.")
        for wait_s in SEARCH_DELAYS_S if self._unsure else ():
            self._clock.sleep(wait_s)
            cancel_strays(self._jobs, self._request.regions, self._request.run_id, self._request.number, job)
        raise JobNotCreatedError("The run was cancelled before its job was created.", Reason.CANCELLED)

    def _attempt(self) -> CreatedJob | None:
        created, key = read_created(self._store, self._request.number), KEYS.intent(self._request.number)
        if created is not None:
            return created
        try:
            self._renewed = self._times()
            self._claimed = self._store.put_new(key, [self._intent()]).generation
        except AlreadyExistsError:
            # Another process was about to send the request. It may be alive, or have been killed before or after that.
            generation = self._store.stat(key).generation
            if self._age_s(key) < LEASE_S:
                return None
            self._unsure = True
            self._note("Another process has requested this job before, and may have been killed since.")
            job = self._search()
            if job is not None:
                return job
            self._claimed = generation
            self._renew()
        return self._create()

    def _intent(self) -> bytes:
        about = {"nonce": secrets.token_hex(8), "renewed": self._clock.now(), "regions": self._request.regions}
        return json.dumps({**about, "body": self._request.requests[0].redacted_body}, sort_keys=True).encode()

    def _renew(self) -> None:
        """Replace the intent. Only one process can replace the same generation."""
        try:
            key = KEYS.intent(self._request.number)
            self._renewed = self._times()
            self._claimed = self._store.swap(key, [self._intent()], expected=self._claimed).generation
        except (ConflictError, MissingError):
            raise _NotOursError from None

    def _times(self) -> tuple[float, float]:
        return self._clock.monotonic(), self._clock.now()

    def _is_fresh(self) -> bool:
        return all(0.0 <= now - then < _FRESH_S for now, then in zip(self._times(), self._renewed, strict=True))

    def _create(self) -> CreatedJob:
        rejections: list[tuple[str, Diagnosis]] = []
        for request in self._request.requests:
            answer = self._create_in(request)
            if isinstance(answer, CreatedJob):
                return answer
            rejections.append((request.region, answer))
            why = service.quoted(answer.sentence or answer.message)
            self._note(f"{request.region} rejected the job ({answer.reason.value}). {why}")
            if answer.reason not in _REGIONAL:
                break
        raise _not_created(rejections, self._notes)

    def _create_in(self, request: LocatedRequest) -> CreatedJob | Diagnosis:
        sent, region = 0, request.region
        while True:
            # A process that finds the claim expired sends its own request, and one that cancels the run forbids it.
            if sent or not self._is_fresh():
                self._renew()
                created = read_created(self._store, self._request.number)
                if created is not None:
                    return created
            sent += 1
            try:
                return self._record(self._jobs.create(region, request.body))
            except VertexRejectedError as error:
                # An earlier request may have succeeded, and may even be the reason.
                job = self._search() if self._unsure else None
                if job is not None:
                    return job
                diagnosis = diagnose.diagnose(str(error), error.status, provisioning=request.provisioning)
                if not diagnosis.busy or sent == _TRIES:
                    return diagnosis
                wait_s = min(max(error.wait_s or 0.0, _BUSY_S), _LONGEST_BUSY_S)
                self._note(f"{region} is busy. {diagnosis.sentence} The next request follows in {wait_s:.0f} s.")
                self._clock.sleep(wait_s)
            except OutcomeUnknownError as error:
                self._unsure = True
                problem = str(error).partition(" Next:")[0]
                self._note(f"Request {sent} for a job in {region} got no answer: {problem}")
                job = self._search()
                if job is not None:
                    return job
                if sent == _TRIES:
                    raise OutcomeUnknownError(
                        f"The run {self._request.run_id} was not started: {error} The request was sent {sent} times. If it "
                        f"created a job, podlift will find it by its label. Next: podlift status {self._request.run_id}."
                    ) from error

    def _search(self) -> CreatedJob | None:
        """Return the job if it was created. Searches several times, because the list may be out of date."""
        limit = duration(sum(SEARCH_DELAYS_S))
        _log.info(f"Searching the list of jobs for about {limit}, because another request could start a second job.")
        for wait_s in SEARCH_DELAYS_S:
            if wait_s:
                _log.info(f"The list does not show the job. Searching again in {duration(wait_s)}.")
            self._clock.sleep(wait_s)
            created = read_created(self._store, self._request.number)
            if created is not None:
                return created
            jobs = self._labelled()
            if jobs:
                self._note(f"The job exists all the same: {jobs[0].id} in {jobs[0].region}.")
                return self._record(jobs[0])
        self._note("The job does not exist: no request created it.")
        return None

    def _labelled(self) -> list[VendorJob]:
        run = self._request.run_id
        try:
            return find_labelled(self._jobs, self._request.regions, run, self._request.number)
        except (OutcomeUnknownError, VertexRejectedError) as error:
            # Not "was not started": the lost request may have created it.
            problem = str(error).partition(" Next:")[0]
            raise OutcomeUnknownError(
                f"It is unknown whether the run {run} was started: a request for its job may have been executed, and the list "
                f"of jobs cannot be read. {problem} If there is a job, podlift will find it by its label. Next: podlift status "
                f"{run}."
            ) from error

    def _note(self, text: str) -> None:
        """Log a problem or a discovery, and keep it for the run's history."""
        _log.info(text)
        self._notes.append({"time": self._clock.now(), "text": text})

    def _record(self, job: VendorJob) -> CreatedJob:
        return record_created(
            self._store,
            self._jobs,
            self._request.number,
            CreatedJob(
                name=job.name, unsure=self._unsure, location=location_of(job, self._request.requests[0].location)
            ),
            self._notes,
        )


def location_of(job: VendorJob, otherwise: int) -> int:
    """Return the location of a job in the order of the plan's locations, by its label."""
    text = (job.labels or {}).get(LOCATION, "")
    return int(text) if text.isdecimal() else otherwise


def read_notes(store: Store, number: int) -> Sequence[Mapping[str, object]]:
    """Return the problems before this job was created: {"time": Unix time in seconds, "text"}."""
    with suppress(MissingError):
        notes: list[dict[str, object]] = parsed(bytes(store.get(KEYS.created(number)))).get("notes", [])
        return notes
    return ()


def record_created(
    store: Store, jobs: JobClient, number: int, job: CreatedJob, notes: Sequence[Mapping[str, object]] = ()
) -> CreatedJob:
    """Record the job that counts, and return it. If another one was recorded before, cancel this one."""
    about = {
        "name": job.name,
        "region": job.region,
        "location": job.location,
        "unsure": job.unsure,
        "notes": list(notes),
    }
    if create(store, KEYS.created(number), json.dumps(about, sort_keys=True).encode()):
        return job
    first = read_created(store, number)
    if first is None:
        raise MissingError(f"{store.url}/{KEYS.created(number)} was removed by another process.")
    if first.name != job.name:
        _cancel(jobs, job.name)
    return first


def write_tombstone(store: Store, number: int) -> CreatedJob:
    """Prevent the creation of the job. Return the tombstone, or the job if it was created before."""
    create(store, KEYS.created(number), json.dumps({"name": ""}).encode())
    return read_created(store, number) or CreatedJob(name="")


def find_labelled(jobs: JobClient, regions: Sequence[str], run_id: str, number: int) -> list[VendorJob]:
    listed = [job for region in dict.fromkeys(regions) for job in jobs.list(region, {RUN: run_id})]
    matches = [job for job in listed if (job.labels or {}).get(JOB) == str(number)]
    return sorted(matches, key=lambda job: (job.created or 0.0, job.name))


def cancel_strays(jobs: JobClient, regions: Sequence[str], run_id: str, number: int, created: CreatedJob) -> list[str]:
    """Cancel all other jobs with the same labels, and return their names."""
    strays = [
        job.name for job in find_labelled(jobs, regions, run_id, number) if job.name != created.name and not job.over
    ]
    for name in strays:
        _cancel(jobs, name)
    return strays


def _cancel(jobs: JobClient, name: str) -> None:
    # It has no lease and does no harm. The next search cancels it.
    with suppress(OutcomeUnknownError):
        jobs.cancel(name)


def _not_created(
    rejections: Sequence[tuple[str, Diagnosis]], notes: Sequence[Mapping[str, object]]
) -> JobNotCreatedError:
    region, diagnosis = rejections[-1]
    others = [f"{other}: {answer.sentence or answer.message}" for other, answer in rejections[:-1]]
    parts = [f"{service.service_name()} rejected the job in {region}. {diagnosis.message}", *others]
    text = " ".join(part if part.endswith((".", ")", '"')) else f"{part}." for part in parts)
    sentence = service.sentence(service.quoted(text))
    return JobNotCreatedError(sentence, diagnosis.reason, notes, busy=diagnosis.busy)


def write_rejection(store: Store, number: int, time: float, error: JobNotCreatedError) -> None:
    """Create the final record of a job that was not created."""
    is_cancelled = error.reason is Reason.CANCELLED
    end = CANCELLED if is_cancelled else failed(error.reason, Failure(task="", message=str(error)))
    write_final(store, number, time, final(end, vendor="", job="", notes=list(error.notes)))
