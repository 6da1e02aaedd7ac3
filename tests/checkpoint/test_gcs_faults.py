"""The faults between a checkpoint and its bucket, one by one. The numbers refer to the list of faults.

Each test ends with the same question as on a disk:
the restored state is bitwise one acknowledged step, and not older than the last one.
"""

import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from programs.store_faults import FaultyStore
from support import FakeClock, full_only, heard, race

from sdk.checkpoint import opening, restore
from sdk.checkpoint.contents import Array, Contents
from sdk.errors import AccessError, SaveFailedError, StoreError
from sdk.storage.gcs.store import GcsStore
from sdk.storage.retry import RetryPolicy
from sdk.testing.gcs import GcsServer, podlift_gcs, podlift_gcs_server

from .parts import CLOCK, Attempt, check, contents, files, restored
from .test_faults import overwritten, saved

__all__ = ["podlift_gcs", "podlift_gcs_server"]

PATIENT = RetryPolicy(connect_s=5, read_s=20, total_s=60, first_s=60, wait_s=0.05)
HASTY = RetryPolicy(connect_s=5, read_s=0.4, total_s=60, first_s=60, wait_s=0.05)
SOON_OVER = RetryPolicy(connect_s=5, read_s=5, total_s=1.0, first_s=1.0)


@pytest.fixture
def gcs(podlift_gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_gcs.url)
    podlift_gcs.client().create_bucket("bucket")
    return podlift_gcs


@pytest.fixture
def store(gcs: GcsServer) -> GcsStore:
    return GcsStore("bucket/run/store", retry=PATIENT)


def fired(gcs: GcsServer) -> bool:
    """Whether each of the rules has been met."""
    return all(rule["fired"] for rule in gcs.ask("GET", "/_faults")["faults"])


def on(kind: str, operation: str, object: str, nth: Any = 1, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "operation": f"objects.{operation}", "object": object, "nth": nth, **more}


COMMIT, DATA, LEASE = "/commits/", "/data/", "LEASE"
# Of each number one is enough for every run.
PASSING = {
    "03-503-on-the-commit": on("status_before", "insert", COMMIT, [1, 2, 4]),
    "05-500": on("status_before", "insert", DATA, 2, status=500),
    "06-408": on("status_before", "insert", DATA, 2, status=408),
    "07-reset-before-the-commit": on("drop_before", "insert", COMMIT, [1, 2]),
    "08-the-answer-to-the-commit-is-lost": on("drop_after", "insert", COMMIT, [1, 3]),
    "09-503-behind-the-commit": on("status_after", "insert", COMMIT, [1, 3]),
    "10-half-of-the-data-on-its-way-back": on("truncate", "download", DATA, [1, 3]),
    "11-a-stall-before-the-commit-that-comes-late": on("stall", "insert", COMMIT, 3, seconds=1, at="late"),
    "14-other-bytes-on-their-way-there": on("corrupt", "insert", DATA, [1, 3], at="wire", at_byte=9),
    "21-other-bytes-on-their-way-back": on("corrupt", "download", DATA, [1, 3], at_byte=9),
    "44-412-from-a-checksum": on("status_before", "insert", DATA, 2, status=412),
}
RARER = {
    "03-503-on-the-data": on("status_before", "insert", DATA, [1, 2, 5]),
    "03-503-on-the-lease": on("status_before", "download", LEASE, [1, 2, 4]),
    "03-503-on-a-removal": on("status_before", "delete", COMMIT, [1, 2]),
    "03-503-on-a-list": {"kind": "status_before", "operation": "objects.list", "nth": [1, 2, 5, 9]},
    "03-503-on-what-is-restored": on("status_before", "download", DATA, [1, 2, 3, 4]),
    "07-reset-before-the-data": on("drop_before", "insert", DATA, [1, 4]),
    "08-the-answer-to-the-data-is-lost": on("drop_after", "insert", DATA, [1, 4]),
    "08-the-answer-to-a-removal-is-lost": on("drop_after", "delete", COMMIT),
    "08-the-answer-to-the-lease-is-lost": on("drop_after", "insert", LEASE),
    "08-the-answer-to-the-opening-is-lost": on("drop_after", "insert", "/openings/"),
    "09-503-behind-the-data": on("status_after", "insert", DATA, [1, 4]),
    "10-half-of-an-answer-to-the-commit": on("truncate", "insert", COMMIT),
    "10-half-of-a-list": {"kind": "truncate", "operation": "objects.list", "nth": [2, 5]},
    "11-a-stall-before-the-data": on("stall", "insert", DATA, 2, seconds=3, at="before"),
    "11-a-stall-behind-the-commit": on("stall", "insert", COMMIT, 2, seconds=3, at="after"),
    "14-another-commit-on-its-way-there": on("corrupt", "insert", COMMIT, 1, at="wire", at_byte=9),
    "21-another-commit-on-its-way-back": on("corrupt", "download", COMMIT, 1, at_byte=9),
    "44-412-from-the-commit's-checksum": on("status_before", "insert", COMMIT, 2, status=412),
}
CASES = [pytest.param(rule, id=name) for name, rule in PASSING.items()]
CASES += [full_only(rule, id=name) for name, rule in RARER.items()]


