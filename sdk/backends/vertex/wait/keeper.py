"""The keeper: a small CPU job that waits for a run as any client does, and so submits its next jobs while no client waits.

This is the side of the client, which creates it before the first job of a run: no run goes without the keeper that it was
promised. `keeper_main` runs in its container, and keeps a `RunKeeper`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ....clock import Clock
from ....errors import InputError, MissingError
from ....job.layout import RootPaths
from ....job.plan import Plan
from ....job.targets import Keeper
from ....job.wire import parsed
from ....records import spending
from ....records.spending import Spent
from ....records.sync.index import SYNC_RETRY
from ....status import Reason
from ....storage.gcs.files import BucketFiles
from ....storage.store import Store, create
from ... import keeper_main
from ...containers import create_spec
from .. import service
from ..client import JobClient, OutcomeUnknownError, VertexRejectedError
from ..job import create_job, diagnose
from ..job import request as job_request
from ..job.create_job import JobNotCreatedError
from ..options import Vertex
from . import keeper_job

LABEL = "podlift-keeper"
_KEEPS = "sdk.backends.vertex.wait.run_keeper:of_container"
_TRIES = 3
# A container starts within some minutes.
_STARTS_S = 900.0


def ensure(plan: Plan, number: int, store: Store, archives: tuple[str, str], clock: Clock) -> None:
    """Create the keeper for the jobs of a run from this number on, unless it exists; JobNotCreatedError if that fails.

    A second one, which a lost reply may leave, does no harm: claims decide who submits a job. `archives` are the sha256 of the
    runtime archive and of the entrypoint.
    """
    key, jobs = create_job.KEYS.keeper(number), JobClient(str(Vertex.of(plan.target).project), clock=clock)
    try:
        store.stat(key)
        return
    except MissingError:
        body = _body(plan, number, archives[1], _upload_spec(plan, number, store, archives))
    region = job_request.first_region(plan)
    for sent in range(1, _TRIES + 1):
        try:
            live_jobs = [
                job for job in jobs.list(region, {LABEL: plan.run_id, create_job.JOB: str(number)}) if not job.over
            ]
            job = live_jobs[0] if live_jobs else jobs.create(region, body)
        except VertexRejectedError as error:
            raise JobNotCreatedError(
                f"The run {plan.run_id} was not started, because {service.service_name()} rejected its keeper in {region}: "
                f"{error} Next: grant what podlift plan lists for the keeper, or submit without --vertex-keeper.",
                diagnose.diagnose(str(error), error.status).reason,
            ) from error
        except OutcomeUnknownError as error:
            if sent == _TRIES:
                raise JobNotCreatedError(
                    f"The run {plan.run_id} was not started, because its keeper was not: {error} Next: podlift resume "
                    f"{plan.url}.",
                    Reason.INFRASTRUCTURE,
                ) from error
            continue
        create(store, key, json.dumps({"name": job.name, "created": job.created or clock.now()}).encode())
        return


class KeeperFacts:
    """The facts about a run's keeper: its creation time and its costs."""

    def __init__(self, plan: Plan, store: Store, clock: Clock) -> None:
        self._keeper = plan.keeper
        self._billed = not plan.emulator
        self._store, self._files = store, BucketFiles(plan.url, retry=SYNC_RETRY, clock=clock)
        self._created: dict[int, float | None] = {}

    def is_starting(self, number: int) -> bool:
        """True for some minutes after the keeper of the jobs from this number on was created."""
        if self._keeper is not None:
            with suppress(MissingError):
                # By the clock of the bucket: this machine's clock may be wrong.
                return self._files.age_s(create_job.KEYS.keeper(number)) < _STARTS_S
        return False

    def added(self, used: Spent, number: int, since: float | None, until: float) -> Spent:
        """Add the keeper's money since the end of the last job, or since it began. It does not count against the timeout."""
        created = self._of(number)
        if created is None or self._keeper is None or not self._billed:
            return used
        own = spending.spent(max(created, since or created), until, self._keeper.price)
        return replace(used + own, seconds=used.seconds)

    def _of(self, number: int) -> float | None:
        if self._keeper is None:
            return None
        if self._created.get(number) is None:
            self._created[number] = None
            with suppress(MissingError):
                about = parsed(bytes(self._store.get(create_job.KEYS.keeper(number))))
                self._created[number] = float(about["created"])
        return self._created[number]


def _upload_spec(plan: Plan, number: int, store: Store, archives: tuple[str, str]) -> str:
    """Create the launch spec of the keeper, and return its sha256."""
    about = job_request.launch_spec(plan, number, archives[0])
    common_fields = {name: about[name] for name in ("version", "run", "runtime", "python")}
    whole = {
        **common_fields,
        "main": keeper_main.NAME,
        "keeps": _KEEPS,
        "entrypoint": archives[1],
        "keep_for_s": _keeper(plan).life_s,
        "job": number,
    }
    return create_spec(store, create_job.KEYS.keeper_spec(number), whole)


def _body(plan: Plan, number: int, entrypoint: str, spec_digest: str) -> Mapping[str, object]:
    """Return the request for the job: one CPU machine on demand in the region of the first location."""
    options, keeper = Vertex.of(plan.target), _keeper(plan)
    # It makes the requests for the next jobs, which hold these values.
    values = {name: os.environ[name] for name in plan.job.copied if name in os.environ}
    ours = job_request.render(plan, number=number, entrypoint=entrypoint, copied=values)
    container = dict(ours["jobSpec"]["workerPoolSpecs"][0]["containerSpec"])
    key = RootPaths(plan.root).run(plan.run_id).keeper_spec(number).removeprefix("gs://").partition("/")[2]
    container["imageUri"] = options.keeper_image or container["imageUri"]
    container["args"] = [*container["args"][:3], key, spec_digest]
    labels = {LABEL: plan.run_id, create_job.JOB: str(number)}
    return keeper_job.body(options, keeper, f"{plan.run_id}-keeper", labels, container)


def _keeper(plan: Plan) -> Keeper:
    keeper = plan.keeper
    if keeper is None:
        raise InputError("A keeper needs a service account: vertex_keeper_service_account.")
    return keeper
