"""Runs whose directory is in a bucket: all that they write reaches it, and any machine can look after them from there."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from local_runs import supervisor
from support import LIMIT_S, until

import sdk
from sdk import api, logs
from sdk.backends.local import bucket_run, uploader
from sdk.clock import SystemClock
from sdk.process.redirect import start
from sdk.records.sync.push import PeriodicAction, Pusher
from sdk.storage.gcs.store import GcsStore
from sdk.upkeep.doctor.root import bucket

pytestmark = [pytest.mark.spread, pytest.mark.usefixtures("warm_podlift")]

ROOT = "gs://mine/podlift"
NEVER = sdk.Retry(user_errors=0, infrastructure=0, preemptions=0)
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
def gcs(podlift_gcs, monkeypatch, tmp_path):
    """An emulator with a bucket, known to all that is started here; `machine` moves to another machine."""
    podlift_gcs.client().create_bucket("mine")
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_gcs.url)
    monkeypatch.setenv("PODLIFT_ROOT", ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    return podlift_gcs


@pytest.fixture
def elsewhere(monkeypatch, tmp_path) -> Callable[[], None]:
    """Become another machine, which shares no file with the first one."""
    return lambda: monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))


def submit(text: str, **job) -> sdk.Run:
    Path("train.py").write_text(text)
    return sdk.submit(sdk.Job("train.py", **{"retry": NEVER, **job}))


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


@pytest.mark.process
def test_all_of_a_run_is_read_back_on_another_machine(gcs, write, elsewhere, tmp_path) -> None:
    run = submit(TWO_TASKS, resources=sdk.Resources(workers=2))
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
    assert {
        name.rpartition("/")[2]: data for name, data in objects(gcs, f"podlift/runs/{run.id}/events/").items()
    } == records
    other.download(tmp_path / "got")
    assert (tmp_path / "got" / "work" / "notes.txt").read_text() == "left by chief-0"
    assert (tmp_path / "got" / "model" / "latest").read_bytes() == bytes(range(256)) * 4096
    assert [(info.id, info.status.state) for info in sdk.runs()] == [(run.id, sdk.State.SUCCEEDED)]
    assert sdk.attach(run.id).status().state is sdk.State.SUCCEEDED


@pytest.mark.full
@pytest.mark.process
def test_the_logs_are_followed_from_another_machine_and_it_cancels_the_run(gcs, write, elsewhere) -> None:
    run = submit(WAITING)
    elsewhere()
    other = sdk.attach(run.url)
    lines = []
    for line in other.logs(follow=True):
        lines.append(line.text)
        if len(lines) == 100:
            other.cancel(grace_s=0)
    assert other.status().state is sdk.State.CANCELLED
    assert lines == [line.text for line in run.logs()]
    assert lines[:2] == ["attempt 1", "line 0"]
    assert len(lines) == len(set(lines))
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED


@pytest.mark.process
@pytest.mark.full
def test_a_killed_supervisor_is_known_elsewhere_and_the_run_goes_on_there(gcs, write, elsewhere) -> None:
    run = submit(WAITING)
    until(lambda: any(line.text == "line 50" for line in run.logs()))
    os.kill(supervisor(run), signal.SIGKILL)
    until(lambda: run.status().state is sdk.State.LOST)
    said = [line.text for line in run.logs()]
    elsewhere()
    other = sdk.attach(run.url)
    until(lambda: other.status().state is sdk.State.LOST)
    assert [line.text for line in other.logs()] == said
    # Its Python lies elsewhere than that of the first machine.
    plan = json.loads(Path(other.plan.paths.plan).read_text())
    plan["facts"]["executable"] = "/nowhere/python"
    Path(other.plan.paths.plan).write_text(json.dumps(plan))
    other = sdk.attach(run.url)
    other.resume()
    assert other.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert [line.text for line in other.logs()] == [*said, "attempt 2"]


@pytest.mark.process
def test_a_machine_that_is_gone_is_known_by_its_old_heartbeat_and_the_run_goes_on_elsewhere(
    gcs, write, elsewhere, monkeypatch
) -> None:
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


@pytest.mark.process
@pytest.mark.full
def test_a_storage_that_is_gone_for_a_while_loses_nothing(gcs, write) -> None:
    run = submit(WAITING)
    until(lambda: any(line.text == "line 20" for line in run.logs()))
    gcs.kill()
    until(lambda: any(line.text == "line 120" for line in run.logs()))
    gcs.start()
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert is_complete(gcs, run)


@pytest.mark.full
@pytest.mark.process
def test_two_machines_cannot_both_resume_a_run(gcs, write, elsewhere) -> None:
    run = submit("raise SystemExit('disk full')")
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    elsewhere()
    other = sdk.attach(run.url)
    assert other.status().state is sdk.State.FAILED
    run.resume()
    with pytest.raises(sdk.InputError, match=r"was resumed by another process|there is nothing to resume"):
        other.resume()
    run.wait(LIMIT_S)
    assert other.wait(LIMIT_S).attempts == 2


@pytest.mark.process
@pytest.mark.full
def test_every_fifth_request_goes_wrong_and_all_of_the_run_is_in_the_bucket(gcs, write, tmp_path) -> None:
    kinds = ("status_before", "drop_before", "status_after", "drop_after", "truncate")
    gcs.faults(*({"kind": kind, "probability": 0.04, "seed": number} for number, kind in enumerate(kinds)))
    run = submit(TWO_TASKS, resources=sdk.Resources(workers=2))
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert sum(rule["fired"] for rule in gcs.ask("GET", "/_faults")["faults"]) >= 5
    gcs.faults()
    for task in run.plan.tasks:
        assert is_complete(gcs, run, task)
    place = f"podlift/runs/{run.id}"
    records = {path.name: path.read_bytes() for path in Path(run.plan.paths.events).iterdir()}
    assert {n.rpartition("/")[2]: data for n, data in objects(gcs, f"{place}/events/").items()} == records
    assert objects(gcs, f"{place}/outputs/work/") == {f"{place}/outputs/work/notes.txt": b"left by chief-0"}
    assert objects(gcs, f"{place}/outputs/model/weights/").popitem()[1] == bytes(range(256)) * 4096


@pytest.mark.process
def test_what_a_killed_carrier_has_not_brought_is_brought_by_the_next_client(gcs, write) -> None:
    run = uploading(gcs)
    kill_uploader()
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert is_complete(gcs, run)
    assert any(name.endswith(".final.json") for name in objects(gcs, f"podlift/runs/{run.id}/events/"))


@pytest.mark.process
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


@pytest.mark.process
def test_broken_cancel_requests_do_not_stop_the_upload_and_are_logged_once(gcs, write, monkeypatch) -> None:
    monkeypatch.setattr(uploader, "start", lambda plan: None)
    monkeypatch.setattr(uploader, "_CANCEL_REQUESTS_S", 0.0)
    monkeypatch.setattr(uploader.Uploader, "_receive_cancel_requests", lambda self: 1 / 0)
    run = submit(WAITING)
    said: list[str] = []
    with logs.heard(said.append):
        thread = threading.Thread(target=uploader.Uploader(run.plan.paths, SystemClock()).upload)
        thread.start()
        try:
            until(lambda: b"line 100" in content(gcs, run, "attempts/0001/logs/chief-0.log"))
            assert f"podlift/runs/{run.id}/heartbeat.json" in objects(gcs, f"podlift/runs/{run.id}/heartbeat")
        finally:
            run.cancel(grace_s=0)
            thread.join(LIMIT_S)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert is_complete(gcs, run)
    assert "\n".join(said).count("cancel requests failed: Traceback") == 1


@pytest.mark.process
def test_what_cannot_be_uploaded_never_counts_as_uploaded(gcs, write, monkeypatch) -> None:
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


@pytest.mark.process
def test_an_action_that_fails_is_repeated_when_it_is_due_and_logged_again_when_the_failure_changes() -> None:
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


FIT = """
import os, signal
import keras, numpy, sdk
import tensorflow as tf
keras.utils.set_random_seed(1)
ctx = sdk.context()
with ctx.strategy.scope():
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")