@pytest.mark.parametrize("rule", CASES)
def test_a_passing_fault_is_waited_for_and_nothing_is_lost(gcs: GcsServer, rule: dict[str, Any]) -> None:
    # In a separate place: a request that comes late may come in the next test.
    place = f"bucket/{uuid.uuid4().hex}/store"
    store = GcsStore(place, retry=HASTY if rule["kind"] == "stall" else PATIENT)
    gcs.faults(rule)
    attempt = Attempt(store, keep_last=1)
    for step in (1, 2, 3):
        attempt.save(step)
        assert restored(store) == step
    attempt.close()
    assert fired(gcs)
    assert len(files(store, "commits/")) == 1
    assert {key.split("/")[2].split("-")[0] for key in files(store, "data/")} == {"000000000003"}


def test_04_a_retry_waits_as_long_as_the_server_asks(gcs: GcsServer) -> None:
    clock = FakeClock()
    store = GcsStore("bucket/run/store", clock=clock)
    saved(store, 1)
    gcs.faults(on("status_before", "insert", DATA, [1, 2], status=429, retry_after_s=9))
    before = clock.time
    saved(store, 2, number=1)
    assert fired(gcs)
    assert clock.time - before >= 18
    assert restored(store) == 2


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"kind": "status_before", "status": 503}, r"has failed \(503\)"),
        ({"kind": "status_before", "status": 429, "retry_after_s": 3600}, r"asks to slow down \(429\)"),
        ({"kind": "drop_before"}, "the connection broke"),
        ({"kind": "stall", "seconds": 2, "at": "before"}, "did not respond in time"),
        ({"kind": "drip", "bytes_per_s": 10}, "too slow|did not respond in time"),
        ({"kind": "corrupt", "at": "stored", "at_byte": 20}, "stored different bytes"),
        ({"kind": "status_before", "status": 412}, "(data|commits)/e000002"),
    ],
    ids=["03-503", "04-429", "07-reset", "11-stall", "12-drip", "14-stored-wrongly", "44-412-for-ever"],
)
@pytest.mark.parametrize("part", [full_only(DATA), COMMIT])
def test_a_lasting_fault_fails_in_time_and_the_checkpoint_before_is_untouched(gcs, store, rule, said, part) -> None:
    saved(store, 1)
    attempt = Attempt(GcsStore("bucket/run/store", retry=RetryPolicy(read_s=0.2, total_s=0.4)), 1)
    gcs.faults({**rule, "operation": "objects.insert", "object": part})
    with pytest.raises(SaveFailedError, match=said):
        attempt.save(2)
    gcs.faults()
    assert restored(store) == 1
    saved(store, 2, number=2)
    assert restored(store) == 2


def test_12_whoever_must_leave_soon_does_not_wait_for_a_slow_upload(gcs: GcsServer, store: GcsStore) -> None:
    saved(store, 1)
    attempt = Attempt(store, 1)
    gcs.faults({"kind": "drip", "bytes_per_s": 50, "operation": "objects.insert", "object": DATA})
    FaultyStore(store).set_deadline(0.3)
    with pytest.raises(SaveFailedError, match="step 2 was not saved"):
        attempt.save(2, reason="preempt")
    gcs.faults()
    assert restored(GcsStore("bucket/run/store")) == 1


