"""Lines of tasks come from Cloud Logging once each, in order, until the job has ended: here a list of entries answers."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from operator import itemgetter
from typing import Any

import pytest
from support import FakeClock

from sdk import InputError
from sdk.backends.vertex.job import logs, request
from sdk.backends.vertex.job.logs import LogReader, Polling, entry_filter, lines, replica_of
from sdk.records.events import Event

START = 1_700_000_000.0
NAMES = request.replica_names(["chief-0", "worker-0"])


class Logging:
    """Cloud Logging with a page of two entries; an entry is there from the time at which it arrives."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.kept: list[tuple[float, dict[str, Any]]] = []
        self.filters: list[str] = []

    def add(self, at: float, text: str, task: str = "workerpool0-0", late_s: float = 0.0, **payload: Any) -> None:
        stamp = datetime.fromtimestamp(START + at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f123Z")
        labels, body = {"job_id": "77", "task_name": task}, payload or {"textPayload": text}
        entry = {"insertId": f"i{len(self.kept)}", "timestamp": stamp, "resource": {"labels": labels}, **body}
        self.kept.append((START + at + late_s, entry))

    def ask(self, body: dict[str, Any]) -> Mapping[str, Any]:
        assert body["orderBy"] in ("timestamp asc", "timestamp desc") and body["resourceNames"] == ["projects/p"]
        self.filters.append(body["filter"])
        parts = dict(part.split('"')[:2] for part in body["filter"].split(" AND "))
        arrived = [entry for arrives, entry in self.kept if arrives <= self.clock.now()]
        found = [
            entry
            for entry in sorted(arrived, key=itemgetter("timestamp"), reverse=body["orderBy"] == "timestamp desc")
            if parts["resource.labels.job_id="] == entry["resource"]["labels"]["job_id"]
            and parts.get("resource.labels.task_name=") in (None, entry["resource"]["labels"]["task_name"])
            and parts.get("timestamp>=", "") <= entry["timestamp"] < parts.get("timestamp<", "9")
        ]
        start = int(body.get("pageToken", 0))
        page: dict[str, Any] = {"entries": found[start : start + 2]}
        return {**page, "nextPageToken": str(start + 2)} if start + 2 < len(found) else page


class Job:
    """A job that ends at a time, which is later by the clock of its service."""

    def __init__(self, clock: FakeClock, ends: float, ahead_s: float = 0.0) -> None:
        self.clock, self.ends, self.ahead_s, self.asked = clock, START + ends, ahead_s, 0

    def has_ended(self) -> tuple[bool, float]:
        self.asked += 1
        return self.clock.now() >= self.ends, self.ends + self.ahead_s


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def logging(clock) -> Logging:
    return Logging(clock)


def reader(logging: Logging) -> LogReader:
    return LogReader(logging.ask, "p", "77", polling=Polling(), clock=logging.clock)


def texts(found: Iterator[logs.LogEntry]) -> list[str]:
    return [entry.text for entry in found]


def test_the_filter_is_the_one_that_googles_own_command_uses() -> None:
    assert entry_filter("77") == 'resource.type="ml_job" AND resource.labels.job_id="77"'
    assert entry_filter("77", "workerpool1-0", 0.5, 1.0) == (
        'resource.type="ml_job" AND resource.labels.job_id="77" AND resource.labels.task_name="workerpool1-0" AND '
        'timestamp>="1970-01-01T00:00:00.500000Z" AND timestamp<"1970-01-01T00:00:01.000000Z"'
    )


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="Did you mean 'worker-0'"):
        replica_of("worker-1", ["chief-0", "worker-0"], NAMES)
    assert replica_of("service", ["chief-0"], NAMES) is None
    assert replica_of(None, ["chief-0"], NAMES) is None


def test_following_yields_each_line_once_and_ends_behind_the_job(logging, clock) -> None:
    for number in range(40):
        logging.add(number, str(number))
    job = Job(clock, ends=40)
    assert texts(reader(logging).follow(None, job.has_ended)) == [str(number) for number in range(40)]
    assert clock.now() >= START + 40 + Polling().settle_s
    assert job.asked <= 1 + (40 + Polling().settle_s) / Polling().poll_s + 2, "nobody asks more often than is polite"


def test_following_ends_where_the_services_clock_is_hours_ahead(logging, clock) -> None:
    logging.add(1, "a")
    assert texts(reader(logging).follow(None, Job(clock, ends=40, ahead_s=3600).has_ended)) == ["a"]
    assert clock.now() < START + 40 + 2 * Polling().settle_s


