"""Removed and kept objects of a bucket, and the copies of its runs that this machine need not keep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from support import LIMIT_S, files_of_a_run
from test_remove import names, why

import sdk
from sdk.backends.vertex.backend import VertexBackend
from sdk.clock import SystemClock
from sdk.errors import AccessError
from sdk.planning import remote
from sdk.records.recorder import Recorder
from sdk.records.sync import push
from sdk.storage.emulator import endpoint
from sdk.storage.gcs.files import BucketFiles
from sdk.storage.gcs.requests import ObjectInfo
from sdk.upkeep import remove
from sdk.upkeep.remove import bucket
from sdk.upkeep.remove import root as removed

ROOT = "gs://mine/podlift"
FINAL = "events/0000.supervisor.000003.final.json"


@pytest.fixture
def gcs(podlift_gcs, mine, monkeypatch):
    """The emulator of the bucket."""
    monkeypatch.setenv("PODLIFT_ROOT", ROOT)
    return podlift_gcs


@pytest.fixture
def put(gcs, mine) -> Callable[[str, bytes], None]:
    """Put an object below the root: `put("runs/x", b"")`."""
    return lambda name, data: mine.blob(f"podlift/{name}").upload_from_string(data)


@pytest.fixture
def make(put) -> Callable[..., str]:
    """Make a run that is over, and its bundle, and return its id: `make("a")`."""

    def maker(name: str, *, without: tuple[str, ...] = (), **plan: object) -> str:
        run = f"{name}-aaaaaa"
        about = {"run_id": run, "root": ROOT, "digest": name[0] * 64, "emulator": endpoint(), **plan}
        put(f"bundles/{about['digest']}.tar", b"x" * 1000)
        for part, data in files_of_a_run(**about):
            if part not in without:
                put(f"runs/{run}/{part}", data)
        return run

    return maker


@pytest.fixture
def settled(monkeypatch) -> None:
    """Let a day be over with everything that is there: the emulator's objects are as old as they are."""
    for name in ("SETTLED_S", "JOB_SETTLED_S"):
        monkeypatch.setattr(removed, name, 0.0)


def find(*, keep: int = 0, older_than_s: float = 0.0, **more: object) -> remove.RemovalPlan:
    return remove.find(ROOT, older_than_s=older_than_s, keep=keep, now=time.time() + 2, **more)


def objects(gcs, prefix: str = "") -> dict[str, int]:
    found = gcs.client().list_blobs("mine", prefix=prefix)
    return {blob.name.removeprefix("podlift/"): blob.generation for blob in found}


def test_old_runs_and_their_bundles_go_and_young_new_or_active_ones_stay(gcs, make, put, settled, monkeypatch) -> None:
    make("a"), make("b", digest="c" * 64)
    make("c", without=(FINAL,))
    put("runs/c-aaaaaa/heartbeat.json", b'{"supervised": true, "resumes": 0}')
    kept = {name: generation for name, generation in objects(gcs).items() if name.startswith(("runs/c-", "bundles/c"))}
    assert names(find(older_than_s=60.0)) == []
    assert (names(find(keep=2)), names(find(keep=2), "bundle")) == (["a-aaaaaa"], ["a" * 64])
    assert names(find(keep=3), "bundle") == names(find(keep=3)) == []
    monkeypatch.setattr(removed, "SETTLED_S", 3600.0)
    assert names(find(), "bundle") == [], "a submit may count on young objects"
    assert why(find())["c-aaaaaa"] == "the run is RUNNING"
    found = find()
    assert (names(found), {item.state for item in found.items}) == (["a-aaaaaa", "b-aaaaaa"], {"SUCCEEDED"})
    assert {item.path for item in found.items} == {f"{ROOT}/runs/a-aaaaaa", f"{ROOT}/runs/b-aaaaaa"}
    done = remove.remove(found)
    assert (names(done), done.skipped, done.problems) == (["a-aaaaaa", "b-aaaaaa"], (), ())
    assert {name for name in objects(gcs) if name[0] != "b"} == {name for name in kept if name[0] != "b"}
    make("b")
    monkeypatch.setattr(removed, "SETTLED_S", 0.0)
    # For the runs to be judged as before: an hour is not over.
    monkeypatch.setattr(bucket, "_status", lambda files, run, seen: sdk.Status(sdk.State.RUNNING, sdk.Reason.TRAINING))
    done = remove.remove(find())
    assert (names(done), names(done, "bundle"), done.problems) == ([], ["a" * 64], ())
    assert {name: objects(gcs)[name] for name in kept} == kept


