"""How a job comes into being exactly once, although nobody can ask Vertex AI for that.

A create call has no identity: sent twice, it makes two jobs, and when its answer is lost nobody knows whether it made one.
So what will be asked is written into the run's directory before it is asked, under a name that only one process can create;
the job carries the run's id as a label; and after a lost answer the list is searched for that label, with waits, before
anything is asked again. A list that was late all the same has let a second job begin: one object says which of the two it is,
only one of them gets the lease on the checkpoints, and the other one is cancelled as soon as it is seen.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ...clock import Clock
from ...errors import AlreadyExistsError, ConflictError, MissingError, PodliftError
from ...spec.layout import RunPaths
from ...status import Reason
from . import diagnose
from .client import RefusedError, UnsureError
from .diagnose import Diagnosis
from .states import VendorJob

KEYS = RunPaths("")
RUN, JOB = "podlift-run", "podlift-job"
# Before each look at the list, in seconds: it shows a new job within a few.
LOOKS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0)
_TRIES = 3
_BUSY_S = 20.0
# Another region may have what this one has not.
_ELSEWHERE = (Reason.STOCKOUT, Reason.QUOTA)


class Store(Protocol):
    """What of a store is needed here."""

    def put_new(self, key: str, data: Sequence[Any]) -> Any: ...
    def get(self, key: str) -> Any: ...
    def stat(self, key: str) -> Any: ...
    def swap(self, key: str, data: Sequence[Any], *, expected: str | None) -> Any: ...


class Service(Protocol):
    """What of `client.Jobs` is needed here."""

    def create(self, region: str, job: Any) -> VendorJob: ...
    def list(self, region: str, labels: Mapping[str, str]) -> list[VendorJob]: ...
    def cancel(self, name: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Made:
    """Which job it is.

    Args:
        name: projects/P/locations/REGION/customJobs/ID; "" where the run was cancelled before there was one.
        unsure: True where another one may have been made too, and may yet be seen.
    """

    name: str
    unsure: bool = False

    @property
    def region(self) -> str:
        """Where it runs."""
        return self.name.split("/")[3]


class NotMadeError(PodliftError):
    """Vertex AI has refused the job, in every region that was asked.

    Args:
        message: what it says, and what to do.
        reason: for the run's status.
    """

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked for.

    Args:
        run_id: the run.
        number: which job of the run it is, from 1.
        regions: where, in the order in which they are asked.
        shown: the request's body, with stars for the values of the caller's own variables.
        job: Google's own type, with those values: sent, and kept nowhere.
        excluded: says why a region cannot be asked, "" where it can.
        provisioning: what kind of machines: it decides which advice helps.
    """

    run_id: str
    number: int
    regions: Sequence[str]
    shown: Mapping[str, Any]
    job: Any
    excluded: Callable[[str], str] = lambda _: ""
    provisioning: str = "standard"


def read_made(store: Store, number: int) -> Made | None:
    """Return which job it is, if the run's directory says so."""
    try:
        data = json.loads(bytes(store.get(KEYS.created(number))))
    except MissingError:
        return None
    return Made(name=str(data["name"]), unsure=bool(data.get("unsure")))


