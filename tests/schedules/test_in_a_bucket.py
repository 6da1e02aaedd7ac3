"""Schedules below a root in a bucket: one run for each slot, and a history that takes few requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from paper_runs import START, PaperRuns, World
from support import FakeClock

from sdk.job.plan import Plan
from sdk.records.sync.index import in_parallel
from sdk.schedules.records import Book, SlotRecord, key_of
from sdk.testing.gcs import GcsServer
from sdk.upkeep import remove

RACING, DAYS = 8, 100


@pytest.fixture
def there(mine, template: Plan) -> World:
    clock = FakeClock(START.timestamp() - 60)
    return World("gs://mine/podlift", template, clock, PaperRuns(clock))


def test_of_8_racing_deliveries_one_run_starts(there: World) -> None:
    there.add()
    there.clock.time = START.timestamp()
    keepers = [there.keeper(str(number)) for number in range(RACING)]
    with ThreadPoolExecutor(RACING) as pool:
        going_on = list(pool.map(lambda keeper: keeper.step(), keepers))
        # Processes that found the slot taken and not yet running look again.
        again = [each for each, more in zip(keepers, going_on, strict=True) if more]
        list(pool.map(lambda keeper: keeper.step(), again))
    assert len(there.runs.submits) == 1
    (record,) = there.history()
    assert record.state == "RUNNING"
    assert len(record.notes) == RACING - 1


def test_a_history_of_a_hundred_slots_is_listed_with_few_requests_and_removed(there, podlift_gcs: GcsServer) -> None:
    record, book = there.add(cron="0 3 * * *"), Book(there.root)
    slots = [*record.spec.slots.between(START, START + timedelta(days=DAYS))]
    made = [SlotRecord(key=key_of(slot), slot=slot.isoformat(), state="SUCCEEDED") for slot in slots]
    assert all(in_parallel(lambda each: book.take(record, each), made))
    there.clock.time = made[-1].moment.timestamp() + 60
    schedule = there.schedule
    assert [each.slot for each in schedule.history(None)] == [each.slot for each in reversed(made)]
    podlift_gcs.forget_requests()
    assert [each.slot for each in schedule.history()] == [each.slot for each in reversed(made[-20:])]
    assert podlift_gcs.requests().total <= 23
    there.schedule.remove()
    assert [blob.name for blob in podlift_gcs.client().list_blobs("mine", prefix="podlift/schedules/slots")] == []


def test_podlift_remove_keeps_the_code_of_a_schedule_and_of_its_keepers(there, podlift_gcs, monkeypatch) -> None:
    bucket = podlift_gcs.client().bucket("mine")
    record, kept, other = there.add(), "a" * 64, "b" * 64
    for digest in (kept, other):
        for name in (f"runtime/{digest}.tar", f"entrypoints/{digest}.py"):
            bucket.blob(f"podlift/{name}").upload_from_string("x")
    bucket.blob(f"podlift/bundles/{record.bundle}.tar").upload_from_string("x")
    bucket.blob(f"podlift/bundles/{other}.tar").upload_from_string("x")
    spec = f'{{"runtime": {{"sha256": "{kept}"}}, "entrypoint": "{kept}"}}'
    Book(there.root).put_files({"keepers/each/0123.json": spec.encode()})
    for name in ("SETTLED_S", "JOB_SETTLED_S"):
        monkeypatch.setattr(remove.root, name, 0.0)
    found = remove.find(there.root, older_than_s=0.0, keep=0, now=START.timestamp() + 1e9)
    assert sorted(item.name for item in remove.remove(found).items) == [other] * 3
    assert {blob.name for blob in bucket.list_blobs(prefix="podlift/runtime/")} == {f"podlift/runtime/{kept}.tar"}
