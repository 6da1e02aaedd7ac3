"""Runs with a directory in a bucket: all that they write reaches it, and any machine can supervise them from there;
and the watchdog, which restarts an uploader that a signal has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from local_runs import supervisor
from support import LIMIT_S, until

import sdk
from sdk import api, logs
from sdk.backends.local import bucket_run, uploader, watchdog
from sdk.clock import SystemClock
from sdk.process.redirect import start
from sdk.records.sync.push import PeriodicAction, Pusher
from sdk.storage.gcs.store import GcsStore
from sdk.upkeep.doctor.root import bucket

pytestmark = [pytest.mark.process, pytest.mark.spread]

ROOT = "gs://mine/podlift"
TWO_TASKS = """
import os, pathlib, sys
import sdk
task = os.environ["PODLIFT_TASK"]
for number in range(2000):
    print(task, number, flush=number % 100 == 0)
ctx = sdk.context()
ctx.report({"loss": 0.5}, step=3)
pathlib.Path("notes.txt").write_text("left by " + task)
model = pathlib.Path(os.environ["AIP_MODEL_DIR"])
if ctx.is_chief:
    (model / "weights").mkdir()
    (model / "weights" / "a b#1.bin").write_bytes(bytes(range(256)) * 4096)
    (model / "latest").symlink_to("weights/a b#1.bin")
"""
WAITING = """
import os, pathlib, time
print("attempt", os.environ["PODLIFT_ATTEMPT"], flush=True)
if os.environ["PODLIFT_ATTEMPT"] == "1":
    for number in range(100000):
        print("line", number, flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def gcs(podlift_gcs, mine, monkeypatch):
    """An emulator with a bucket, known to all that is started here; `elsewhere` moves to another machine."""
    monkeypatch.setenv("PODLIFT_ROOT", ROOT)
    return podlift_gcs


@pytest.fixture
def elsewhere(monkeypatch, tmp_path) -> Callable[[], None]:
    """Become another machine, which shares no file with the first one."""
    return lambda: monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))


def submit(text: str, **job) -> sdk.Run:
    Path("train.py").write_text(text)
    return sdk.submit("train.py", **job)


def kill_uploader() -> None:
    """Kill the newest uploader and its watchdog, as if the machine was gone."""
    os.killpg(uploader._uploaders[-1].pid, signal.SIGKILL)
    uploader._uploaders[-1].wait()


def objects(gcs, prefix: str) -> dict[str, bytes]:
    return {blob.name: blob.download_as_bytes() for blob in gcs.client().list_blobs("mine", prefix=prefix)}


def content(gcs, run: sdk.Run, file: str) -> bytes:
    """A growing file as its pieces give it."""
    found = objects(gcs, f"podlift/runs/{run.id}/{file}/")
    return b"".join(found[name] for name in sorted(found))


def uploading(gcs) -> sdk.Run:
    """Return a run that goes on, with its first lines in the bucket."""
    run = submit(WAITING)
    until(lambda: b"line 20" in content(gcs, run, "attempts/0001/logs/chief-0.log"))
    return run


def is_complete(gcs, run: sdk.Run, task: str = "chief-0") -> bool:
    return content(gcs, run, f"attempts/0001/logs/{task}.log") == Path(run.plan.paths.log(1, task)).read_bytes()


def test_all_of_a_run_is_read_back_on_another_machine(gcs, write, elsewhere, tmp_path) -> None:
    run = submit(TWO_TASKS, workers=2)
    assert run.url == f"{ROOT}/runs/{run.id}"
    result = run.result(LIMIT_S)
    assert result.run_dir == run.url
    here = {task: Path(run.plan.paths.log(1, task)).read_bytes() for task in run.plan.tasks}
    records = {path.name: path.read_bytes() for path in Path(run.plan.paths.events).iterdir()}
    elsewhere()
    other = sdk.attach(run.url)
    assert other.plan.paths.url != run.plan.paths.url
    assert [sdk.attach(name).url for name in ("latest", run.id[:5])] == [run.url, run.url]
    assert other.status() == run.status()
    assert other.metrics() == run.metrics()
    assert other.result(LIMIT_S).metrics == {"loss": 0.5}
    assert list(other.logs()) == list(run.logs())
    assert {task: content(gcs, run, f"attempts/0001/logs/{task}.log") for task in here} == here
    there = objects(gcs, f"podlift/runs/{run.id}/events/")
    assert {name.rpartition("/")[2]: data for name, data in there.items()} == records
    other.download(tmp_path / "got")
    assert (tmp_path / "got" / "work" / "notes.txt").read_text() == "left by chief-0"
    assert (tmp_path / "got" / "model" / "latest").read_bytes() == bytes(range(256)) * 4096
    assert [(info.id, info.status.state) for info in sdk.runs()] == [(run.id, sdk.State.SUCCEEDED)]
    assert sdk.attach(run.id).status().state is sdk.State.SUCCEEDED


