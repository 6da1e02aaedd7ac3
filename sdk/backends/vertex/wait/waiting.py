"""Waiting for a run: a process holds a lease, decides whether another job follows, and submits it.

A client, the keeper of a run and the keeper of a schedule all wait so. While the lease is held, processes that only look leave
the decision to its holders.
"""

from __future__ import annotations

import json
import math
import secrets
from contextlib import suppress

from ....clock import Clock
from ....errors import ConflictError, MissingError
from ....job.plan import Plan
from ....logs import logger
from ....records.plans import read_plan
from ....records.sync.index import SYNC_RETRY
from ....status import Reason
from ....storage.gcs.files import BucketFiles
from ....storage.store import Store
from ...containers import Archives, upload_archives
from ..job import create_job, start_run
from ..job.create_job import KEYS, JobNotCreatedError
from ..job.latest_job import LatestJob

_log = logger("backends.vertex")

RENEW_S, EXPIRES_S = 20.0, 120.0


class WaitingLease:
    """One process's side of it. Several may hold it at a time: each overwrites the object."""

    def __init__(self, url: str, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._files = BucketFiles(url, retry=SYNC_RETRY, clock=clock)
        self._holder, self._generation, self._renewed = secrets.token_hex(8), "", -math.inf
        self._shared = -math.inf  # monotonic time at which another holder was last seen

    def renew(self) -> None:
        """Acquire the lease, or renew it."""
        if self._clock.monotonic() - self._renewed < RENEW_S:
            return
        data = json.dumps({"holder": self._holder, "time": self._clock.now()}).encode()
        expected, now = None, self._clock.monotonic()
        with suppress(MissingError):
            expected = self._store.stat(KEYS.waiting).generation
        try:
            if expected not in (None, self._generation):
                self._shared = now
            self._generation = self._store.swap(KEYS.waiting, [data], expected=expected).generation
        except ConflictError:
            # Another process that renews it at this moment holds it, too.
            self._shared = now
        self._renewed = now

    def release(self) -> None:
        """Stop holding it. If others may hold it, it stays until it expires: they renew it at intervals only."""
        if self._generation and self._clock.monotonic() - self._shared >= EXPIRES_S:
            with suppress(MissingError, ConflictError):
                self._store.delete(KEYS.waiting, generation=self._generation)

    def is_held(self) -> bool:
        """True if any process holds it."""
        with suppress(MissingError):
            return self._files.age_s(KEYS.waiting) < EXPIRES_S
        return False


class Resubmission:
    """Submits the next job of a run, for a process that waits for it; `archives` are the archives of a keeper's start."""

    def __init__(
        self, plan: Plan, store: Store, job: LatestJob, clock: Clock, archives: Archives | None = None
    ) -> None:
        self._archives = archives
        self.lease = WaitingLease(plan.url, store, clock)
        self._plan, self._store, self._job, self._clock = plan, store, job, clock
        self._next_report = job.number
        self._seen_going = False  # this process has found the run alive at least once
        self.gave_up = False  # this process is read-only from now on
        self.refused = ""  # why
        self.last_look = -math.inf  # monotonic time of the last look

    def submit_next(self) -> bool:
        """Submit the latest job if it does not exist and no other process is about to; True if that has changed anything."""
        job = self._job
        self._seen_going |= not job.loss
        # A process that begins to wait for a lost run gets its verdict. One that has waited continues even after an outage.
        if self.gave_up or job.is_created or not self._seen_going or not self._is_due():
            return False
        # A resume may have changed the code.
        plan, limit_s = read_plan(self._plan.paths, self._plan.root), job.timeout_s if job.predecessor else None
        try:
            archives = self._archives or upload_archives(plan)
            new = start_run.creation(plan, job.number, self._clock, archives, location=job.location, timeout_s=limit_s)
            return new.attempt() is not None
        except JobNotCreatedError as error:
            if error.reason is Reason.PERMISSION:
                # Another process may have the right.
                self.lease.release()
                self.give_up(str(error))
                return False
            if error.busy:
                # The next try follows when the claim has expired.
                _log.warning(f"The service is too busy to create the next job of the run; podlift retries. {error}")
                return False
            create_job.write_rejection(self._store, job.number, self._clock.now(), error)
            return True

    def give_up(self, why: str) -> None:
        """Be read-only from now on."""
        self.gave_up, self.refused = True, why
        _log.warning(f"This process may not submit the next job of the run, and only reads from now on. {why}")

    def _is_due(self) -> bool:
        job, requested_s = self._job, self._job.intent_age_s()
        if requested_s is not None:
            return requested_s >= create_job.LEASE_S
        predecessor = job.predecessor
        if predecessor is not None:
            # By the clock of the bucket: the clock of the machine that wrote the record may be wrong.
            return job.requested_age_s() >= float(predecessor.data["continues"]["delay_s"])
        # The process that submitted or resumed the run may be alive. After some minutes the run counts as lost.
        return job.requested_age_s() >= create_job.LEASE_S

    def tell(self) -> None:
        """Log one line for each job that another one follows."""
        for event in self._job.continued(self._next_report):
            self._next_report = int(event.data["number"]) + 1
            _log.info(f"Job {event.data['number']} ended ({event.data['reason']}). {event.data['why']}")
