"""A run that a keeper keeps: it waits for the run as a client does, and so submits its next jobs while no client waits."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from ....clock import Clock
from ....errors import StoreError
from ....job.layout import RootPaths, RunPaths
from ....job.plan import Plan
from ....logs import logger
from ....records.events import Event, source_of
from ....records.plans import read_plan
from ....records.recorder import has_ended
from ....records.sync.index import SYNC_RETRY, SyncedRun
from ....storage.gcs.store import GcsStore
from ....storage.store import create
from ...containers import Archives
from ..account import rights
from ..job.create_job import KEYS
from ..job.run import VertexRun
from ..options import Vertex

_log = logger("backends.keeper")


class RunKeeper:
    """Keeps a run: `sdk.backends.keeper_main` takes its steps."""

    def __init__(self, run: VertexRun, plan: Plan, remarks: Remarks) -> None:
        self._run, self._plan, self._remarks = run, plan, remarks
        self.title = f"The run {plan.run_id}"
        _log.info(f"waiting for the run {plan.run_id}: its next jobs are submitted here")
        self._waiting = ExitStack()
        self._attend = self._waiting.enter_context(run.attending())

    def step(self) -> bool:
        """Submit the next job if one is to follow; False once the run has ended."""
        self._attend()
        self._remarks.on_refusal(self._run.refused)
        if has_ended(self._plan.paths) or not self._run.supervised():
            _log.info("the run has ended")
            return False
        return True

    def give_up(self) -> None:
        """Do nothing: the run continues."""

    def close(self) -> None:
        """Stop waiting for the run."""
        self._waiting.close()


def of_container(spec: Mapping[str, Any], home: str, clock: Clock) -> RunKeeper:
    """Return the run that the container of a keeper was started for."""
    plan = _plan(str(spec["run"]), home, clock)
    archives = Archives(runtime=spec["runtime"]["sha256"], entrypoint=spec["entrypoint"])
    remarks = Remarks(plan, int(spec.get("job", 1)), clock)
    with suppress(StoreError):
        remarks.on_rights()
    return RunKeeper(VertexRun(plan, clock, archives), plan, remarks)


def _plan(url: str, home: str, clock: Clock) -> Plan:
    root = RunPaths(url).root
    paths = RootPaths(posixpath.join(home, "root")).run(RunPaths(url).run_id)
    copy = SyncedRun(paths, url, clock)
    copy.pull_plan()
    copy.pull_resumes()
    return read_plan(paths, root)


class Remarks:
    """The limits of a keeper, as records of the run, which users read. `number` is the number of its first job."""

    def __init__(self, plan: Plan, number: int, clock: Clock) -> None:
        self._plan, self._source, self._clock = plan, source_of("keeper", number - 1), clock
        self._store = GcsStore(plan.url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
        self._written_numbers: set[int] = set()

    def on_rights(self) -> None:
        target = Vertex.of(self._plan.target)
        keeper, project = self._plan.keeper, target.project
        if keeper is None or not project:
            return
        bucket = self._plan.root.removeprefix("gs://").partition("/")[0]
        lack = rights.on_each(rights.resources(keeper, project, bucket), rights.mine)
        if lack.unknown:
            _log.info(f"it is not known whether this account has {', '.join(lack.unknown)}: {lack.why}")
        if lack.missing:
            self._make(1, f"its account {keeper.account} lacks {', '.join(lack.missing)}")

    def on_refusal(self, why: str) -> None:
        """Record that its request for the next job was refused; "" if it was not."""
        if why:
            self._make(2, why)

    def _make(self, number: int, why: str) -> None:
        if number in self._written_numbers:
            return
        self._written_numbers.add(number)
        others = "A process that waits for the run still can (podlift wait)."
        text = f"The keeper cannot submit the next job: {why.rstrip('.')}. {others}"
        _log.error(text)
        event = Event(
            attempt=0, source=self._source, sequence=number, kind="finding", time=self._clock.now(), data={"text": text}
        )
        # A second keeper finds the same.
        create(self._store, KEYS.event(0, self._source, number, "finding"), event.to_json())
