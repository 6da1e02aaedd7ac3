"""What the keeper's container runs: it waits for the run as a client does, until the run has ended or its time is over."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .... import logs
from ....clock import Clock, SystemClock
from ....errors import PodliftError, StoreError, UnavailableError, may_pass
from ....job.layout import RootPaths, RunPaths
from ....job.plan import Plan
from ....logs import logger
from ....records.events import Event, source_of
from ....records.plans import read_plan
from ....records.recorder import has_ended
from ....records.sync.index import SYNC_RETRY, SyncedRun
from ....status import EXIT_DONE, EXIT_INFRASTRUCTURE
from ....storage.gcs.store import GcsStore
from ....storage.store import create
from ...containers import Archives
from ..account import rights
from ..job.create_job import KEYS
from ..job.run import VertexRun
from ..options import Vertex

_log = logger("backends.keeper")
_POLL_S = 5.0
_REPORT_S = 600.0


def main(spec: Mapping[str, Any], *, home: str) -> int:
    """Wait for the run, and return the exit code of the container."""
    logs.start(errors_apart=True)
    clock = SystemClock()
    try:
        plan = _plan(str(spec["run"]), home, clock)
        archives = Archives(runtime=spec["runtime"]["sha256"], entrypoint=spec["entrypoint"])
        remarks = Remarks(plan, int(spec.get("job", 1)), clock)
        with suppress(StoreError):
            remarks.on_rights()
        keep(VertexRun(plan, clock, archives), plan, float(spec["keep_for_s"]), clock, remarks)
    except PodliftError as error:
        _log.error(str(error))
        return EXIT_INFRASTRUCTURE
    return EXIT_DONE


def _plan(url: str, home: str, clock: Clock) -> Plan:
    root = RunPaths(url).root
    paths = RootPaths(posixpath.join(home, "root")).run(RunPaths(url).run_id)
    copy = SyncedRun(paths, url, clock)
    copy.pull_plan()
    copy.pull_resumes()
    return read_plan(paths, root)


class Remarks:
    """What a keeper cannot do, as records of the run, which users read. `number` is that of its first job."""

    def __init__(self, plan: Plan, number: int, clock: Clock) -> None:
        self._plan, self._source, self._clock = plan, source_of("keeper", number - 1), clock
        self._store = GcsStore(plan.url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
        self._made: set[int] = set()

    def on_rights(self) -> None:
        target = Vertex.of(self._plan.target)
        kept, project = self._plan.keeper, target.project
        if kept is None or not project:
            return
        bucket = self._plan.root.removeprefix("gs://").partition("/")[0]
        lack = rights.on_each(rights.resources(kept, project, bucket), rights.mine)
        if lack.unknown:
            _log.info(f"it is not known whether this account has {', '.join(lack.unknown)}: {lack.why}")
        if lack.missing:
            self._make(1, f"its account {kept.account} lacks {', '.join(lack.missing)}")

    def on_refusal(self, why: str) -> None:
        """Record that its request for the next job was refused; "" if it was not."""
        if why:
            self._make(2, why)

    def _make(self, number: int, why: str) -> None:
        if number in self._made:
            return
        self._made.add(number)
        others = "A process that waits for the run still can (podlift wait)."
        text = f"The keeper cannot submit the next job: {why.rstrip('.')}. {others}"
        _log.error(text)
        event = Event(
            attempt=0, source=self._source, sequence=number, kind="finding", time=self._clock.now(), data={"text": text}
        )
        # A second keeper finds the same.
        create(self._store, KEYS.event(0, self._source, number, "finding"), event.to_json())


def keep(run: VertexRun, plan: Plan, keep_for_s: float, clock: Clock, remarks: Remarks) -> None:
    """Wait until the run has ended, at most this long; a service that cannot be reached is waited for."""
    until, reported = clock.monotonic() + keep_for_s, -_REPORT_S
    _log.info(f"waiting for the run {plan.run_id}: its next jobs are submitted here")
    with run.attending() as attend:
        while clock.monotonic() < until:
            try:
                attend()
                remarks.on_refusal(run.refused)
                if has_ended(plan.paths) or not run.supervised():
                    _log.info("the run has ended")
                    return
            except (UnavailableError, StoreError) as error:
                if not may_pass(error):
                    raise
                if clock.monotonic() - reported >= _REPORT_S:
                    reported = clock.monotonic()
                    _log.info(f"the run cannot be seen now: {error}")
            clock.sleep(_POLL_S)
    _log.info("the keeper's time is over; the run goes on without it")