def test_13_an_upload_needs_no_session_and_begins_again_if_it_breaks_off(gcs, store) -> None:
    # The largest object is one request: a session would be a second one, and as much is sent again.
    large = bytes(range(256)) * (1 << 16)
    gcs.faults({"kind": "lose_session"}, on("drop_before", "insert", "x$"))
    store.put_new("x", [large, b"end"])
    assert bytes(store.get("x")) == large + b"end"
    operations = gcs.requests().operations
    assert operations["objects.insert"] > 1
    assert set(operations) == {"buckets.insert", "objects.insert", "objects.download"}


def foreign(gcs: GcsServer, store: GcsStore, key: str, data: bytes) -> None:
    """Let somebody write an object who knows nothing of preconditions."""
    gcs.client().bucket("bucket").blob(f"run/store/{key}").upload_from_string(data)


Damage = Callable[[GcsServer, GcsStore, str], object]
DAMAGES: dict[str, Damage] = {
    "17-it-is-deleted-and-made-a-folder": lambda gcs, store, key: (
        store.delete(key),
        foreign(gcs, store, f"{key}/", b""),
    ),
    "18-somebody-has-written-the-same": lambda gcs, store, key: foreign(gcs, store, key, bytes(store.get(key))),
    "18-somebody-has-removed-and-written-it": lambda gcs, store, key: overwritten(store, key),
}


