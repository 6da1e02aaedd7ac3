"""Schedules on the emulated cloud: Cloud Scheduler delivers slots by the clock, keepers serve them, and runs train."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from datetime import timezone
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, needs, said, until

import sdk
from sdk.job.layout import RootPaths
from sdk.packaging.runtime_archive import runtime_archive
from sdk.schedules.handle import Schedule
from sdk.schedules.records import SlotRecord
from sdk.storage.registry import open_store
from sdk.testing.vertex import Cloud

needs("cronsim", "google.cloud.scheduler_v1")
ACCOUNT = "keeper@podlift.iam.gserviceaccount.com"
WEEK_S = 7 * 86400.0
RETRY = sdk.Retry(infrastructure=3, preemptions=None)
# Weights that depend on every step, in the program's own checkpoints; it leaves at once when its machine is taken away.
PROGRAM = """
import os, signal, sys
from sdk.storage.registry import open_store
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
store = open_store(os.environ["AIP_CHECKPOINT_DIR"].rstrip("/"))
done = sorted(stat.key for stat in store.list("step-"))
weight = float.fromhex(bytes(store.get(done[-1])).decode()) if done else 0.1
print("begins at", len(done), flush=True)
for step in range(len(done), 6):
    weight = 3.9 * weight * (1 - weight)
    store.put_new(f"step-{step:03d}", [weight.hex().encode()])
    print(sys.argv[-1], "step", step, flush=True)
    if step == 2 and not done and sys.argv[-1] in TAKEN_AWAY:
        signal.pause()
