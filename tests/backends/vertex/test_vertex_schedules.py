"""Schedules on the emulated cloud: Cloud Scheduler delivers slots by the clock, keepers serve them, and runs train."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, needs, until
from weekly_schedules import ACCOUNT, WEEK_S

import sdk
from sdk.job.layout import RootPaths
from sdk.packaging.runtime_archive import runtime_archive
from sdk.schedules.handle import Schedule
from sdk.storage.registry import open_store
from sdk.testing.vertex import Cloud

needs("cronsim", "google.cloud.scheduler_v1")


class Weekly:
    """A weekly schedule, and its cloud."""

    def __init__(self, cloud: Cloud, schedule: Schedule) -> None:
        self.cloud, self.schedule = cloud, schedule

    def settle(self) -> None:
        """Wait until each keeper has ended."""
        ends = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")
        until(lambda: all(job["state"] in ends for job in self.keepers()), self.keepers_told)

    def keepers(self) -> list[dict[str, Any]]:
        """Return the jobs of the keepers."""
        jobs = self.cloud.ask("GET", f"/v1/{self.cloud.parent}/customJobs").get("customJobs", [])
        return [job for job in jobs if "podlift-schedule" in (job.get("labels") or {})]

    def keepers_told(self) -> list[object]:
        return [[entry.get("textPayload") for entry in self.cloud.entries(job["name"])] for job in self.keepers()]


@pytest.fixture
def weekly(cloud, project) -> Callable[..., Weekly]:
    def make(program: str = "import sys\nprint(sys.argv[1:])\n", **rules: Any) -> Weekly:
        Path("program.py").write_text(program)
        job, target = sdk.Job("program.py", args=["{slot:%Y-%m-%d}"]), cloud.backend(keeper_service_account=ACCOUNT)
        rules = {"cron": "0 3 * * 1", "time_zone": "Europe/Berlin", **rules}
        return Weekly(cloud, sdk.schedule(job, name="weekly", backend=target, **rules))

    return make


def test_a_schedule_that_is_made_after_the_clock_was_moved_begins_by_that_clock(cloud, weekly) -> None:
    cloud.advance(3 * WEEK_S)
    this = weekly()
    now = cloud.ask("GET", "/_clock")["now"]
    assert this.schedule.record.since == pytest.approx(now, abs=60)
    assert 0 < this.schedule.next(1)[0].timestamp() - now <= WEEK_S
    assert this.schedule.problems() == []
    cloud.advance(0)


@pytest.mark.shows("Schedules start runs on your machine or on Vertex AI")
def test_a_slot_that_cloud_scheduler_delivers_starts_one_run(cloud, weekly) -> None:
    this = weekly()
    cloud.scheduler().run_job(name=this.schedule.record.trigger, timeout=30)
    cloud.advance(0)
    this.settle()
    (record,) = this.schedule.history(None)
    assert (record.state, record.cause) == ("SUCCEEDED", "schedule")
    assert [run.id for run in sdk.runs(root=this.schedule.root)] == [record.run]
    # The slot has a record: no second keeper is paid for.
    assert "was delivered before" in this.schedule.run_due(detach=True).text
    assert len(this.keepers()) == 1


@pytest.mark.full
def test_a_schedule_without_a_trigger_at_the_service_has_keepers_all_the_same(cloud, weekly) -> None:
    this = weekly(trigger="serve")
    assert this.schedule.record.trigger == ""
    done = this.schedule.run_due(detach=True)
    assert done.exit_code == 0 and "takes the slot once it has a machine" in done.text
    this.settle()
    (record,) = this.schedule.history(None)
    assert (record.state, record.slot) == ("SUCCEEDED", done.record.slot if done.record else "")
    (keeper,) = this.keepers()
    assert record.keeper.rpartition("/")[2] == keeper["name"].rpartition("/")[2]


@pytest.mark.full
def test_a_keeper_needs_the_standard_library_and_the_runtime_archive_only(cloud, weekly, tmp_path) -> None:
    this = weekly(when=("program:is_due",), program="def is_due(firing):\n    return firing['schedule'] == 'weekly'\n")
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1"}
    # This process is the container of that job.
    container = {"imageUri": "podlift/emulated", "command": ["sleep", "300"]}
    body = {"displayName": "k", "jobSpec": {"workerPoolSpecs": [{**pool, "containerSpec": container}]}}
    job = cloud.ask("POST", f"/v1/{cloud.parent}/customJobs", body)["name"]
    home, archive = tmp_path / "home", runtime_archive(tmp_path / "archive")
    with tarfile.open(archive.path) as tar:
        tar.extractall(home / "runtime", filter="data")
    (home / "runtime.tar").write_bytes(archive.path.read_bytes())
    spec = {"root": this.schedule.root, "schedule": "weekly", "id": this.schedule.record.id, "keep_for_s": 600.0}
    spec["keeps"] = "sdk.schedules.kept_slot:of_container"
    program = (
        "import sys\n"
        f"sys.path += {[str(home / 'runtime' / name) for name in ('podlift', 'vendor')]!r}\n"
        "from sdk.backends import keeper_main\n"
        f"code = keeper_main.main({spec!r}, home={str(home)!r})\n"
        "assert not {'pydantic', 'google', 'packaging', 'psutil', 'pathspec', 'fsspec'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    env = {name: value for name, value in os.environ.items() if name.startswith(("PODLIFT", "STORAGE"))}
    env |= {"CLOUD_ML_JOB_ID": job.rpartition("/")[2]}
    words = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    (found,) = this.schedule.history(None)
    assert found.state == "SUCCEEDED", found.reason
    # Its job started from the archive that it ran from itself.
    launched = open_store(RootPaths(this.schedule.root).run(found.run).url)
    jobs = [bytes(launched.get(stat.key)) for stat in launched.list("jobs/")]
    specs = [each for each in jobs if b"runtime" in each]
    assert specs and all(archive.digest.encode() in each for each in specs)