def test_a_line_that_arrives_late_is_read_all_the_same(logging, clock) -> None:
    logging.add(1, "early")
    logging.add(2, "late", late_s=9.0)
    logging.add(8, "younger")
    logging.add(39.9, "last words", late_s=10.0)
    found = texts(reader(logging).follow(None, Job(clock, ends=40).has_ended))
    assert sorted(found) == ["early", "last words", "late", "younger"]


def test_a_young_line_is_left_for_the_next_read_while_the_job_runs(logging, clock) -> None:
    logging.add(-1, "young")
    one = reader(logging)
    assert texts(one.read(None, whole=False)) == []
    clock.sleep(10)
    assert texts(one.read(None, whole=False)) == ["young"]
    assert texts(one.read(None)) == []


def attempt_at(task: str, time: float) -> int:
    return 1 if time < START + 100 else 2


def test_a_line_belongs_to_the_attempt_that_its_own_task_has_begun(logging) -> None:
    """The worker starts a moment before the chief's container records the second attempt."""
    beginnings = [
        Event(attempt=attempt, source=source, sequence=1, kind=kind, time=START + at)
        for attempt, source, kind, at in (
            (1, "agent", "attempt_started", 10.0),
            (1, "chief-0", "entry", 11.0),
            (1, "worker-0", "entry", 11.0),
            (2, "worker-0", "entry", 100.0),
            (2, "agent", "attempt_started", 100.5),
            (2, "chief-0", "entry", 101.0),
        )
    ]
    moments = (5.0, 10.5, 99.9, 100.1, 100.4, 100.6)
    found = {task: [logs.attempt_at(beginnings, task, START + at) for at in moments] for task in NAMES.values()}
    assert found["worker-0"] == [1, 1, 1, 2, 2, 2]
    assert found["chief-0"] == [1, 1, 1, 1, 1, 2]
    assert logs.attempt_at([], "chief-0", START) == 1


def test_entries_are_lines_of_tasks_and_attempts(logging, clock) -> None:
    logging.add(1, "one\ntwo\n")
    logging.add(2, "10%\r20%\rdone")
    logging.add(3, "said by the service", "service")
    logging.add(3, "", jsonPayload={"message": "one of JSON", "step": 3})
    logging.add(4, "", jsonPayload={"step": 4})
    logging.add(101, "again", "workerpool1-0")
    clock.sleep(200)
    found = list(lines(reader(logging).read(None), NAMES, attempt_at, None))
    shown = "".join(line.text + line.end for line in found)
    assert shown == 'one\ntwo\n10%\r20%\rdone\none of JSON\n{"step": 4}\nagain\n'
    assert [(line.task, line.attempt) for line in found] == [("chief-0", 1)] * 7 + [("worker-0", 2)]
    assert found[0].time == pytest.approx(START + 1, abs=0.01)
    second = list(lines(reader(logging).read(None), NAMES, attempt_at, 2))
    assert [line.text for line in second] == ["again"]


def test_podlifts_lines_in_a_container_are_no_lines_of_the_program_except_errors(logging, clock) -> None:
    logging.add(0, "podlift: waiting for worker-0")
    logging.add(0, "the program's")
    logging.add(0, "", severity="ERROR", textPayload="podlift: Python 3.8 is too old.")
    logging.add(0, "Job is running.", "service")
    found = list(reader(logging).read(None))
    told = [line.text for line in lines(iter(found), NAMES, attempt_at, None)]
    assert told == ["the program's", "podlift: Python 3.8 is too old."]
    service = [line.text for line in lines(iter(found), {"service": "service"}, attempt_at, None)]
    assert service == ["podlift: waiting for worker-0", "Job is running."]


def test_the_last_output_of_a_replica_takes_no_more_requests_for_a_long_log() -> None:
    clock = FakeClock(START + 1e6)
    logging = Logging(clock)
    for number in range(2000):
        logging.add(number, f"line {number}\n")
    logging.add(2000, "of another one", task="workerpool1-0")
    found = logs.last_output(logging.ask, "p", "77", "workerpool0-0")
    assert found.splitlines() == [f"line {number}" for number in range(1970, 2000)]
    assert len(logging.filters) == 15, "here, pages have two entries"
    for number in range(2001, 2031):
        logging.add(number, "x" * 300)
    logging.add(2031, "the end")
    found = logs.last_output(logging.ask, "p", "77", "workerpool0-0")
    assert len(found) == 4000 and found.endswith("x\nthe end")
    logging.add(2032, "podlift: this image has no TensorFlow. " + "y" * 5000)
    logging.kept[-1][1]["severity"] = "ERROR"
    logging.add(2033, "one more line")
    found = logs.last_output(logging.ask, "p", "77", "workerpool0-0")
    assert len(found) == 4000 and found.startswith("podlift: this image has no TensorFlow. ")
