"""Push and pull share one index of a run's objects in a bucket, of which no kill loses a file; so do cancels."""

from __future__ import annotations

import errno
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from support import FakeClock, files_of_a_run, until

import sdk
from sdk.clock import SystemClock
from sdk.errors import ConflictError, StoreError
from sdk.job.layout import RunPaths
from sdk.records.outputs import OutputsIndex
from sdk.records.recorder import Recorder
from sdk.records.sync.cancels import KEYS, CancelWatch, request_cancel
from sdk.records.sync.index import Heartbeat, SyncedRun
from sdk.records.sync.push import ContainerUploader, Pusher
from sdk.runtime.reporting import ProgressWriter
from sdk.status import Progress
from sdk.storage.emulator import endpoint
from sdk.storage.posix_store import PosixStore

URL = "gs://mine/runs/digits-aaaaaa"
LOG = "attempts/0001/logs/chief-0.log"
TEXT = b"".join(b"line %d\n" % number for number in range(1000))


@pytest.fixture
def bucket(mine):
    return mine


@pytest.fixture
def here(tmp_path: Path) -> RunPaths:
    paths = RunPaths(str(tmp_path / "here" / "runs" / "digits-aaaaaa"))
    Recorder(paths, "client", 0, SystemClock()).record("submitted")
    Recorder(paths, "supervisor", 1, SystemClock()).record("attempt_started")
    Path(paths.log(1, "chief-0")).parent.mkdir(parents=True)
    return paths


def push(paths: RunPaths) -> None:
    Pusher(paths, URL, SystemClock()).push(last=False)


def uploaded(bucket) -> set[str]:
    """The names of the run's objects, without the offsets of parts."""
    names = [each.name.removeprefix("runs/digits-aaaaaa/") for each in bucket.list_blobs()]
    return {os.path.dirname(name) if name.endswith(".part") else name for name in names}


def pulled(paths: RunPaths) -> bytes:
    SyncedRun(paths, URL, SystemClock()).refresh(["chief-0"], logs=True)
    return Path(paths.url, LOG).read_bytes()


def test_a_reader_that_was_killed_in_the_middle_of_a_part_goes_on_at_the_byte(bucket, here, tmp_path: Path) -> None:
    log, there = Path(here.log(1, "chief-0")), RunPaths(str(tmp_path / "there" / "runs" / "digits-aaaaaa"))
    for end in (3000, 6000, len(TEXT)):
        log.write_bytes(TEXT[:end])
        # Each push is one of another process: it knows only the objects of the bucket.
        push(here)
    assert len(list(bucket.client.list_blobs("mine", prefix=f"runs/digits-aaaaaa/{LOG}/"))) == 3
    assert pulled(there) == TEXT
    for size in (0, 1, 2999, 3000, 3001, 6000, 7000, len(TEXT)):
        Path(there.url, LOG).write_bytes(TEXT[:size])
        assert pulled(there) == TEXT, size


def test_a_record_that_differs_in_the_bucket_is_a_conflict_and_an_equal_one_is_not(bucket, here) -> None:
    push(here)
    run = SyncedRun(here, URL, SystemClock())
    (name,) = [path.name for path in Path(here.events).glob("*.submitted.json")]
    assert not run.create(f"events/{name}")
    Path(here.events, name).write_bytes(b"{}")
    with pytest.raises(ConflictError, match="has a different"):
        run.create(f"events/{name}")


def test_another_uploaders_shorter_part_is_continued_and_a_different_one_conflicts(bucket, here) -> None:
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


def test_a_heartbeat_shows_other_machines_the_activity_of_the_first_task(bucket, here) -> None:
    writer = ProgressWriter(here.progress(3, "chief-0"))
    writer.begin(30)
    writer.step()
    SyncedRun(here, URL, SystemClock()).write_heartbeat("chief-0", supervised=True, resumes=0)
    other = SyncedRun(here, URL, SystemClock())
    other.read_heartbeat()
    assert other.account is not None and (other.account.attempt, other.account.account.reached) == (3, 31)
    blob = bucket.blob("runs/digits-aaaaaa/heartbeat.json")
    blob.upload_from_string('{"supervised": true, "resumes": 0, "account": {"attempt": 1, "account": {}}}')
    other.read_heartbeat()
    assert other.account is None