def test_a_run_that_has_not_changed_for_an_hour_is_lost_unless_only_a_cloud_can_know(gcs, make, settled) -> None:
    make("a", without=(FINAL,))
    make("e", without=(FINAL,), backend="vertex", capabilities=asdict(VertexBackend.capabilities))
    found = find()
    assert (names(found), [item.state for item in found.items if item.kind == "run"]) == (["a-aaaaaa"], ["LOST"])
    assert why(found) == {"e-aaaaaa": "it has no final record, and only vertex knows whether it is still going"}


def test_damaged_or_foreign_files_and_possibly_needed_bundles_stay_with_a_reason(gcs, make, put, settled) -> None:
    make("a"), make("b")
    put(f"runs/a-aaaaaa/{FINAL.replace('3', '4')}", b"{")
    put("runs/notes.txt", b"mine")
    put("runs/mine/notes.txt", b"mine")
    put("runs/x-aaaaaa/notes.txt", b"mine")
    put("bundles/mine.zip", b"mine")
    put("runs/", b"")
    found = find()
    assert names(found) == ["b-aaaaaa"]
    said = why(found)
    assert said.pop("a-aaaaaa").startswith("its records are damaged: ")
    assert said == {}, "foreign objects are not mentioned"
    assert names(found, "bundle") == ["b" * 64]
    put("runs/a-aaaaaa/plan.json", b"{}")
    assert names(find(), "bundle") == []
    assert why(find())["bundles"].startswith(f"it is unknown what '{ROOT}/runs/a-aaaaaa/plan.json' needs")


def test_a_run_that_is_resumed_at_that_moment_stays_whole(gcs, make, put, settled, monkeypatch) -> None:
    run, record = make("a"), "0000.client-1.000001.resumed.json"
    before = objects(gcs)
    found = find()

    def resume_behind(files: BucketFiles, kept, delete=BucketFiles.delete) -> bool:
        done = delete(files, kept)
        if kept.name.endswith("plan.json"):
            resumed = b'{"version": 1, "time": 1, "data": {"attempts": 1, "cancel_requests": 0}}'
            put(f"runs/{run}/events/{record}", resumed)
        return done

    monkeypatch.setattr(BucketFiles, "delete", resume_behind)
    done = remove.remove(found)
    assert why(done)[run] == "it has changed"
    assert why(done)["a" * 64 + ".tar"] == "a run or a record needs it"
    assert {*objects(gcs)} == {*before, f"runs/{run}/events/{record}"}
    monkeypatch.setattr(removed, "SETTLED_S", 3600.0)
    assert names(find()) == [], "it may be starting now"


def test_a_run_that_is_being_removed_is_not_resumed(gcs, make, tmp_path) -> None:
    run = make("a")
    plan, record = sdk.attach(f"{ROOT}/runs/{run}").plan, "0000.client-1.000001.resumed.json"
    Recorder(plan.paths, "client-1", 0, SystemClock()).record("resumed", attempts=1, cancel_requests=0)
    gcs.client().bucket("mine").blob(f"podlift/runs/{run}/plan.json").delete()
    with pytest.raises(sdk.errors.RunNotFoundError, match="is being removed"):
        remote.adopt(plan, 1, record)