def test_another_machine_continues_a_run_with_an_old_heartbeat(gcs, write, elsewhere, monkeypatch) -> None:
    run = uploading(gcs)
    until(lambda: any("attempt_started" in name for name in objects(gcs, f"podlift/runs/{run.id}/events/")))
    kill_uploader()
    os.kill(supervisor(run), signal.SIGKILL)
    elsewhere()
    other = sdk.attach(run.url)
    assert other.status().state is sdk.State.RUNNING, "nobody can know yet"
    with pytest.raises(sdk.InputError, match="is RUNNING: there is nothing to resume"):
        other.resume()
    with monkeypatch.context() as patched:
        # As if the machine had been gone for a while: nobody has to sleep for that.
        patched.setattr(bucket_run, "LOST_AFTER_S", -1.0)
        assert other.status().state is sdk.State.LOST
        other.resume()
    assert other.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    # The first machine is back, and finds that the run went on without it.
    assert run.plan.paths.url != other.plan.paths.url
    assert sdk.attach(run.url).status().state is sdk.State.SUCCEEDED


def test_a_killed_uploader_is_replaced_without_any_client(gcs, write) -> None:
    run = uploading(gcs)
    watchdog = uploader._uploaders[-1].pid
    (first,) = Path(f"/proc/{watchdog}/task/{watchdog}/children").read_text().split()
    os.kill(int(first), signal.SIGKILL)
    there = content(gcs, run, "attempts/0001/logs/chief-0.log")
    # Nobody asks for the run here.
    until(lambda: len(content(gcs, run, "attempts/0001/logs/chief-0.log")) > len(there) + 100)
    run.cancel(grace_s=0)
    until(lambda: any(name.endswith(".final.json") for name in objects(gcs, f"podlift/runs/{run.id}/events/")))
    assert uploader._uploaders[-1].pid == watchdog
    assert is_complete(gcs, run)
    assert uploader._uploaders[-1].wait(LIMIT_S) == 0
    assert uploader.is_uploaded(run.plan.paths)


def test_a_failed_upload_never_counts_as_uploaded(gcs, write, monkeypatch) -> None:
    run = submit("import os; open('run.sh', 'w').close(); os.chmod('run.sh', 0o755)")
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED

    def refuse(*_: object, **__: object) -> None:
        raise sdk.errors.ConflictError("somebody was faster")

    with monkeypatch.context() as patched:
        patched.setattr(GcsStore, "swap", refuse)
        with pytest.raises(sdk.errors.StoreError, match=r"keeps writing outputs.json of") as caught:
            Pusher(run.plan.paths, f"{ROOT}/runs/other-aaaaaa", SystemClock()).push(last=True)
    # For an uploader this would mean that the run goes on elsewhere.
    assert not isinstance(caught.value, sdk.errors.ConflictError)
    log = Path(run.plan.paths.log(1, "chief-0"))
    log.unlink()
    log.symlink_to(log)
    with pytest.raises(OSError, match="symbolic links"):
        Pusher(run.plan.paths, f"{ROOT}/runs/other-aaaaaa", SystemClock()).push(last=True)


def test_a_failing_periodic_action_is_repeated_when_due_and_logs_each_new_failure() -> None:
    outcomes = iter([sdk.PodliftError("no network")] * 3 + [sdk.PodliftError("no bucket"), KeyError("x"), None])

    def once() -> None:
        error = next(outcomes)
        if error is not None:
            raise error

    action = PeriodicAction(10.0, "heartbeat", once)
    said: list[str] = []
    with logs.heard(said.append):
        for now in (0.0, 5.0, 10.0, 700.0, 710.0, 720.0, 730.0):
            action.run_if_due(now)
    lines = [text.removeprefix("heartbeat failed: ").splitlines()[0] for text in said]
    assert lines == ["no network", "no network", "no bucket", "Traceback (most recent call last):"]
    assert next(outcomes, "all were taken") == "all were taken"


def test_roots_that_cannot_be_used_are_told_before_anything_is_written(gcs, write, tmp_path) -> None:
    write("train.py", "print(1)")
    with pytest.raises(sdk.InputError, match="there is no bucket 'other'"):
        sdk.submit("train.py", root="gs://other/podlift")
    with pytest.raises(sdk.InputError, match="local_network='isolated' cannot reach"):
        sdk.submit("train.py", backend=sdk.Local(network="isolated"))
    for status, said in ((401, "credentials are not accepted"), (403, "permission denied")):
        gcs.faults({"kind": "status_before", "status": status})
        with pytest.raises(sdk.InputError, match=said):
            sdk.submit("train.py")
        gcs.faults()
    fast = gcs.client().bucket("fast")
    fast.storage_class = "RAPID"
    gcs.client().create_bucket(fast, location="us-central1")
    with pytest.raises(sdk.InputError, match="is in a zonal bucket"):
        sdk.submit("train.py", root="gs://fast/podlift")
    assert objects(gcs, "") == {}
    assert not (tmp_path / "here" / "podlift" / "gs").exists()
    with pytest.raises(sdk.RunNotFoundError, match="No such run"):
        sdk.attach(f"{ROOT}/runs/train-aaaaaa")


