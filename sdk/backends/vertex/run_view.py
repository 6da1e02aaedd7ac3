"""A run on Vertex AI, seen from a client: its records in the bucket, its job at the vendor, and what the two say together.

Nobody supervises such a run. Its tasks write their records, the vendor restarts what it took away, and the first client that
sees the job's end writes the verdict, which from then on is the same for everybody.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...clock import Clock
from ...errors import AlreadyExistsError, MissingError, StoreError
from ...records.events import Event, generation, source_of
from ...records.recorder import has_ended, read_events
from ...records.sync.pull import Copy
from ...records.sync.push import KEYS, PATIENCE
from ...spec.plan import Plan
from ...status import Progress, Reason, State, Status
from ...storage import trees
from ...storage.gcs.files import BucketFiles
from ...storage.gcs.store import GcsStore
from ..base import LogLine, Observation
from . import create_job, logs, states
from .client import Jobs, RefusedError, UnsureError
from .create_job import Made
from .states import VendorJob

# Somebody who is starting a run has so long, in seconds, before it is said to be lost; a list may be that late.
_START_LIMIT_S = 600.0
# How much longer than the grace that was asked for, before the vendor is asked for the end.
_MARGIN_S = 15.0
_STRAYS_S = 30.0
_PROGRESS_S = 5.0
# The text of a job's error stands in it about a minute after its end.
_ERROR_S = 120.0


class Watch:
    """One run.

    Args:
        plan: the run.
        clock: what time it is.
        jobs: Vertex AI; by default that of the plan's project.
        ask: sends one request to Cloud Logging.
        pace: how often is asked.
    """

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        *,
        jobs: Jobs | None = None,
        ask: logs.Ask = logs.ask,
        pace: logs.Pace | None = None,
    ) -> None:
        self._copy = Copy(plan.paths, plan.url, clock)
        self._plan = plan
        self._clock = clock
        self._options = plan.backend_options
        self._jobs = jobs or Jobs(str(self._options["project"]), clock=clock)
        self._store = GcsStore(plan.url.partition("://")[2], retry=PATIENCE, clock=clock)
        self._files = BucketFiles(plan.url, retry=PATIENCE, clock=clock)
        self._ask = ask
        self._pace = pace or logs.pace()
        self._made: dict[int, Made] = {}
        self._job: VendorJob | None = None
        self._lost = ""
        self._looked = {False: -self._pace.poll_s, True: -self._pace.poll_s}
        self._strays = -_STRAYS_S
        self._cancelled = False
        self._asked = -_PROGRESS_S

    def refresh(self, *, logs: bool = False) -> None:
        """Read what is new, not more often than is polite.

        Args:
            logs: metrics too.
        """
        if self._clock.monotonic() - self._looked[logs] >= self._pace.poll_s:
            self._refresh(logs=logs)
            self._looked[logs] = self._clock.monotonic()

    def observe(self, plan: Plan) -> Observation:
        """Say whether something can still become of the run."""
        self.refresh()
        over = bool(self._lost) or has_ended(self._plan.paths)
        return Observation(supervised=not over, detail=self._lost or (self._job.state if self._job else "no job yet"))

    def told(self, status: Status) -> Status:
        """Return a status as the records tell it together with what the vendor says."""
        found = states.merge(status, self._job, project=str(self._options["project"]))
        if found.state is State.LOST and self._lost and found.failure is not None:
            return replace(found, failure=replace(found.failure, message=self._lost))
        return found

    def progress(self) -> Progress | None:
        """Return how far the training was when its first container said so, every ten seconds."""
        now = self._clock.monotonic()
        if now - self._asked >= _PROGRESS_S:
            self._asked = now
            # A status is shown even if the progress cannot be read.
            with suppress(StoreError, ValueError):
                self._copy.heartbeat()
        return self._copy.progress

    def bring_outputs(self) -> None:
        """Bring what the program has left to this machine; its model lies in the bucket as it was written there."""
        paths = self._plan.paths
        self._copy.files(["outputs", "model"])
        shutil.rmtree(paths.outputs_model, ignore_errors=True)
        if os.path.isdir(paths.model):
            trees.copy_into(paths.model, paths.outputs_model)

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the tasks' lines; those of "service" are the vendor's own."""
        names = states.replica_names(self._plan.tasks)
        replica = logs.chosen(task, self._plan.tasks, names)
        if task == logs.SERVICE:
            names = {logs.SERVICE: logs.SERVICE}
        return self._lines(replica, names, attempt, follow)

    def _lines(
        self, replica: str | None, names: dict[str, str], attempt: int | None, follow: bool
    ) -> Iterator[LogLine]:
        number = 1
        while True:
            made = self._wait_for_job(number, follow)
            if made is None:
                if number == self._number():
                    return
                # It was never made: a resume has made the next one.
                number += 1
                continue
            job = made.name.rpartition("/")[2]
            reader = logs.Reader(self._ask, str(self._options["project"]), job, pace=self._pace, clock=self._clock)
            found = reader.follow(replica, self) if follow and number == self._number() else reader.read(replica)
            yield from logs.lines(found, names, self._attempt_at, attempt)
            number += 1
            if number > self._number():
                return

    def _wait_for_job(self, number: int, follow: bool) -> Made | None:
        while True:
            self.refresh()
            made = self._read_made(number)
            ended = self._lost or number < self._number() or has_ended(self._plan.paths)
            if made is not None or not follow or ended:
                return made
            self._clock.sleep(self._pace.poll_s)

    def over(self) -> tuple[bool, float]:
        """Return whether the newest job has ended, and when."""
        self.refresh()
        if self._lost:
            return True, 0.0
        job = self._job
        return (job is not None and job.over), (job.ended or 0.0) if job is not None else 0.0

    def cancel(self, grace_s: float) -> None:
        """Leave the wish where the tasks look for it; ask the vendor where there are none yet, or no time is left.

        Args:
            grace_s: between asking the tasks and ending them.
        """
        self.refresh()
        number = self._number()
        wish = json.dumps({"grace_s": float(grace_s), "asked": self._clock.now()}).encode()
        self._store.put_new(KEYS.remote_cancel_request(number - 1, uuid.uuid4().hex[:12]), [wish])
        job = self._job or self._forestall(number)
        waiting = job is not None and job.state.removeprefix(states.PREFIX) in ("QUEUED", "PENDING", "PAUSED")
        if job is not None and not job.over and (grace_s <= 0 or waiting):
            self._jobs.cancel(job.name)
        # What becomes of it is looked at anew.
        self._looked = dict.fromkeys(self._looked, -self._pace.poll_s)

    def _forestall(self, number: int) -> VendorJob | None:
        """End a run that has no job yet, whether somebody is about to make one or was killed; return it where it came first."""
        made = create_job.forestall(self._store, number)
        if made.name:
            return self._jobs.get(made.name)
        create_job.cancel_strays(self._jobs, self._options["regions"], self._plan.run_id, number, made)
        about = {"state": State.CANCELLED.value, "reason": Reason.CANCELLED.value, "failure": None}
        finish(self._store, number, self._clock.now(), {**about, "vendor": "", "job": ""})
        return None

    def _refresh(self, *, logs: bool) -> None:
        if has_ended(self._plan.paths) and self._job is None:
            # Its verdict is here: the vendor need not be asked what to call it.
            self._copy.refresh(self._plan.tasks, logs=logs)
            if has_ended(self._plan.paths):
                self._recall()
                return
        # Asked first: what tasks have written before their job ended is read behind it.
        self._look()
        self._copy.refresh(self._plan.tasks, logs=logs)
        if has_ended(self._plan.paths) or self._job is None:
            return
        if self._job.over:
            self._conclude()
        else:
            self._keep_word()
        self._look_for_strays()

    def _look(self) -> None:
        number = self._number()
        made = self._read_made(number) or self._find(number)
        self._lost = ""
        if made is None:
            self._job = None
            self._lost = self._too_late(number)
            return
        if has_ended(self._plan.paths) and self._job is not None and self._job.name == made.name and self._job.over:
            return
        try:
            self._job = self._jobs.get(made.name)
        except MissingError:
            self._job, self._lost = None, states.lost(made.name).message
        except UnsureError:
            # Who waits for a run goes on waiting when nobody answers for a while: what was known stands.
            if self._job is None or self._job.name != made.name:
                raise

    def _read_made(self, number: int) -> Made | None:
        if number not in self._made:
            made = create_job.read_made(self._store, number)
            if made is None or not made.name:
                return None
            self._made[number] = made
        return self._made[number]

    def _find(self, number: int) -> Made | None:
        """Return the job of a client that did not live to write down what it is called."""
        if not self._has(KEYS.intent(number)):
            return None
        found = create_job.labelled(self._jobs, self._options["regions"], self._plan.run_id, number)
        if not found:
            return None
        made = create_job.note(self._store, self._jobs, number, Made(name=found[0].name, unsure=True))
        self._made[number] = made
        return made

    def _too_late(self, number: int) -> str:
        """Return why no job will come any more; "" as long as one may."""
        resumed = f"{KEYS.events}/0000.{source_of('client', number - 1)}.000001.resumed.json"
        for key in (KEYS.intent(number), resumed if number > 1 else KEYS.plan):
            with suppress(MissingError):
                if self._files.age_s(key) < _START_LIMIT_S:
                    return ""
                return "The process that was to create its job ended too early: Vertex AI knows no such job."
        return "Its job was never asked for."

    def _has(self, key: str) -> bool:
        try:
            self._store.stat(key)
        except MissingError:
            return False
        return True

    def _recall(self) -> None:
        """Take the vendor's last word from the verdict."""
        final = next((event for event in reversed(self._events("final")) if event.data.get("job")), None)
        if final is not None and generation(self._events("resumed")) + 1 == self._number():
            self._job = VendorJob(name=str(final.data["job"]), state=str(final.data["vendor"]), ended=final.time)

    def _conclude(self) -> None:
        """Write the verdict, unless somebody was faster, and bring it here."""
        if self._job is None:
            return
        ended = states.Ended(
            events=read_events(self._plan.paths),
            job=self._job,
            tasks=self._plan.tasks,
            asked=min((_number(wish, "asked") for wish in self._wishes()), default=None),
            provisioning=self._options["provisioning"],
            timeout_s=self._plan.job["limits"]["timeout_s"],
        )
        if not states.is_explained(ended) and self._clock.now() < (self._job.ended or 0.0) + _ERROR_S:
            return
        replica = states.speechless(ended)
        if replica:
            words = logs.last_words(self._ask, str(self._options["project"]), self._job.id, replica)
            ended = replace(ended, words=words)
        finish(self._store, self._number(), self._job.ended or self._clock.now(), states.verdict(ended))
        self._copy.refresh(self._plan.tasks, logs=True)

    def _keep_word(self) -> None:
        """Ask the vendor for the end of a run whose tasks had their time to end by themselves."""
        if self._job is None or self._cancelled:
            return
        for wish in self._wishes():
            if self._clock.now() >= _number(wish, "asked") + _number(wish, "grace_s") + _MARGIN_S:
                self._jobs.cancel(self._job.name)
                self._cancelled = True
                return

    def _wishes(self) -> list[dict[str, Any]]:
        prefix = KEYS.remote_cancel_request(self._number() - 1, "").removesuffix(".cancel.json")
        found = []
        for stat in self._store.list(prefix):
            try:
                found.append(dict(json.loads(bytes(self._store.get(stat.key)))))
            except (ValueError, TypeError):
                # Whatever lies there was put there to end the run.
                found.append({})
        return found

    def _look_for_strays(self) -> None:
        """Cancel a second job that a late list has hidden from whoever made this one."""
        number, now = self._number(), self._clock.monotonic()
        made = self._made.get(number)
        if made is None or not made.unsure or now - self._strays < _STRAYS_S:
            return
        self._strays = now
        with suppress(RefusedError):
            create_job.cancel_strays(self._jobs, self._options["regions"], self._plan.run_id, number, made)

    def _number(self) -> int:
        """Return which job of the run is the newest: each resume makes one."""
        return generation(self._events("resumed")) + 1

    def _events(self, kind: str) -> list[Event]:
        return read_events(self._plan.paths, (kind,)) if os.path.isdir(self._plan.paths.events) else []

    def _attempt_at(self, time: float) -> int:
        begun: dict[int, float] = {}
        for event in self._events("attempt_started"):
            begun[event.attempt] = min(event.time, begun.get(event.attempt, event.time))
        numbers = sorted(begun)
        # What a task prints on its way to its attempt belongs to that one; the first has everything before it.
        place = bisect_right([begun[number] for number in numbers], time)
        return numbers[max(place - 1, 0)] if numbers else 1


def _number(wish: dict[str, Any], name: str) -> float:
    value = wish.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def finish(store: GcsStore, number: int, time: float, data: dict[str, Any]) -> None:
    """Write the verdict on a run, unless somebody was faster.

    Args:
        store: the run's directory.
        number: which job of the run has ended.
        time: when, as unix time in seconds.
        data: what `states.verdict` returns.
    """
    source = source_of("supervisor", number - 1)
    event = Event(attempt=0, source=source, sequence=1, kind="final", time=time, data=data)
    with suppress(AlreadyExistsError):
        store.put_new(KEYS.event(0, source, 1, "final"), [event.to_json()])