def test_a_bundle_in_a_bucket_or_here_that_has_other_bytes_is_brought_anew(gcs, make, tmp_path) -> None:
    bundle, bucket = tmp_path / "bundle.tar", gcs.client().bucket("mine")
    bundle.write_bytes(b"x" * 1000)
    bucket.blob("podlift/bundles/x.tar").upload_from_string(b"x" * 999 + b"y")
    push.upload_archive(str(bundle), f"{ROOT}/bundles/x.tar")
    assert bucket.blob("podlift/bundles/x.tar").download_as_bytes() == b"x" * 1000
    plan = sdk.attach(make("a")).plan
    Path(plan.bundle).parent.mkdir(parents=True)
    for damaged in (b"y" * 1000, b""):
        Path(plan.bundle).write_bytes(damaged)
        remote.fetch_code(plan)
        assert Path(plan.bundle).read_bytes() == b"x" * 1000


def test_a_bundle_that_a_submit_takes_up_stays(gcs, make, settled, monkeypatch, tmp_path) -> None:
    make("a")
    monkeypatch.setattr(push, "_FRESH_S", -2.0)
    bundle = tmp_path / "bundle.tar"
    bundle.write_bytes(b"x" * 1000)
    place = bucket.BucketRoot(ROOT, removed.Limits(older_than_s=0.0, keep=0, now=time.time()))
    (known,) = place.archives()
    push.upload_archive(str(bundle), f"{ROOT}/bundles/{'a' * 64}.tar")
    found = find()
    with pytest.raises(removed.ChangedError, match="a submit or a registration uses it"):
        place.remove_archive(known)
    with monkeypatch.context() as patch:
        patch.setattr(removed, "SETTLED_S", 3600.0)
        said = {f"{'a' * 64}.tar": "a submit or a registration uses it"}
        assert why(remove.remove(found)) == said, "it is young by now"
    there = gcs.client().bucket("mine").blob(f"podlift/bundles/{'a' * 64}.tar")
    assert there.download_as_bytes() == b"x" * 1000
    there.delete()
    push.upload_archive(str(bundle), f"{ROOT}/bundles/{'a' * 64}.tar")
    assert f"bundles/{'a' * 64}.tar" in objects(gcs)


def test_downloads_of_containers_go_once_no_job_of_a_kept_run_names_them(gcs, make, put, settled, monkeypatch) -> None:
    runs = {name: make(name) for name in "abc"}
    put("runs/c-aaaaaa/jobs/0001.launch_spec.json", json.dumps({"runtime": {"sha256": "1" * 64}}).encode())
    put("runs/c-aaaaaa/jobs/0001.intent.json", json.dumps({"body": {"args": [f"entrypoints/{'2' * 64}.py"]}}).encode())
    put("runs/b-aaaaaa/jobs/0001.launch_spec.json", json.dumps({"runtime": {"sha256": "3" * 64}}).encode())
    for digit in "134":
        put(f"runtime/{digit * 64}.tar", b"x" * 2000)
    for digit in "25":
        put(f"entrypoints/{digit * 64}.py", b"x" * 300)
    put("runtime/mine.tar", b"mine")
    found = find(keep=1)
    assert names(found) == [runs["a"], runs["b"]]
    assert (names(found, "runtime"), names(found, "entrypoint")) == (["3" * 64, "4" * 64], ["5" * 64])
    assert {item.size_bytes for item in found.items if item.kind in ("runtime", "entrypoint")} == {2000, 300}
    assert why(found) == {}
    monkeypatch.setattr(removed, "JOB_SETTLED_S", 60.0)
    young = find(keep=1)
    assert names(young, "runtime") == names(young, "entrypoint") == [], "another client may be about to use it"
    monkeypatch.setattr(removed, "JOB_SETTLED_S", 0.0)
    put("runs/c-aaaaaa/jobs/0002.launch_spec.json", b"{}")
    assert "c-aaaaaa/jobs/0002.launch_spec.json' needs" in why(find(keep=1))["runtime"]
    put("runs/c-aaaaaa/jobs/0002.launch_spec.json", json.dumps({"runtime": {"sha256": "4" * 64}}).encode())
    done = remove.remove(found)
    assert why(done) == {f"{'4' * 64}.tar": "a run or a record needs it"}, "a job was created since it was found"
    left = {name for name in objects(gcs) if name.startswith(("runtime/", "entrypoints/"))}
    assert left == {"runtime/mine.tar", *(f"runtime/{digit * 64}.tar" for digit in "14"), f"entrypoints/{'2' * 64}.py"}


