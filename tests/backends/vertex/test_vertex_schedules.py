"""A schedule's keeper in its container on the emulator: it takes the slot, submits the run, and follows it to its end."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, needs, until

import sdk
from sdk import State
from sdk.backends.vertex import start_run
from sdk.packaging.runtime_archive import loader, runtime_archive
from sdk.schedules import handle
from sdk.schedules.records import Book, SlotRecord
from sdk.spec.layout import RootPaths
from sdk.storage.registry import open_store
from sdk.testing.vertex import Cloud

needs("cronsim")
DAY_S = 86400.0


@dataclass
class Scheduled:
    """A schedule in the emulated cloud, and the job that its trigger posts."""

    cloud: Cloud
    root: str
    spec: dict[str, Any]
    plan: sdk.Plan

    def body(self, slot: str) -> dict[str, Any]:
        data = json.dumps(self.spec).encode()
        digest = hashlib.sha256(data).hexdigest()
        key = f"keepers/{self.spec['schedule']}/{digest}"
        store, root = open_store(RootPaths(self.root).schedules), RootPaths("podlift")
        if not list(store.list(key)):
            store.put_new(key, [data])
        arguments = [self.cloud.bucket, root.entrypoint(self.spec["entrypoint"]), self.spec["entrypoint"]]
        arguments += [f"{root.schedules}/{key}", digest]
        container = {"imageUri": "podlift/emulated", "command": ["python3", "-c", loader()], "args": arguments}
        pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1", "containerSpec": container}
        labels = {"podlift-schedule": self.spec["schedule"], "podlift-slot": slot}
        return {"displayName": "keeper", "labels": labels, "jobSpec": {"workerPoolSpecs": [pool]}}

    def deliver(self, slot: str = "cron") -> str:
        """Create a keeper as Cloud Scheduler does, and return the name of its job."""
        return str(self.cloud.ask("POST", f"/v1/{self.cloud.parent}/customJobs", self.body(slot))["name"])

    def serve(self, slot: str = "cron") -> None:
        """Deliver a slot, and wait until its keeper has ended."""
        job = self.deliver(slot)
        until(lambda: self.state(job).startswith("JOB_STATE_SUCCEEDED"), lambda: self.log(job))

    def state(self, job: str) -> str:
        return str(self.cloud.ask("GET", f"/v1/{job}")["state"])

    def log(self, job: str) -> list[str]:
        return [str(entry.get("jsonPayload") or entry.get("textPayload")) for entry in self.cloud.entries(job)]

    def history(self) -> list[SlotRecord]:
        book = Book(self.root)
        record = book.read("weekly")
        return book.slots(record, book.keys(record))


@pytest.fixture
def scheduled(podlift_vertex: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scheduled]:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("program.py").write_text("import sys\nprint('trained', sys.argv[1:])\n")

    def make(job: sdk.Job | None = None, **rules: Any) -> Scheduled:
        plan = sdk.plan(
            job or sdk.Job("program.py", args=["{slot:%Y-%m-%d}"]), backend=podlift_vertex.backend(), name="weekly"
        )
        spec = handle.draft(name="weekly", **{"cron": "0 3 * * 1", "time_zone": "Europe/Berlin", **rules})
        prepared = handle.Prepared(spec=spec, plan=plan.for_run("weekly-aaaaaa"), warnings=())
        record = handle.create(prepared).record
        archives = start_run.upload_archives(plan)
        about = {
            "version": 1,
            "main": "sdk.schedules.keeper_main",
            "runtime": {"key": RootPaths("podlift").runtime(archives.runtime), "sha256": archives.runtime},
            "python": ["3.10", "3.13"],
            "entrypoint": archives.entrypoint,
            "root": plan.root,
            "schedule": "weekly",
            "id": record.id,
            "keep_for_s": 600.0,
        }
        return Scheduled(podlift_vertex, plan.root, about, plan)

    return make


def test_a_delivery_starts_the_stored_plan_as_a_run_of_its_own(
    scheduled: Callable[..., Scheduled], tmp_path: Path
) -> None:
    weekly = scheduled()
    # Nothing of the machine that created the schedule is needed.
    Path("program.py").unlink()
    weekly.serve()
    (record,) = weekly.history()
    assert record.state == "SUCCEEDED", record.reason
    assert record.moment.strftime("%A %H:%M") == "Monday 03:00"
    run = sdk.attach(RootPaths(weekly.root).run(record.run).url)
    assert run.status().state is State.SUCCEEDED
    assert run.plan.code.argv == [record.slot[:10]]
    # The keeper created it with the same archive as it was started from itself.
    assert weekly.spec["runtime"]["sha256"] in json.dumps(
        weekly.cloud.ask("GET", f"/storage/v1/b/{weekly.cloud.bucket}/o")
    )


def test_a_firing_by_hand_is_a_slot_of_its_own(scheduled: Callable[..., Scheduled]) -> None:
    weekly = scheduled()
    weekly.serve("manual")
    (record,) = weekly.history()
    assert (record.state, record.cause) == ("SUCCEEDED", "manual")
    assert "-manual-" in record.key


def test_a_keeper_needs_the_standard_library_and_the_runtime_archive_only(
    scheduled: Callable[..., Scheduled], tmp_path: Path
) -> None:
    weekly = scheduled()
    body = weekly.body("cron")
    # This process is the container of that job.
    body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"] |= {"command": ["sleep", "300"], "args": []}
    job = weekly.cloud.ask("POST", f"/v1/{weekly.cloud.parent}/customJobs", body)["name"]
    home, archive = tmp_path / "home", runtime_archive(tmp_path / "archive")
    with tarfile.open(archive.path) as tar:
        tar.extractall(home / "runtime", filter="data")
    (home / "runtime.tar").write_bytes(archive.path.read_bytes())
    program = (
        "import json, sys\n"
        f"sys.path += {[str(home / 'runtime' / name) for name in ('podlift', 'vendor')]!r}\n"
        "from sdk.schedules import keeper_main\n"
        f"code = keeper_main.main(json.loads(sys.argv[1]), home={str(home)!r})\n"
        "assert not {'pydantic', 'google', 'packaging', 'psutil', 'pathspec', 'fsspec'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-I", "-S", "-c", program, json.dumps(weekly.spec)]
    env = {name: value for name, value in os.environ.items() if name.startswith(("PODLIFT", "STORAGE"))}
    env |= {"CLOUD_ML_JOB_ID": job.rpartition("/")[2]}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert [record.state for record in weekly.history()] == ["SUCCEEDED"], weekly.history()