class Creation:
    """One job of one run, on its way.

    Args:
        asked: what is asked for.
        store: the run's directory.
        jobs: Vertex AI.
        clock: what time it is.
    """

    def __init__(self, asked: Asked, store: Store, jobs: Service, clock: Clock) -> None:
        self._asked = asked
        self._store = store
        self._jobs = jobs
        self._clock = clock
        self._unsure = False

    def ensure(self) -> Made:
        """Return the job; there is one when this returns, and this has made at most one.

        Raises:
            NotMadeError: it was refused, or somebody has cancelled the run.
            UnsureError: Vertex AI gives no answer; there may be one.
        """
        made = self._ensure()
        if made.name:
            return made
        for wait_s in LOOKS_S if self._unsure else ():
            self._clock.sleep(wait_s)
            cancel_strays(self._jobs, self._asked.regions, self._asked.run_id, self._asked.number, made)
        raise NotMadeError("Somebody has cancelled it before its job was made.", Reason.CANCELLED)

    def _ensure(self) -> Made:
        made = read_made(self._store, self._asked.number)
        if made is not None:
            return made
        if not self._intend():
            # Somebody else was about to ask, and may have: a client that was killed, or one that is at it.
            self._unsure = True
            theirs = self._store.stat(KEYS.intent(self._asked.number)).generation
            found = self._look()
            if found is not None:
                return found
            self._take_over(theirs)
        return self._ask()

    def _intend(self) -> bool:
        """Write down what will be asked; false if somebody has."""
        try:
            self._store.put_new(KEYS.intent(self._asked.number), [self._intent()])
        except AlreadyExistsError:
            return False
        return True

    def _intent(self) -> bytes:
        about = {"nonce": secrets.token_hex(8), "created": self._clock.now(), "regions": list(self._asked.regions)}
        return json.dumps({**about, "body": self._asked.shown}, sort_keys=True).encode()

    def _take_over(self, theirs: str) -> None:
        """Make somebody's intent ours; whoever else looked at the same one comes too late."""
        try:
            self._store.swap(KEYS.intent(self._asked.number), [self._intent()], expected=theirs)
        except ConflictError:
            raise UnsureError(
                f"Another process is starting the run {self._asked.run_id} at this moment. Next: podlift status "
                f"{self._asked.run_id}."
            ) from None

    def _ask(self) -> Made:
        refusals: list[tuple[str, Diagnosis]] = []
        skipped: list[str] = []
        for region in self._asked.regions:
            # The first one is asked in any case: Vertex AI knows better than we do why not.
            why = self._asked.excluded(region) if refusals else ""
            if why:
                skipped.append(f"{region} was not asked: {why}")
                continue
            answer = self._ask_in(region)
            if isinstance(answer, Made):
                return answer
            refusals.append((region, answer))
            if answer.reason not in _ELSEWHERE:
                break
        raise _not_made(refusals, skipped)

    def _ask_in(self, region: str) -> Made | Diagnosis:
        for tried in range(1, _TRIES + 1):
            try:
                return self._note(self._jobs.create(region, self._asked.job))
            except RefusedError as error:
                # What was asked before this may have been made, and may be the very reason.
                found = self._look() if self._unsure else None
                if found is not None:
                    return found
                told = diagnose.diagnose(str(error), provisioning=self._asked.provisioning)
                if not told.busy or tried == _TRIES:
                    return told
                self._clock.sleep(_BUSY_S)
            except UnsureError as error:
                self._unsure = True
                found = self._look()
                if found is not None:
                    return found
                if tried == _TRIES:
                    raise UnsureError(
                        f"The run {self._asked.run_id} was not started: {error} It was tried {tried} times. If there is a "
                        f"job after all, it is found by its label. Next: podlift status {self._asked.run_id}."
                    ) from error
        raise AssertionError("unreachable")  # pragma: no cover

    def _look(self) -> Made | None:
        """Return the job if somebody has made it: the list is asked again and again, since it may be late."""
        for wait_s in LOOKS_S:
            self._clock.sleep(wait_s)
            made = read_made(self._store, self._asked.number)
            if made is not None:
                return made
            found = labelled(self._jobs, self._asked.regions, self._asked.run_id, self._asked.number)
            if found:
                return self._note(found[0])
        return None

    def _note(self, job: VendorJob) -> Made:
        return note(self._store, self._jobs, self._asked.number, Made(name=job.name, unsure=self._unsure))


def note(store: Store, jobs: Service, number: int, made: Made) -> Made:
    """Write down which job it is, and return it; where another one was written down, this one is cancelled."""
    data = json.dumps({"name": made.name, "region": made.region, "unsure": made.unsure}, sort_keys=True).encode()
    try:
        store.put_new(KEYS.created(number), [data])
    except AlreadyExistsError:
        first = read_made(store, number)
        if first is None:
            raise
        if first.name != made.name:
            _cancel(jobs, made.name)
        return first
    return made


def forestall(store: Store, number: int) -> Made:
    """Have nobody make a job any more, and return what is written down: the job that was made in the meantime, or none."""
    with suppress(AlreadyExistsError):
        store.put_new(KEYS.created(number), [json.dumps({"name": ""}).encode()])
    return read_made(store, number) or Made(name="")


def labelled(jobs: Service, regions: Sequence[str], run_id: str, number: int) -> list[VendorJob]:
    """Return the jobs that carry the labels of a run's job, the oldest first."""
    found = [job for region in dict.fromkeys(regions) for job in jobs.list(region, {RUN: run_id})]
    wanted = [job for job in found if (job.labels or {}).get(JOB) == str(number)]
    return sorted(wanted, key=lambda job: (job.created or 0.0, job.name))


def cancel_strays(jobs: Service, regions: Sequence[str], run_id: str, number: int, made: Made) -> list[str]:
    """Cancel every other job that was made for the same purpose, and return their names."""
    strays = [job.name for job in labelled(jobs, regions, run_id, number) if job.name != made.name and not job.over]
    for name in strays:
        _cancel(jobs, name)
    return strays


def _cancel(jobs: Service, name: str) -> None:
    # It has no lease and does no harm: the next look cancels it.
    with suppress(UnsureError):
        jobs.cancel(name)


def _not_made(refusals: Sequence[tuple[str, Diagnosis]], skipped: Sequence[str]) -> NotMadeError:
    region, told = refusals[-1]
    others = [f"{other}: {each.sentence}" for other, each in refusals[:-1]]
    parts = [f"Vertex AI in {region} has refused the job. {told.message}", *others, *skipped]
    return NotMadeError(" ".join(part if part.endswith((".", ")", '"')) else f"{part}." for part in parts), told.reason)
