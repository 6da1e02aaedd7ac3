"""The keeper of a firing: the small CPU job that a schedule's trigger starts at each slot.

It takes the slot, decides, and submits the run, so that no accelerator is rented for a slot that is skipped. Its request is
fixed when the schedule is created: it names the image, and podlift itself and the launch spec by their digests.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....job.layout import RootPaths
from ....job.plan import Plan
from ....job.targets import LONGEST_S, Keeper
from ....job.values import changed
from ....packaging.runtime_archive import entrypoint_file, runtime_archive
from ....storage import cache
from ... import keeper_main
from ...containers import PYTHON_RANGE, key_of
from ...triggers import TriggerDraft
from ..job import request as job_request
from ..options import Vertex
from ..wait import keeper_job
from .keeper_labels import BY_CRON, SCHEDULE, SLOT

NO_ACCOUNT = "<service account>"


@dataclass(frozen=True, kw_only=True)
class KeeperFiles:
    """The launch spec of a keeper, and its key below the schedules of the root."""

    key: str
    spec: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.spec).hexdigest()


def keeper(plan: Plan, overlap: str) -> Keeper:
    """Return the keeper of a firing. With a queue, it may first wait for an earlier run."""
    options = Vertex.of(plan.target)
    account = options.keeper_service_account or options.service_account or NO_ACCOUNT
    job_keeper = changed(options, keeper=options.keeper or True, keeper_service_account=account).kept_by(
        plan.job.limits, plan.job.retry, plan.facts.prices
    )
    if job_keeper is None:
        raise TypeError("A keeper with an account exists.")
    life_s = min(job_keeper.life_s * (2 if overlap in ("queue", "replace") else 1), LONGEST_S)
    return replace(job_keeper, life_s=life_s)


def files(draft: TriggerDraft) -> KeeperFiles:
    """Return the files that the container of the keeper reads."""
    root, runtime = RootPaths(draft.plan.root), runtime_archive(cache.cache_folder(os.environ)).digest
    about = {
        "version": 1,
        "main": keeper_main.NAME,
        "keeps": draft.keeps,
        "runtime": {"key": key_of(root.runtime(runtime)), "sha256": runtime},
        "python": list(PYTHON_RANGE),
        "entrypoint": entrypoint_file().digest,
        "root": draft.plan.root,
        "schedule": draft.schedule,
        "id": draft.id,
        "keep_for_s": keeper(draft.plan, draft.overlap).life_s,
        "zone": dict(draft.zone),
        # The schedule may have another expression by the time at which a keeper has its machine.
        "cron": draft.cron,
        "time_zone": draft.time_zone,
    }
    spec = json.dumps(about, sort_keys=True).encode()
    # As a JSON file, it makes `podlift remove` keep the archives that it names.
    return KeeperFiles(key=f"{folder(draft.schedule)}{hashlib.sha256(spec).hexdigest()}.json", spec=spec)


def folder(schedule: str) -> str:
    """Return where the launch specs of a schedule's keepers are, below the schedules of the root."""
    return f"keepers/{schedule}/"


def body(draft: TriggerDraft, files: KeeperFiles) -> Mapping[str, object]:
    """Return the custom job: one CPU machine on demand in the region of the first location."""
    options, slot_keeper = Vertex.of(draft.plan.target), keeper(draft.plan, draft.overlap)
    root, entrypoint = RootPaths(draft.plan.root), entrypoint_file().digest
    container = {
        "imageUri": options.keeper_image or Vertex.of(job_request.at(draft.plan).target).image or job_request.NO_IMAGE,
        "args": [
            root.root.split("/")[2],
            key_of(root.entrypoint(entrypoint)),
            entrypoint,
            key_of(f"{root.schedules}/{files.key}"),
            files.digest,
        ],
    }
    labels = {SCHEDULE: draft.schedule, SLOT: BY_CRON}
    return keeper_job.body(options, slot_keeper, f"{draft.schedule}-keeper", labels, container)