@pytest.mark.parametrize("beat", [b"{", b"\xff", b'{"supervised": "yes", "resumes": "1"}'])
def test_a_run_with_an_unreadable_heartbeat_is_alive_as_long_as_something_writes_it(
    bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, beat: bytes
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, data in files_of_a_run(run_id="digits-aaaaaa", root="gs://mine", emulator=endpoint()):
        if name.endswith(("plan.json", "submitted.json", "started.json")):
            bucket.blob(f"runs/digits-aaaaaa/{name}").upload_from_string(data)
    bucket.blob("runs/digits-aaaaaa/heartbeat.json").upload_from_string(beat)
    assert sdk.attach(URL).status().state is sdk.State.RUNNING
    assert sdk.attach(URL).progress() is None


def test_a_heartbeat_costs_one_request_and_comes_back_after_it_was_removed(bucket, podlift_gcs, here) -> None:
    run = SyncedRun(here, URL, SystemClock())
    run.write_heartbeat("chief-0", supervised=True, resumes=0)
    podlift_gcs.forget_requests()
    run.write_heartbeat("chief-0", supervised=True, resumes=1)
    assert podlift_gcs.requests().operations == {"objects.insert": 1}
    bucket.blob("runs/digits-aaaaaa/heartbeat.json").delete()
    run.write_heartbeat("chief-0", supervised=False, resumes=2)
    assert run.read_heartbeat() == Heartbeat(supervised=False, resumes=2)


def test_links_and_executable_files_of_two_attempts_are_merged(bucket, here) -> None:
    run = SyncedRun(here, URL, SystemClock())
    run.add_outputs({"outputs/a": "b"}, ["outputs/run.sh"])
    SyncedRun(here, URL, SystemClock()).add_outputs({"outputs/c": "d"}, ["outputs/also.sh"])
    links = {"outputs/a": "b", "outputs/c": "d"}
    assert run.outputs_index() == OutputsIndex(links=links, executable=["outputs/also.sh", "outputs/run.sh"])


def test_outputs_that_are_known_already_cost_one_request(bucket, podlift_gcs, here) -> None:
    run = SyncedRun(here, URL, SystemClock())
    both = {"objects.download": 1, "objects.insert": 1}
    for executable, expected in (("a.sh", both), ("a.sh", {"objects.download": 1}), ("b.sh", both)):
        podlift_gcs.forget_requests()
        run.add_outputs({}, [f"outputs/{executable}"])
        operations = podlift_gcs.requests().operations
        assert {name: count for name, count in operations.items() if name != "objects.get"} == expected


@pytest.mark.parametrize("folder", ["events", "plans", "attempts", "attempts/0001/metrics", "outputs"])
def test_an_unreadable_folder_fails_the_upload_and_no_verdict_is_uploaded_before_it(
    bucket, here, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    for file in (LOG, "attempts/0001/metrics/chief-0.jsonl", "attempts/0001/payload.json", "outputs/notes.txt"):
        Path(here.url, file).parent.mkdir(parents=True, exist_ok=True)
        Path(here.url, file).write_bytes(TEXT)
    Recorder(here, "supervisor", 0, SystemClock()).record("final")
    names = {"listdir": os.listdir, "scandir": os.scandir}

    def broken(name: str, path: str) -> object:
        if str(path).rstrip("/") == f"{here.url}/{folder}":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return names[name](path)

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(os, name, lambda path=".", name=name: broken(name, path))
        with pytest.raises(OSError, match="Input/output error"):
            Pusher(here, URL, SystemClock()).push(last=True)
        assert not any(name.endswith(".final.json") for name in uploaded(bucket))
    Pusher(here, URL, SystemClock()).push(last=True)
    files = {str(path.relative_to(here.url)) for path in Path(here.url).rglob("*") if path.is_file()}
    assert {*files} <= uploaded(bucket)


def test_names_are_uploaded_as_python_reads_them_in_a_locale_without_utf_8(bucket, here, monkeypatch) -> None:
    outputs = Path(here.url, "outputs")
    outputs.mkdir()
    for name in ("Grüße.txt", os.fsdecode(b"\xff.txt"), "two\nlines.txt", "/".join(["ü" * 120] * 3)):
        (outputs / name).parent.mkdir(parents=True, exist_ok=True)
        (outputs / name).write_text("x")
    # The names in an ISO-8859-1 locale are other bytes than the bytes of the object's name.
    monkeypatch.setattr(os, "fsencode", lambda path: str(path).encode("iso-8859-1", "surrogateescape"))
    Pusher(here, URL, SystemClock()).push(last=True)
    assert {name for name in uploaded(bucket) if name.startswith("outputs/")} == {"outputs/Grüße.txt"}


def test_a_container_with_a_hanging_uploader_uploads_the_rest_at_its_end(bucket, podlift_gcs, here) -> None:
    Path(here.log(1, "chief-0")).write_bytes(TEXT)
    podlift_gcs.faults({"kind": "stall", "method": "POST", "seconds": 15, "nth": 1})
    uploader = ContainerUploader(here, URL, SystemClock())
    uploader.start()
    until(lambda: podlift_gcs.ask("GET", "/_faults")["faults"][0]["fired"])
    with suppress(sdk.PodliftError):
        uploader.flush(0.5)
    Recorder(here, "chief-0", 1, SystemClock()).record("exited")
    uploader.flush(8.0, last=True)
    assert {LOG, *(f"events/{path.name}" for path in Path(here.events).iterdir())} == uploaded(bucket)


class Counted(PosixStore):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.calls = Counter[str]()
        self.is_reachable = True

    def list(self, prefix):
        self.calls["list"] += 1
        if not self.is_reachable:
            raise StoreError("the bucket cannot be reached")
        return super().list(prefix)

    def stat(self, key):
        self.calls["read"] += 1
        return super().stat(key)


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def test_requests_are_found_one_after_the_other_without_a_list(store: Counted) -> None:
    clock = FakeClock()
    watch = CancelWatch(store, clock, 2, 1, every_s=5.0)
    request_cancel(store, 1, b"{}")
    assert watch.look() == [KEYS.remote_cancel_request(1, 1)]
    for number in (1, 2, 3):
        request_cancel(store, 2, b"{}")
        assert KEYS.remote_cancel_request(2, number) not in watch.look()
        clock.sleep(5.0)
        assert KEYS.remote_cancel_request(2, number) in watch.look()
    assert store.calls["list"] == 1


def test_a_late_request_for_an_earlier_job_is_found_by_the_next_list(store: Counted) -> None:
    clock = FakeClock()
    watch = CancelWatch(store, clock, 2, 1, every_s=5.0)
    assert watch.look() == []
    request_cancel(store, 1, b"{}")
    request_cancel(store, 0, b"{}")
    clock.sleep(299.0)
    assert watch.look() == []
    clock.sleep(5.0)
    # The one before the last resume by a user is over.
    assert watch.look() == [KEYS.remote_cancel_request(1, 1)]


def test_a_list_that_failed_is_made_again_at_the_next_look(store: Counted) -> None:
    clock = FakeClock()
    watch = CancelWatch(store, clock, 2, 1, every_s=5.0)
    request_cancel(store, 1, b"{}")
    store.is_reachable = False
    with pytest.raises(StoreError):
        watch.look()
    store.is_reachable = True
    # A request for an earlier job is found by lists alone.
    clock.sleep(5.0)
    assert watch.look() == [KEYS.remote_cancel_request(1, 1)]


def test_an_hour_of_looks_makes_twelve_lists(store: Counted) -> None:
    clock = FakeClock()
    watch = CancelWatch(store, clock, 0, every_s=2.0)
    for _ in range(3600):
        watch.look()
        clock.sleep(1.0)
    assert store.calls == {"list": 12, "read": 1788}