def test_a_run_named_by_another_folder_of_the_root_stays(gcs, make, put, settled, monkeypatch) -> None:
    for name in "abc":
        make(name)
    put(f"runtime/{'1' * 64}.tar", b"x")
    put("schedules/nightly.json", json.dumps({"bundle": "d" * 64, "runtime": f"runtime/{'1' * 64}.tar"}).encode())
    put("models/digits/versions/3.json", json.dumps({"run": f"{ROOT}/runs/a-aaaaaa"}).encode())
    put("models/digits/champion", b"b-aaaaaa is not named by a JSON file")
    large = b'"c-aaaaaa" is in a file that is too large for a record'.ljust(removed.MAX_RECORD_BYTES + 1)
    put("models/digits/data.json", large)
    put(f"bundles/{'d' * 64}.tar", b"x")
    found = find()
    assert (names(found), names(found, "runtime")) == (["b-aaaaaa", "c-aaaaaa"], [])
    assert names(found, "bundle") == ["b" * 64, "c" * 64]
    assert why(found) == {"a-aaaaaa": f"'{ROOT}/models/digits/versions/3.json' names it"}
    put("schedules/weekly.json", json.dumps({"run": "b-aaaaaa"}).encode())
    done = remove.remove(found)
    assert why(done)["b-aaaaaa"] == f"'{ROOT}/schedules/weekly.json' names it", "it was written since the run was found"
    assert why(done)["b" * 64 + ".tar"] == "a run or a record needs it"
    assert (names(done), names(done, "bundle")) == (["c-aaaaaa"], ["c" * 64])


def test_a_folder_of_the_root_that_cannot_be_searched_keeps_all_that_it_may_need(
    gcs, make, put, settled, monkeypatch
) -> None:
    make("a")
    put("data/1.json", b"{}"), put("data/2.json", b"{}"), put("data/3.png", b"{}")
    assert names(find()) == ["a-aaaaaa"]
    monkeypatch.setattr(removed, "MAX_RECORDS", 1)
    found = find()
    assert found.items == ()
    assert "may need it, and there are too many to search. Next: move" in why(found)["a-aaaaaa"]
    assert f"{ROOT}/data/2.json" in why(found)["a-aaaaaa"]
    monkeypatch.setattr(removed, "MAX_RECORDS", 2)
    gcs.faults({"kind": "status_before", "object": "data", "status": 403})
    assert find().items == ()
    assert "cannot be read" in why(find())["a-aaaaaa"] and "403" in why(find())["a-aaaaaa"]
    gcs.faults()
    listed = BucketFiles.list

    def refuse(files: BucketFiles, prefix: str, **more: str) -> Iterator[ObjectInfo]:
        if prefix == "data/":
            raise AccessError("permission denied (403).")
        return listed(files, prefix, **more)

    monkeypatch.setattr(BucketFiles, "list", refuse)
    assert find().items == ()
    assert why(find())["a-aaaaaa"] == "a JSON file that may need it cannot be read: permission denied (403)"


def test_a_removal_that_was_cut_short_is_finished_the_next_time(gcs, make, settled) -> None:
    run = make("a")
    found = find()
    gcs.faults({"kind": "status_before", "operation": "objects.delete", "object": "logs|events", "status": 403})
    done = remove.remove(found)
    assert len(done.problems) == 1 and "was not removed completely" in done.problems[0] and "403" in done.problems[0]
    gcs.faults()
    assert f"runs/{run}/plan.json" not in objects(gcs)
    assert sdk.runs() == []
    again = find()
    assert (names(again), names(again, "remains")) == ([], [run])
    assert remove.remove(again).problems == ()
    assert not any(name.startswith("runs/") for name in objects(gcs))