# Faults that a disk has too are in the tests of the disk.
@pytest.mark.parametrize("part", ["data", "commit"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_found_put_into_quarantine_and_not_restored(gcs, store, name: str, part: str) -> None:
    commits = saved(store, 1, 2, 3)
    newest = restore.read_manifest(store, commits[-1])
    DAMAGES[name](gcs, store, newest.files[1].key if part == "data" else commits[-1])
    good = 3 if part == "commit" and name.startswith("18") else 2
    # A commit that was removed was removed, by whomever.
    removed = part == "commit" and name.startswith("17")
    assert check(restore.newest(store)) == good
    assert len(files(store, "quarantine/")) == (good == 2 and not removed)
    saved(store, 3, number=1)
    assert restored(store) == 3


@pytest.mark.parametrize("part", [DATA, COMMIT])
def test_15_a_bit_that_changes_where_it_is_stored_is_found(gcs: GcsServer, store: GcsStore, part: str) -> None:
    saved(store, 1)
    gcs.faults(on("corrupt", "insert", part, at="disk", at_byte=20))
    attempt = Attempt(store, 1, keep_last=1)
    attempt.save(2)
    gcs.faults()
    said = heard("checkpoint")
    assert check(restore.newest(store)) == 1
    assert len(files(store, "quarantine/")) == 1
    assert any("Trying an older one" in line for line in said)


@pytest.mark.full
@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("prefix", ["commits/", "quarantine/"])
def test_22_and_25_a_page_that_fails_is_an_error_and_never_a_shorter_list(gcs, store, prefix: str, page: int) -> None:
    saved(store, 1)
    many = [f"{prefix}e000000/{number:012d}-000000.json" for number in range(1001)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put_new(key, [b""]), many))
    path = prefix[:-1] if page == 1 else rf"{prefix[:-1]}.*pageToken|pageToken.*{prefix[:-1]}"
    gcs.faults({"kind": "status_before", "operation": "objects.list", "path": path})
    hasty = GcsStore("bucket/run/store", retry=SOON_OVER)
    for read in (restore.newest, lambda store: opening.open_first(store, 1, "me", CLOCK)):
        with pytest.raises(StoreError, match=r"Cannot list .*\(503\)"):
            read(hasty)
    assert fired(gcs)
    gcs.faults()
    assert restored(store) == 1
    assert len(files(store, prefix)) == 1001 + (prefix == "commits/")


def test_26_of_6_processes_one_creates_the_commit_and_each_lease_is_taken_once(gcs: GcsServer) -> None:
    # Some answers are lost on their way: whoever has won is told that he has lost, and must find out.
    gcs.faults({"kind": "drop_after", "operation": "objects.insert", "probability": 0.2, "seed": 7})
    raced = race("gs://bucket/race", 6)
    assert [sum(won) for won in zip(*raced, strict=True)][1:3] == [1, 1]
    # An epoch may be missing: its taker was not told in time that it was his, and has taken another one.
    assert len({epoch for *_, epoch in raced}) == 6


def test_27_a_late_create_is_never_restored_and_the_next_attempt_removes_it(gcs) -> None:
    # Its first request is held up on its way, its second one makes it, it is removed as too old, and then the first one lands.
    store = GcsStore("bucket/other/store", retry=RetryPolicy(read_s=0.2, wait_s=0.01))
    gcs.faults(on("stall", "insert", COMMIT, seconds=1.5, at="late"))
    attempt = Attempt(store, keep_last=1)
    for step in (1, 2, 3):
        attempt.save(step)
    again = "commits/e000001/000000000001-000000.json"
    until = CLOCK.monotonic() + 30
    while again not in files(store, "commits/") and CLOCK.monotonic() < until:
        CLOCK.sleep(0.05)
    assert len(files(store, "commits/")) == 2
    assert restored(store) == 3
    Attempt(store, 1, keep_last=1).save(4)
    assert files(store, "commits/") == ["commits/e000002/000000000004-000000.json"]
    assert restored(store) == 4


@pytest.mark.parametrize(
    ("part", "status"),
    [(DATA, 401), (LEASE, 403), (COMMIT, 403), full_only(DATA, 403), full_only(LEASE, 401), full_only(COMMIT, 401)],
)
def test_32_a_denied_request_names_the_missing_right_at_once(gcs, store, status: int, part: str) -> None:
    saved(store, 1)
    attempt = Attempt(store, 1)
    gcs.faults({"kind": "status_before", "status": status, "object": part})
    gcs.forget_requests()
    sentences = {401: r"\(401\).*Next: gcloud auth", 403: r"\(403\).*Next, by the bucket's owner: gcloud storage"}
    with pytest.raises(SaveFailedError, match=sentences[status]) as failed:
        attempt.save(2)
    assert isinstance(failed.value.__cause__, AccessError)
    with pytest.raises(SaveFailedError, match=rf"\({status}\)"):
        attempt.savers[0].close()
    refused = [(each["operation"], each["object"]) for each in gcs.requests().recent if each["status"] == status]
    assert len(refused) == len(set(refused))
    gcs.faults()
    assert restored(store) == 1


@pytest.mark.parametrize("prefix", ["q?x=1&y#z/p%41%2F/[x]*", full_only("a b+c/häß日本"), full_only("quote'\"")])
def test_41_a_checkpoint_may_lie_below_any_name(gcs: GcsServer, prefix: str) -> None:
    store = GcsStore(f"bucket/{prefix}")
    saved(store, 1, 2)
    assert restored(GcsStore(f"bucket/{prefix}/")) == 2
    names = [blob.name for blob in gcs.client().list_blobs("bucket")]
    assert all(name.startswith(f"{prefix}/") for name in names)


def test_01_a_service_that_is_gone_for_a_while_is_waited_for(gcs: GcsServer, store: GcsStore) -> None:
    attempt = Attempt(store)
    attempt.save(1)
    gcs.kill()
    ticket = attempt.savers[0].save(contents(2), step=2, position={"step": 2})
    gcs.start()
    assert ticket is not None
    ticket.wait(60)
    attempt.close()
    assert restored(store) == 2


def test_a_commit_costs_three_requests_beside_its_data_and_a_removal_two(gcs: GcsServer, store: GcsStore) -> None:
    # Each request takes as long as the way to the bucket and back.
    attempt = Attempt(store, keep_last=3)
    asked = []
    for step in range(1, 6):
        gcs.forget_requests()
        small = Contents((Array("w", "uint8", (900,), lambda: memoryview(bytes(900))),), {"rng": b"1"})
        ticket = attempt.savers[0].save(small, step=step)
        assert ticket is not None
        ticket.wait(20)
        attempt.savers[0].wait(20)
        asked.append(Counter(gcs.requests().operations))
    data = Counter({"objects.insert": 2})
    # The lease is read, the commit is created, and pins are looked at before anything is removed.
    commit = Counter({"objects.download": 1, "objects.insert": 1, "objects.list": 1})
    removal = Counter({"objects.download": 1, "objects.delete": 1})
    assert asked[1] == asked[2] == data + commit
    assert asked[3] == asked[4] == data + commit + removal + Counter({"objects.delete": 2})
    attempt.close()