print("weights", weight.hex(), flush=True)
"""


class Weekly:
    """A weekly schedule, and the cloud whose clock goes from slot to slot."""

    def __init__(self, cloud: Cloud, schedule: Schedule) -> None:
        self.cloud, self.schedule = cloud, schedule

    def pass_week(self, and_s: float = 0.0) -> None:
        """Let a week pass, and wait until the keepers of its deliveries have ended."""
        assert self.cloud.advance(WEEK_S + and_s)
        self.settle()

    def settle(self) -> None:
        until(lambda: not [each for each in self.keepers() if "ended" not in each], self.keepers_told)

    def keepers(self) -> list[dict[str, Any]]:
        """Return the jobs of the keepers, the first one first."""
        found = self.cloud.ask("GET", f"/v1/{self.cloud.parent}/customJobs").get("customJobs", [])
        keepers = [job for job in found if "podlift-schedule" in (job.get("labels") or {})]
        for each in keepers:
            if each["state"] in ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"):
                each["ended"] = each["state"]
        return sorted(keepers, key=lambda job: str(job["createTime"]))

    def keepers_told(self) -> list[object]:
        return [[entry.get("textPayload") for entry in self.cloud.entries(job["name"])] for job in self.keepers()]

    def history(self) -> list[SlotRecord]:
        """Return the records of the slots, the first one first."""
        return self.schedule.history(None)[::-1]

    def run(self, record: SlotRecord) -> sdk.Run:
        return sdk.attach(RootPaths(self.schedule.root).run(record.run).url)


MakeWeekly = Callable[..., Weekly]


@pytest.fixture
def weekly(podlift_vertex: Cloud, project: Path) -> Callable[..., Weekly]:
    def make(job: sdk.Job | None = None, *, program: str = "import sys\nprint(sys.argv[1:])\n", **rules: Any) -> Weekly:
        Path("program.py").write_text(program)
        places = {name: rules.pop(name) for name in ("regions",) if name in rules}
        target = podlift_vertex.backend(keeper_service_account=ACCOUNT, **places)
        given = job or sdk.Job("program.py", args=["{slot:%Y-%m-%d}"])
        rules = {"cron": "0 3 * * 1", "time_zone": "Europe/Berlin", **rules}
        return Weekly(podlift_vertex, sdk.schedule(given, name="weekly", backend=target, **rules))

    return make


def add_rows(cloud: Cloud, name: str) -> None:
    open_store(f"gs://{cloud.bucket}/rows").put_new(name, [b"x" * 100])


@pytest.mark.full
def test_four_weeks_of_a_weekly_schedule(podlift_vertex: Cloud, weekly: MakeWeekly) -> None:
    """Week 2 is preempted, week 3 has no new data, and week 4 is delivered twice."""
    inputs = {"rows": f"gs://{podlift_vertex.bucket}/rows/"}
    add_rows(podlift_vertex, "1")
    rules: dict[str, Any] = {"when": ("min_new_examples(rows, 1)",)}
    job = sdk.Job("program.py", args=["{slot:%Y-%m-%d}"], inputs=inputs, retry=RETRY)
    this = weekly(job, program=f"TAKEN_AWAY = {{}}\n{PROGRAM}", **rules)
    first, second, third, fourth = (slot.strftime("%Y-%m-%d") for slot in this.schedule.next(4))
    this = weekly(job, program=f"TAKEN_AWAY = {second!r}\n{PROGRAM}", **rules)
    taken_away = {"display_name": f"^weekly-{second.replace('-', '')}", "log": f"^{second} step 2$"}
    podlift_vertex.faults(
        {"api": "vertex", "kind": "preempt", **taken_away},
        {"api": "scheduler", "kind": "early", "nth": 1},
        {"api": "scheduler", "kind": "duplicate", "nth": 4},
    )
    for week in range(4):
        if week in (1, 3):
            add_rows(podlift_vertex, str(week + 1))
        this.pass_week()
    found = this.history()
    assert [each.slot[:10] for each in found] == [first, second, third, fourth]
    assert [each.state for each in found] == ["SUCCEEDED", "SUCCEEDED", "SKIPPED", "SUCCEEDED"], this.keepers_told()
    assert found[2].reason.startswith("min_new_examples(rows, 1): 0 new examples since")
    # The clock of the service is weeks ahead of that of the machines.
    assert all(0 <= (each.ended or 0.0) - (each.started or 0.0) < 3600 for each in found if each.run), found
    # The duplicate is a note in the record, and its keeper ended well.
    assert [len(each.notes) for each in found] == [0, 0, 0, 1]
    assert found[3].notes[0].startswith("delivered again at ")
    assert [job["ended"] for job in this.keepers()] == ["JOB_STATE_SUCCEEDED"] * 5
    runs = [this.run(each) for each in found if each.run]
    assert [run.id for run in sdk.runs(root=this.schedule.root)] == sorted((run.id for run in runs), reverse=True)
    assert [run.status().attempts for run in runs] == [1, 2, 1]
    # The second week went on from its own steps, and each ended at the same weights.
    begins = [[line for line in said(run) if line.startswith("begins")] for run in runs]
    assert begins == [["begins at 0"], ["begins at 0", "begins at 3"], ["begins at 0"]]
    assert len({line for run in runs for line in said(run) if line.startswith("weights")}) == 1


def test_a_schedule_that_is_made_after_the_clock_was_moved_begins_by_that_clock(
    podlift_vertex: Cloud, weekly: MakeWeekly
) -> None:
    podlift_vertex.advance(3 * WEEK_S)
    this = weekly()
    now = podlift_vertex.ask("GET", "/_clock")["now"]
    assert this.schedule.record.since == pytest.approx(now, abs=60)
    assert 0 < this.schedule.next(1)[0].timestamp() - now <= WEEK_S
    assert this.schedule.problems() == []
    podlift_vertex.advance(0)


@pytest.mark.shows("Schedules start runs on your machine or on Vertex AI")
def test_a_workflow_a_cron_job_and_cloud_scheduler_deliver_one_slot_and_start_one_run(
    podlift_vertex: Cloud, weekly: MakeWeekly
) -> None:
    this = weekly()
    words = ["podlift", "schedule", "run", "weekly", "--due", "--root", this.schedule.root, "--id", "podlift-weekly-29"]
    command = f'podlift schedule run weekly --due --root {this.schedule.root} --id "github-$GITHUB_RUN_ID" --detach'
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "GITHUB_RUN_ID": "77"}
    started = [
        subprocess.Popen(each, env=variables, stderr=subprocess.PIPE, text=True)
        for each in (["bash", "-e", "-c", command], words)
    ]
    podlift_vertex.scheduler().run_job(name=this.schedule.record.trigger, timeout=30)
    podlift_vertex.advance(0)
    said_by = [each.communicate(timeout=LIMIT_S)[1] for each in started]
    assert [each.returncode for each in started] == [0, 0], said_by
    this.settle()
    (record,) = this.history()
    assert (record.state, record.cause) == ("SUCCEEDED", "schedule")
    assert [run.id for run in sdk.runs(root=this.schedule.root)] == [record.run]
    # The keeper that the workflow has created knows its slot by a label, not by its own time.
    labels = [job["labels"]["podlift-slot"] for job in this.keepers()]
    assert sorted(labels) in ([f"{record.moment.astimezone(timezone.utc):%Y%m%dt%H%M%Sz}", "cron"], ["cron"]), said_by
    # Of those that came later, each says so.
    assert len(record.notes) >= 2 and all("delivered" in note for note in record.notes)


@pytest.mark.full
def test_a_schedule_without_a_trigger_at_the_service_has_keepers_all_the_same(
    podlift_vertex: Cloud, weekly: MakeWeekly
) -> None:
    this = weekly(trigger="serve")
    assert this.schedule.record.trigger == ""
    done = this.schedule.run_due(detach=True)
    assert done.exit_code == 0 and "takes the slot once it has a machine" in done.text
    this.settle()
    (record,) = this.history()
    assert (record.state, record.slot) == ("SUCCEEDED", done.record.slot if done.record else "")
    (keeper,) = this.keepers()
    assert record.keeper.rpartition("/")[2] == keeper["name"].rpartition("/")[2]
    # The slot has a record: no second keeper is paid for.
    assert "was delivered before" in this.schedule.run_due(detach=True).text
    assert len(this.keepers()) == 1


@pytest.mark.full
def test_a_keeper_needs_the_standard_library_and_the_runtime_archive_only(
    podlift_vertex: Cloud, weekly: MakeWeekly, tmp_path: Path
) -> None:
    this = weekly(when=("program:is_due",), program="def is_due(firing):\n    return firing['schedule'] == 'weekly'\n")
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1"}
    # This process is the container of that job.
    container = {"imageUri": "podlift/emulated", "command": ["sleep", "300"]}
    body = {"displayName": "k", "jobSpec": {"workerPoolSpecs": [{**pool, "containerSpec": container}]}}
    job = podlift_vertex.ask("POST", f"/v1/{podlift_vertex.parent}/customJobs", body)["name"]
    home, archive = tmp_path / "home", runtime_archive(tmp_path / "archive")
    with tarfile.open(archive.path) as tar:
        tar.extractall(home / "runtime", filter="data")
    (home / "runtime.tar").write_bytes(archive.path.read_bytes())
    record = this.schedule.record
    spec = {"root": this.schedule.root, "schedule": "weekly", "id": record.id, "keep_for_s": 600.0}
    program = (
        "import sys\n"
        f"sys.path += {[str(home / 'runtime' / name) for name in ('podlift', 'vendor')]!r}\n"
        "from sdk.schedules import keeper_main\n"
        f"code = keeper_main.main({spec!r}, home={str(home)!r})\n"
        "assert not {'pydantic', 'google', 'packaging', 'psutil', 'pathspec', 'fsspec'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    env = {name: value for name, value in os.environ.items() if name.startswith(("PODLIFT", "STORAGE"))}
    env |= {"CLOUD_ML_JOB_ID": job.rpartition("/")[2]}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    (found,) = this.history()
    assert found.state == "SUCCEEDED", found.reason
    # Its job started from the archive that it ran from itself.
    launched = open_store(this.run(found).url)
    specs = [
        bytes(launched.get(stat.key)) for stat in launched.list("jobs/") if b"runtime" in bytes(launched.get(stat.key))
    ]
    assert specs and all(archive.digest.encode() in each for each in specs)