def test_lost_answers_and_two_removals_at_once_leave_nothing(gcs, make, settled) -> None:
    for name in "abc":
        make(name)
    found = find()
    kinds = ("status_before", "drop_before", "status_after", "drop_after")
    gcs.faults(*({"kind": kind, "probability": 0.05, "seed": number} for number, kind in enumerate(kinds)))
    environ = {**os.environ, "PYTHONPATH": str(Path(sdk.__file__).parent.parent)}
    words = [sys.executable, "-m", "sdk", "remove", "--older-than", "0s", "--keep", "0", "--yes"]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
        done = remove.remove(found)
        other.communicate(timeout=LIMIT_S)
    assert (other.returncode, done.problems, done.skipped) == (0, (), ())
    gcs.faults()
    remove.remove(find())
    assert objects(gcs) == {}


@pytest.fixture
def run(gcs, write) -> sdk.Run:
    """A run of this machine that is over."""
    write("train.py", "print(1)")
    run = sdk.submit("train.py")
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    return run


def test_the_copy_of_a_run_goes_by_its_age_but_not_before_all_is_in_the_bucket(gcs, run, settled, tmp_path) -> None:
    cache, here = tmp_path / "here" / "podlift", Path(run.plan.paths.url)
    found = find(cache=cache)
    assert (names(found), names(found, "copy")) == ([run.id], [run.id])
    assert [item.state for item in found.items if item.kind == "copy"] == ["uploaded"]
    assert len(names(found, "bundle")) == 2, "one in the bucket, one here"
    assert names(find(cache=cache, keep=1), "copy") == [run.id], "it is in the bucket"
    assert names(find(cache=cache, keep=1, older_than_s=60.0), "copy") == []
    (here / "sync" / "0000.uploaded").unlink()
    stays = find(cache=cache)
    assert (names(stays), names(stays, "copy")) == ([], [])
    assert {each.why for each in stays.skipped} == {
        "this machine has not uploaded all of it: podlift wait uploads the rest",
        "it is not uploaded completely: podlift wait uploads the rest",
    }
    assert names(remove.remove(found)) == [] and here.is_dir()
    sdk.attach(run.url).wait(LIMIT_S)
    done = remove.remove(find(cache=cache))
    assert (names(done), names(done, "copy"), done.skipped, done.problems) == ([run.id], [run.id], (), ())
    assert not here.exists() and len(names(done, "bundle")) == 2
    assert not any(name.startswith("runs/") for name in objects(gcs))


def test_the_copy_of_a_run_that_was_removed_from_its_bucket_goes_by_its_age_too(gcs, run, settled, tmp_path) -> None:
    for blob in gcs.client().list_blobs("mine", prefix="podlift/runs/"):
        blob.delete()
    cache = tmp_path / "here" / "podlift"
    assert names(find(cache=cache, older_than_s=60.0), "copy") == []
    elsewhere = remove.find(tmp_path / "root", older_than_s=0.0, keep=0, now=time.time() + 2, cache=cache)
    assert names(elsewhere, "copy") == names(remove.remove(elsewhere), "copy") == [run.id], "whatever root is searched"


def test_a_run_that_goes_on_here_keeps_its_files_whatever_its_bucket_says(gcs, write, settled, tmp_path) -> None:
    write("train.py", "import time; print('begun', flush=True); time.sleep(600)")
    run = sdk.submit("train.py")
    try:
        next(line for line in run.logs(follow=True) if line.text == "begun")
        found = find(cache=tmp_path / "here" / "podlift")
        assert (names(found), names(found, "copy"), names(found, "bundle")) == ([], [], [])
        assert why(found)[run.id] in ("the run is RUNNING", "the run is still going")
        assert {each.why for each in found.skipped} >= {"the run is still going"}
    finally:
        run.cancel(grace_s=0)
        run.wait(LIMIT_S)
