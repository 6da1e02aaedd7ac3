"""A year of a daily schedule: its history, its list and its check, in a folder and in a bucket of the emulator."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import sdk
from sdk.clock import SystemClock
from sdk.records.sync.index import in_parallel
from sdk.schedules import handle
from sdk.schedules.handle import Schedule
from sdk.schedules.records import Book, ScheduleRecord, ScheduleSpec, SlotRecord, key_of, run_id_of
from sdk.testing.gcs import GcsServer

from . import measure

TITLE = "A year of a daily schedule"
_TARGET_S = 0.5


def run(count: int) -> list[str]:
    """Return the section's lines."""
    lines = ["| 365 records | folder, s | bucket, s | target, s |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder, _bucket(Path(folder, "cloud")) as root:
        places = [str(Path(folder, "root")), root]
        for place in places:
            _fill(place, Path(folder, "project"))
        for name, work in _measured().items():
            found = [measure.seconds(count, lambda place=place, work=work: work(place)) for place in places]  # type: ignore[misc]
            lines.append(f"| {name} | {found[0]:.3f} | {found[1]:.3f} | {_TARGET_S} |")
    return [*lines, "", f"Medians of {count}. The bucket is one of the emulator on this machine."]


def _measured() -> dict[str, Callable[[str], object]]:
    return {
        "`Schedule.history(None)`": lambda root: Schedule("daily", root=root).history(None),
        "`Schedule.history(20)`": lambda root: Schedule("daily", root=root).history(20),
        "`podlift schedule list`": lambda root: [
            each.history(1) + each.problems() for each in handle.listed(root).schedules
        ],
        "`podlift schedule list --check`": lambda root: Schedule("daily", root=root).problems(),
    }


def _fill(root: str, project: Path) -> None:
    """Write a schedule and the records of a year, as its firings leave them."""
    project.mkdir(exist_ok=True)
    (project / "train.py").write_text("print(1)")
    plan = sdk.plan(project / "train.py", root=str(project.parent), name="daily")
    book, now = Book(root), SystemClock().now()
    end = datetime.fromtimestamp(now, timezone.utc)
    spec = ScheduleSpec(name="daily", cron="0 3 * * *", time_zone="Europe/Berlin")
    key = book.put_plan("daily", plan)
    since = (end - timedelta(days=365)).timestamp()
    record = ScheduleRecord(id="a", spec=spec, bundle=plan.code.digest, plan=key, created=since, since=since)
    book.add(record)
    slots = list(spec.slots.between(end - timedelta(days=365), end))
    made = [
        SlotRecord(
            key=key_of(slot),
            slot=slot.isoformat(),
            state="SUCCEEDED",
            reason="done",
            run=run_id_of(record, key_of(slot), slot),
            started=slot.timestamp(),
            ended=slot.timestamp() + 3600,
            cost_usd=1.25,
        )
        for slot in slots
    ]
    in_parallel(lambda each: book.take(record, each), made)


@contextmanager
def _bucket(folder: Path) -> Iterator[str]:
    with GcsServer(folder) as server:
        server.client().create_bucket("bench")
        os.environ["PODLIFT_EMULATOR"] = server.url
        try:
            yield "gs://bench/podlift"
        finally:
            del os.environ["PODLIFT_EMULATOR"]
