"""Log entries of jobs and of the service, as Cloud Logging stores and lists them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from .. import data_folder
from ..errors import words
from .environment import project_number
from .errors import invalid, unknown_name
from .listing import (
    Comparison,
    Filter,
    compare,
    invalid_filter,
    matches_filter,
    page_token,
    parse,
    read_page_token,
    required_comparisons,
)
from .timing import EmulatorClock, format_time_ns, parse_time_ns

SERVICE = "service"
_SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")
# The longest entry of Cloud Logging.
_MAX_CHARACTERS = 250_000
# Stands for no known time.
_NEVER_S = 100 * 366 * 86400.0
_PAGE, _MAX_PAGE, _CHUNK = 50, 1000, 1000
_FIELDS = words("resourceNames projectIds filter orderBy pageSize pageToken")
_ORDERS = {"": "ASC", "timestamp": "ASC", "timestamp asc": "ASC", "timestamp desc": "DESC"}
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, ns INTEGER NOT NULL, project TEXT NOT NULL, job TEXT NOT NULL, task TEXT NOT NULL,
    severity TEXT NOT NULL, payload TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS of_job ON entries (job, ns, id);
"""


class LogEntries:
    def __init__(self, path: Path, clock: EmulatorClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._db = data_folder.open_database(path, _SCHEMA, _VERSION, any_thread=True)
        # When a line arrives that is late, by its id.
        self._arrivals: dict[int, int] = {}
        # The time of the last line of each job.
        self._last_ns = dict[str, int](self._db.execute("SELECT job, max(ns) FROM entries GROUP BY job"))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def clear(self) -> None:
        with self._lock:
            self._db.execute("DELETE FROM entries")
            self._arrivals.clear()
            self._last_ns.clear()

    def add_line(
        self, project: str, job: str, task: str, stream: str, line: str, *, late_s: float = 0.0, behind_s: float = 0.0
    ) -> None:
        """Store a line that a replica has written; JSON with a severity or a message becomes a structured entry.

        Lists do not show it for `late_s` seconds, or until `show_late_lines`. Its time is `behind_s` behind the clock.
        """
        times = (late_s, behind_s)
        structured = _structured(line)
        if structured is not None:
            named = str(structured.pop("severity", "")).upper()
            severity = named if named in _SEVERITIES else "DEFAULT"
            self._add(project, job, task, severity, {"jsonPayload": structured}, *times)
            return
        for start in range(0, max(len(line), 1), _MAX_CHARACTERS):
            piece = line[start : start + _MAX_CHARACTERS]
            self._add(project, job, task, "ERROR" if stream == "stderr" else "INFO", {"textPayload": piece}, *times)

    def add_service_line(
        self, project: str, job: str, text: str, severity: str = "INFO", *, late_s: float = 0.0, behind_s: float = 0.0
    ) -> None:
        self._add(project, job, SERVICE, severity, {"textPayload": text}, late_s, behind_s)

    def show_late_lines(self) -> None:
        with self._lock:
            now_ns = int(self._clock.now() * 1e9)
            self._arrivals = {id: min(arrival, now_ns) for id, arrival in self._arrivals.items()}

    def _add(
        self, project: str, job: str, task: str, severity: str, payload: dict[str, Any], late_s: float, behind_s: float
    ) -> None:
        text = json.dumps(payload)
        with self._lock:
            now = self._clock.now()
            # Never earlier: a reader that continues after the time of its last entry would miss one.
            ns = self._last_ns[job] = max(int((now - behind_s) * 1e9), self._last_ns.get(job, 0))
            values = (ns, project, job, task, severity, text)
            query = "INSERT INTO entries (ns, project, job, task, severity, payload) VALUES (?, ?, ?, ?, ?, ?)"
            added = self._db.execute(query, values).lastrowid
            if late_s and added is not None:
                self._arrivals[added] = int((now + min(late_s, _NEVER_S)) * 1e9)

    def listed(self, request: Mapping[str, Any]) -> dict[str, Any]:
        projects, order, size = _check_request(request)
        text = request.get("filter", "")
        condition = parse(text)
        query_key = json.dumps([sorted(projects), text, order])
        last = read_page_token(request.get("pageToken", ""), query_key)
        if last is not None and len(last) != 2:
            raise invalid([("page_token", "The page token is not one of entries:list.")])
        rows = list(islice(self._scan(projects, condition, order, last), size + 1))
        answer: dict[str, Any] = {"entries": [entry for entry, _ in rows[:size]]} if rows else {}
        if len(rows) > size:
            answer["nextPageToken"] = page_token(query_key, rows[size - 1][1])
        return answer

    def _scan(
        self, projects: set[str], condition: Filter, order: str, last: list[int] | None
    ) -> Iterator[tuple[dict[str, Any], list[int]]]:
        where, values = _sql_conditions(condition)
        sign = ">" if order == "ASC" else "<"
        while True:
            clauses = [*where, *([f"(ns, id) {sign} (?, ?)"] if last else [])]
            where_clause = f"WHERE {' AND '.join(clauses)}" if clauses else ""
            query = (
                f"SELECT id, ns, project, job, task, severity, payload FROM entries {where_clause} "  # noqa: S608
                f"ORDER BY ns {order}, id {order} LIMIT {_CHUNK}"
            )
            with self._lock:
                rows = self._db.execute(query, (*values, *(last or ()))).fetchall()
                arrivals, now_ns = dict(self._arrivals), int(self._clock.now() * 1e9)
            for row in rows:
                received_ns = arrivals.get(row[0], row[1])
                if received_ns > now_ns:
                    continue
                entry = _entry(row, received_ns)
                if row[2] in projects and matches_filter(condition, lambda term, entry=entry: _matches(term, entry)):  # type: ignore[misc]
                    yield entry, [row[1], row[0]]
            if len(rows) < _CHUNK:
                return
            last = [rows[-1][1], rows[-1][0]]


def _structured(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{") or len(line) > _MAX_CHARACTERS:
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and ("severity" in entry or "message" in entry) else None


def _check_request(request: Mapping[str, Any]) -> tuple[set[str], str, int]:
    for name in request:
        if name not in _FIELDS:
            raise unknown_name(name)
    for name in ("filter", "orderBy", "pageToken"):
        if not isinstance(request.get(name, ""), str):
            raise invalid([(name, f"Invalid value at '{name}' (TYPE_STRING)")])
    names = request.get("resourceNames") or []
    projects = (
        [re.fullmatch(r"projects/([^/]+)(/.*)?", str(resource)) for resource in names]
        if isinstance(names, list)
        else []
    )
    if not projects or not all(projects):
        text = f"Name one or more resources such as projects/PROJECT. Received: {names!r}."
        raise invalid([("resource_names", text)])
    order = _ORDERS.get(request.get("orderBy", "").strip())
    if order is None:
        raise invalid([("order_by", "The order is 'timestamp asc' or 'timestamp desc'.")])
    size = request.get("pageSize") or _PAGE
    if type(size) is not int or size < 0:
        raise invalid([("page_size", f"Invalid value at 'page_size' (TYPE_INT32), {json.dumps(size)[:100]}")])
    return {project_number(resource[1]) for resource in projects if resource}, order, min(size, _MAX_PAGE)


def _sql_conditions(condition: Filter) -> tuple[list[str], list[Any]]:
    clauses: list[str] = []
    values: list[Any] = []
    for term in required_comparisons(condition):
        if term.path in (("resource", "labels", "job_id"), ("labels", "ml.googleapis.com/job_id")) and term.op == "=":
            clauses.append("job = ?")
            values.append(term.value)
        elif term.path == ("timestamp",) and term.op in (">", ">="):
            clauses.append("ns >= ?")
            values.append(_time(term))
    return clauses, values


def _entry(row: tuple[Any, ...], received_ns: int) -> dict[str, Any]:
    insert_id, ns, project, job, task, severity, payload = row
    labels = {"ml.googleapis.com/job_id": job, "ml.googleapis.com/task_name": task}
    return {
        "insertId": f"{insert_id:016x}",
        "logName": f"projects/{project}/logs/" + (f"ml.googleapis.com%2F{job}" if task == SERVICE else task),
        "resource": {"type": "ml_job", "labels": {"job_id": job, "project_id": project, "task_name": task}},
        "labels": labels,
        "timestamp": format_time_ns(ns),
        "receiveTimestamp": format_time_ns(received_ns),
        "severity": severity,
        **json.loads(payload),
    }


def _time(comparison: Comparison) -> int:
    try:
        # Integers of SQLite have 64 bits.
        return min(max(parse_time_ns(comparison.value), -(2**63)), 2**63 - 1)
    except ValueError as error:
        raise invalid_filter(str(error)) from None


def _matches(comparison: Comparison, entry: Mapping[str, Any]) -> bool:
    path, op, value = comparison.path, comparison.op, comparison.value
    if path == ("timestamp",):
        return compare(op, parse_time_ns(entry["timestamp"]), _time(comparison))
    if path == ("severity",):
        if value.upper() not in _SEVERITIES:
            raise invalid_filter(f"unknown severity {value!r}")
        return compare(op, _SEVERITIES.index(entry["severity"]), _SEVERITIES.index(value.upper()))
    actual: Any = entry
    for part in path:
        actual = actual.get(part) if isinstance(actual, Mapping) else None
    if actual is None:
        return False
    if op == ":":
        return value == "*" or value.lower() in str(actual).lower()
    if op not in ("=~", "!~"):
        return compare(op, str(actual), value)
    try:
        return (re.search(value, str(actual)) is not None) == (op == "=~")
    except (re.error, RecursionError, OverflowError) as error:
        raise invalid_filter(f"not a regular expression: {error}") from None
