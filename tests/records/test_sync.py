"""Push and pull share one index of what a bucket has of a run: no kill of the uploader or of a client loses a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdk.clock import SystemClock
from sdk.errors import ConflictError
from sdk.records.recorder import Recorder
from sdk.records.sync.index import Heartbeat, SyncedRun
from sdk.records.sync.push import Pusher
from sdk.spec.layout import RunPaths
from sdk.status import Progress

URL = "gs://mine/runs/digits-aaaaaa"
LOG = "attempts/0001/logs/chief-0.log"
TEXT = b"".join(b"line %d\n" % number for number in range(1000))


@pytest.fixture
def bucket(podlift_gcs, monkeypatch: pytest.MonkeyPatch):
    podlift_gcs.client().create_bucket("mine")
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_gcs.url)
    return podlift_gcs.client().bucket("mine")


@pytest.fixture
def here(tmp_path: Path) -> RunPaths:
    paths = RunPaths(str(tmp_path / "here" / "runs" / "digits-aaaaaa"))
    Recorder(paths, "client", 0, SystemClock()).record("submitted")
    Recorder(paths, "supervisor", 1, SystemClock()).record("attempt_started")
    Path(paths.log(1, "chief-0")).parent.mkdir(parents=True)
    return paths


def push(paths: RunPaths) -> None:
    Pusher(paths, URL, SystemClock()).push(last=False)


def pulled(paths: RunPaths) -> bytes:
    SyncedRun(paths, URL, SystemClock()).refresh(["chief-0"], logs=True)
    return Path(paths.url, LOG).read_bytes()


def test_a_reader_that_was_killed_in_the_middle_of_a_part_goes_on_at_the_byte(bucket, here, tmp_path: Path) -> None:
    log, there = Path(here.log(1, "chief-0")), RunPaths(str(tmp_path / "there" / "runs" / "digits-aaaaaa"))
    for end in (3000, 6000, len(TEXT)):
        log.write_bytes(TEXT[:end])
        # Each push is one of another process: it knows only what the bucket has.
        push(here)
    assert len(list(bucket.client.list_blobs("mine", prefix=f"runs/digits-aaaaaa/{LOG}/"))) == 3
    assert pulled(there) == TEXT
    for size in (0, 1, 2999, 3000, 3001, 6000, 7000, len(TEXT)):
        Path(there.url, LOG).write_bytes(TEXT[:size])
        assert pulled(there) == TEXT, size


def test_a_record_that_is_another_one_in_the_bucket_is_a_conflict_and_the_same_one_is_not(bucket, here) -> None:
    push(here)
    run = SyncedRun(here, URL, SystemClock())
    (name,) = [path.name for path in Path(here.events).glob("*.submitted.json")]
    assert not run.create(f"events/{name}")
    Path(here.events, name).write_bytes(b"{}")
    with pytest.raises(ConflictError, match="has a different"):
        run.create(f"events/{name}")


def test_a_part_that_another_uploader_created_shorter_is_continued_and_another_one_is_a_conflict(bucket, here) -> None:
    run = SyncedRun(here, URL, SystemClock())
    bucket.blob(f"runs/digits-aaaaaa/{RunPaths.part(LOG, 0)}").upload_from_string(TEXT[:100])
    assert run.create_part(LOG, 0, TEXT) == 100
    assert run.size(LOG) == 100
    with pytest.raises(ConflictError):
        run.create_part(LOG, 0, b"x" * 200)


def test_the_index_knows_parts_from_objects_and_where_a_byte_is() -> None:
    index = SyncedRun(RunPaths(""), URL, SystemClock())
    for key, size in ((RunPaths.part(LOG, 0), 10), (RunPaths.part(LOG, 10), 5), ("events/x.part", 3), ("plan.json", 9)):
        index.add(key, size)
    assert index.objects == {"events/x.part", "plan.json"}
    assert index.size(LOG) == 15
    assert [index.part_with(LOG, byte) for byte in (0, 9, 10, 14, 15)] == [0, 0, 10, 10, 15]
    assert (index.size("other"), index.part_with("other", 7)) == (0, 7)


def test_two_writers_of_a_heartbeat_replace_each_other(bucket, here) -> None:
    one, other = SyncedRun(here, URL, SystemClock()), SyncedRun(here, URL, SystemClock())
    for writer, resumes in ((one, 0), (other, 1), (one, 2)):
        writer.write_heartbeat("chief-0", supervised=True, resumes=resumes)
        assert other.read_heartbeat() == Heartbeat(supervised=True, resumes=resumes, progress=None)
    blob = bucket.blob("runs/digits-aaaaaa/heartbeat.json")
    blob.upload_from_string('{"supervised": false, "resumes": 3, "progress": {"step": 4}}')
    assert one.read_heartbeat() == Heartbeat(supervised=False, resumes=3, progress=Progress(step=4))
    blob.upload_from_string("[]")
    with pytest.raises(ValueError, match="not a heartbeat"):
        one.read_heartbeat()


def test_links_and_executable_files_of_two_attempts_are_merged(bucket, here) -> None:
    run = SyncedRun(here, URL, SystemClock())
    run.add_outputs({"outputs/a": "b"}, ["outputs/run.sh"])
    SyncedRun(here, URL, SystemClock()).add_outputs({"outputs/c": "d"}, ["outputs/also.sh"])
    assert run.outputs_index() == {
        "links": {"outputs/a": "b", "outputs/c": "d"},
        "executable": ["outputs/also.sh", "outputs/run.sh"],
    }