class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        if epoch == 3 and ctx.is_chief and os.environ["PODLIFT_ATTEMPT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

x = numpy.ones((32, 3), "float32")
model.fit(x, x[:, :1], epochs=5, batch_size=8, verbose=0, callbacks=[Kill()])
if ctx.is_chief:
    with tf.io.gfile.GFile("gs://mine/said.txt", "w") as file:
        file.write("said by TensorFlow")
model.save("gs://mine/saved.keras")
"""


@pytest.mark.process
@pytest.mark.full
def test_a_fit_goes_on_from_its_checkpoint_in_the_bucket_and_tensorflow_itself_reaches_it(
    gcs, write, elsewhere
) -> None:
    retry = sdk.Retry(user_errors=0, infrastructure=1, preemptions=0)
    run = submit(
        FIT,
        retry=retry,
        resources=sdk.Resources(workers=2),
        checkpoints=sdk.Checkpoints(every_steps=4, every_s=None, on_busy="block"),
    )
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    elsewhere()
    other = sdk.attach(run.url)
    # The checkpoint of the third epoch was there, or on its way.
    second = [line.text for line in other.logs("chief-0", attempt=2) if line.text.startswith("epoch")]
    assert second in (["epoch 3", "epoch 4"], ["epoch 2", "epoch 3", "epoch 4"])
    assert other.checkpoints()[-1].step == 20 == other.status().saved_step
    assert not Path(run.plan.paths.store).exists()
    assert gcs.client().bucket("mine").blob("said.txt").download_as_bytes() == b"said by TensorFlow"
    assert gcs.client().bucket("mine").blob("saved.keras").exists()


@pytest.mark.process
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


@pytest.mark.process
def test_the_doctor_warns_of_buckets_that_multiply_cost_with_the_command(gcs, monkeypatch) -> None:
    assert [check.name for check in bucket(ROOT)] == ["root"], "an emulator bills nothing"
    # As if Google had answered.
    monkeypatch.setattr("sdk.storage.emulator.asked", lambda *_: "")
    looked = {check.name: check for check in bucket(ROOT)}
    assert looked["root"].ok
    assert looked["soft-delete"].level == "warning" and "7 days" in looked["soft-delete"].said
    assert looked["soft-delete"].fix == "gcloud storage buckets update gs://mine --clear-soft-delete"
    assert looked["versioning"].ok
    (missing,) = bucket("gs://other/podlift")
    assert (missing.ok, missing.level) == (False, "error") and "there is no bucket 'other'" in missing.said
    assert "gcloud storage buckets create gs://other" in missing.fix


@pytest.mark.process
def test_a_permission_that_is_taken_away_is_told_and_all_is_brought_when_it_is_back(gcs, write) -> None:
    run = uploading(gcs)
    gcs.faults({"kind": "status_before", "operation": "objects.insert", "status": 403})
    run.cancel(grace_s=0)
    with pytest.raises(
        sdk.PodliftError, match=r"not all of its files could be uploaded to gs://mine.*permission denied \(403\)"
    ):
        run.wait(LIMIT_S)
    gcs.faults()
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert is_complete(gcs, run)


LEAVING = """
import os, pathlib
own = pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"]) / "mine"
pathlib.Path("run.sh").write_text("x")
os.chmod("run.sh", 0o755)
if os.environ["PODLIFT_ATTEMPT"] == "1":
    own.write_text("one")
    pathlib.Path("first.txt").write_text("first")
    os.symlink("first.txt", "link")
    raise SystemExit("no more")
print("found", own.read_text())
pathlib.Path("second.txt").write_text("second")
"""


@pytest.mark.full
@pytest.mark.process
def test_what_a_program_has_left_goes_on_with_it_to_another_machine(
    gcs, write, elsewhere, monkeypatch, tmp_path
) -> None:
    run = submit(LEAVING)
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    elsewhere()
    other = sdk.attach(run.url)
    other.resume()
    assert other.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert [line.text for line in other.logs(attempt=2)] == ["found one"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    for name, machine in (("second", other), ("third", sdk.attach(run.url))):
        machine.download(tmp_path / "got" / name)
        work = tmp_path / "got" / name / "work"
        assert sorted(path.name for path in work.iterdir()) == ["first.txt", "link", "run.sh", "second.txt"]
        assert (work / "link").is_symlink() and (work / "link").read_text() == "first"
        assert os.access(work / "run.sh", os.X_OK) and not os.access(work / "first.txt", os.X_OK)


@pytest.mark.process
@pytest.mark.full
def test_no_byte_is_lost_or_doubled_when_the_carrier_is_killed_again_and_again(gcs, write) -> None:
    kinds = ("status_before", "drop_before", "status_after", "drop_after", "stall")
    gcs.faults(*({"kind": kind, "probability": 0.04, "seed": number} for number, kind in enumerate(kinds)))
    run = submit(WAITING.replace("0.01", "0.0005"))
    for number in range(25):
        time.sleep(0.3 + 0.05 * (number % 7))
        kill_uploader()
        sdk.attach(run.url)
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    gcs.faults()
    assert is_complete(gcs, run)
    assert len(list(run.logs())) > 1000


@pytest.mark.process
def test_without_credentials_a_root_in_a_bucket_says_how_to_get_them(write, monkeypatch, tmp_path) -> None:
    write("train.py", "print(1)")
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(sdk.InputError, match=r"no credentials were found.*gcloud auth application-default login"):
        sdk.plan("train.py", root=ROOT)


@pytest.mark.process
def test_nothing_is_redirected_without_an_emulator_and_its_missing_packages_are_named(monkeypatch, tmp_path) -> None:
    assert start.start({"https_proxy": "http://proxy:1"}, str(tmp_path)) == {}
    monkeypatch.setitem(sys.modules, "sdk.process.redirect.proxy", None)
    with pytest.raises(sdk.InputError, match=r"pip install 'podlift\[emulator\]'"):
        start.start({"PODLIFT_EMULATOR": f"http://127.0.0.1:1/{'0' * 32}"}, str(tmp_path))


LOOP = """
import tensorflow as tf, sdk
total = tf.Variable(0, dtype=tf.int64)
ckpt = sdk.context().checkpoint(total=total, data=tf.data.Dataset.range(1, 41))
ckpt.restore()
for number in ckpt.data:
    total.assign_add(number)
    ckpt.step()
print("total", int(total), flush=True)
"""


@pytest.mark.full
@pytest.mark.tensorflow
def test_a_permission_that_ends_while_training_ends_the_run_and_harms_no_checkpoint(gcs, write) -> None:
    rule = {"kind": "status_before", "operation": "objects.insert", "object": "/store/(data|commits)/", "status": 403}
    gcs.faults({**rule, "nth": list(range(12, 200))})
    points = sdk.Checkpoints(every_steps=5, on_busy="block", keep_last=20)
    run = submit(LOOP, checkpoints=points)
    ended = run.wait(LIMIT_S)
    assert (ended.state, ended.reason, ended.exit_code) == (sdk.State.FAILED, sdk.Reason.INFRASTRUCTURE, 3), run.why()
    assert "(403)" in run.why() and "was not saved" in run.why(), run.why()
    before = run.status().saved_step
    assert before is not None and 5 <= before < 40
    gcs.faults()
    run.resume()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    text = [line.text for line in run.logs()]
    assert text[-1] == "total 820"
    assert any(f"restored step {before} of phase 1" in line for line in text)


@pytest.mark.process
def test_ended_runs_of_a_bucket_are_listed_from_what_is_known_here_until_they_are_resumed(
    gcs, write, elsewhere, monkeypatch
) -> None:
    runs = [
        submit("import sdk\nfor step in (1, 2, 3): sdk.context().report({'loss': 1 / step}, step=step)\n")
        for _ in (1, 2)
    ]
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