def test_the_doctor_warns_of_buckets_that_multiply_cost_with_the_command(gcs, monkeypatch) -> None:
    assert [check.name for check in bucket(ROOT)] == ["root"], "an emulator bills nothing"
    # As if Google had answered.
    monkeypatch.setattr("sdk.storage.emulator.endpoint", lambda *_: "")
    looked = {check.name: check for check in bucket(ROOT)}
    assert looked["root"].ok
    assert looked["soft-delete"].level == "warning" and "7 days" in looked["soft-delete"].said
    assert looked["soft-delete"].fix == "gcloud storage buckets update gs://mine --clear-soft-delete"
    assert looked["versioning"].ok
    (missing,) = bucket("gs://other/podlift")
    assert (missing.ok, missing.level) == (False, "error") and "there is no bucket 'other'" in missing.said
    assert "gcloud storage buckets create gs://other" in missing.fix


def test_a_permission_that_is_taken_away_is_told_and_all_is_brought_when_it_is_back(gcs, write) -> None:
    run = uploading(gcs)
    gcs.faults({"kind": "status_before", "operation": "objects.insert", "status": 403})
    run.cancel(grace_s=0)
    message = r"not all of its files could be uploaded to gs://mine.*permission denied \(403\)"
    with pytest.raises(sdk.PodliftError, match=message):
        run.wait(LIMIT_S)
    gcs.faults()
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert is_complete(gcs, run)


@pytest.mark.full
def test_no_byte_is_lost_or_doubled_when_the_carrier_is_killed_again_and_again(gcs, write) -> None:
    kinds = ("status_before", "drop_before", "status_after", "drop_after", "stall")
    gcs.faults(*({"kind": kind, "probability": 0.04, "seed": number} for number, kind in enumerate(kinds)))
    run = submit(WAITING.replace("0.01", "0.0005"))
    for number in range(10):
        time.sleep(0.3 + 0.05 * (number % 7))
        kill_uploader()
        sdk.attach(run.url)
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    gcs.faults()
    assert is_complete(gcs, run)
    assert len(list(run.logs())) > 1000


def test_without_credentials_a_root_in_a_bucket_says_how_to_get_them(write, monkeypatch, tmp_path) -> None:
    write("train.py", "print(1)")
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(sdk.InputError, match=r"no credentials were found.*gcloud auth application-default login"):
        sdk.plan("train.py", root=ROOT)


def test_only_an_emulator_redirects_requests_and_its_missing_packages_are_named(monkeypatch, tmp_path) -> None:
    assert start.start({"https_proxy": "http://proxy:1"}, str(tmp_path)) == {}
    monkeypatch.setitem(sys.modules, "sdk.process.redirect.proxy", None)
    with pytest.raises(sdk.InputError, match=r"pip install 'podlift\[emulator\]'"):
        start.start({"PODLIFT_EMULATOR": f"http://127.0.0.1:1/{'0' * 32}"}, str(tmp_path))


@pytest.mark.full
def test_ended_runs_of_a_bucket_are_listed_from_a_cache_until_a_resume(gcs, write, elsewhere, monkeypatch) -> None:
    program = "import sdk\nfor step in (1, 2, 3): sdk.context().report({'loss': 1 / step}, step=step)\n"
    runs = [submit(program) for _ in (1, 2)]
    for run in runs:
        assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    elsewhere()
    first = {info.id: info for info in sdk.runs(limit=None)}
    assert {(info.best, info.steps, info.curve) for info in first.values()} == {(1 / 3, 3, "z90")}
    attached = list[str]()
    attach = api.attach
    monkeypatch.setattr(api, "attach", lambda url: attached.append(url) or attach(url))
    again = {info.id: info for info in sdk.runs(limit=None)}
    assert attached == []
    assert again == first
    record = json.dumps({"version": 1, "time": time.time(), "data": {"attempts": 1}})
    key = f"podlift/runs/{runs[0].id}/events/0000.client-9.000001.resumed.json"
    gcs.client().bucket("mine").blob(key).upload_from_string(record)
    sdk.runs(limit=None)
    assert attached == [runs[0].url]


def guarded(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", watchdog.__file__, sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_process_killed_by_a_signal_restarts_and_its_exit_code_is_the_final_one(tmp_path: Path) -> None:
    program = """
import os, sys
with open(sys.argv[1], "a") as file:
    file.write("x")
if os.path.getsize(sys.argv[1]) < 3:
    os.kill(os.getpid(), 9)
sys.exit(4)
"""
    done = guarded(program, str(tmp_path / "starts"))
    assert (done.returncode, (tmp_path / "starts").read_text()) == (4, "xxx")
    assert done.stderr.splitlines() == ["Killed by signal 9: restarted."] * 2


def test_one_that_never_lives_long_is_left_alone_in_the_end(monkeypatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(watchdog.time, "sleep", waited.append)
    assert watchdog.main([sys.executable, "-I", "-S", "-c", "import os; os.kill(os.getpid(), 9)"]) == 1
    assert waited == [0.5, 1.0, 2.0, 4.0, 8.0]
