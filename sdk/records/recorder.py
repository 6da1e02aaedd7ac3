"""Reads and writes the records of a run as files."""

from __future__ import annotations

import json
import os
import stat
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from ..clock import Clock
from ..errors import CorruptRunError
from ..job import cluster
from ..job.layout import RunPaths
from ..status import Progress
from ..storage import posix, reserve
from ..storage.reserve import Reserve
from .accounts import LiveAccount, TaskAccount, recorded, unpacked
from .events import DAMAGE, Event, parse, remark, resume_count, source_of, status_records
from .metric_file import MetricRecord, read_metrics

# Written by a task at each step (runtime/progress.py): training steps; beats (training steps, and batches of evaluate and
# predict); the epoch from 1; the last epoch of the fit; steps of this epoch so far; steps per epoch. 0 stands for unknown.
PROGRESS = struct.Struct("<QQQQQQ")
# Records of the end of a task or a run.
_ENDS = ("failed", "final")


class Recorder:
    """Writes one source's records of one attempt, and numbers them. `reserve` takes records if the disk is full."""

    def __init__(
        self,
        paths: RunPaths,
        source: str,
        attempt: int,
        clock: Clock,
        reserve: Reserve | None = None,
        *,
        continued: bool = False,
    ) -> None:
        self._reserve = reserve
        self._paths = paths
        self._source = source
        self._attempt = attempt
        self._clock = clock
        # An earlier process may have written records of this source and attempt.
        self._count = _last_number(paths, f"{attempt:04d}.{source}.") if continued else 0
        # Checkpoints are acknowledged from another thread.
        self._lock = threading.Lock()

    def record(self, kind: str, **data: Any) -> None:
        with self._lock:
            self._count += 1
            count = self._count
        event = Event(
            attempt=self._attempt,
            source=self._source,
            sequence=count,
            kind=kind,
            time=self._clock.now(),
            data=data,
        )
        path = self._paths.event(self._attempt, self._source, count, kind)
        try:
            posix.put_new(path, event.to_json())
        except FileExistsError:
            raise
        except OSError:
            kept = self._reserve is not None and self._reserve.add(
                os.path.basename(path),
                json.loads(event.to_json()),
                last=kind in _ENDS,
            )
            if not kept:
                raise


def _last_number(paths: RunPaths, start: str) -> int:
    names, _ = _all_names(paths)
    return max((int(name.split(".")[2]) for name in names if name.startswith(start)), default=0)


def read_events(paths: RunPaths, kinds: tuple[str, ...] | None = None) -> list[Event]:
    """Return the records of a run, or only those of the given kinds. Raises CorruptRunError."""
    names, reserved = _all_names(paths)
    ends = ("",) if kinds is None else tuple(f".{kind}.json" for kind in kinds)
    return _parsed(paths, [name for name in names if name.endswith(ends)], reserved)


def read_status_records(paths: RunPaths) -> list[Event]:
    """Return the records of `read_legible` that decide the status, which are few even for a run of many attempts."""
    names, reserved = _all_names(paths)
    return _parsed(paths, status_records(names), reserved, remarks=True)


def read_legible(paths: RunPaths) -> list[Event]:
    """Return all records of a run for a display, with a remark in the place of each damaged one of an attempt.

    Raises:
        CorruptRunError: one about the whole run is damaged, such as the verdict: any state would be a guess.
    """
    return _parsed(paths, *_all_names(paths), remarks=True)


def _parsed(
    paths: RunPaths, names: Sequence[str], reserved: Mapping[str, bytes], *, remarks: bool = False
) -> list[Event]:
    folder, events = paths.events, list[Event]()
    for name in names:
        try:
            events.append(parse(name, reserved[name] if name in reserved else read_file(f"{folder}/{name}")))
        except (ValueError, OSError, RecursionError) as error:
            text = f"{DAMAGE} {folder}/{name}: {error}."
            event = remark(name, f"{text} It is left out.") if remarks else None
            if event is None:
                raise CorruptRunError(f"{text} Nothing was changed.") from None
            events.append(event)
    return events


def known_resumes(paths: RunPaths) -> int:
    """Return how often the run was resumed or another job followed its job, according to this machine's records."""
    return resume_count(read_events(paths, ("resumed", "final")))


def is_owned(paths: RunPaths) -> bool:
    """True if the run's latest supervisor was started on this machine, according to this machine's records."""
    return os.path.exists(paths.owner(known_resumes(paths)))


def is_uploaded(paths: RunPaths) -> bool:
    """True once everything that the run wrote here is in its bucket."""
    return os.path.exists(paths.uploaded(known_resumes(paths)))


def sweep(paths: RunPaths, tasks: Sequence[str]) -> None:
    with suppress(OSError), os.scandir(paths.events) as entries:
        for entry in entries:
            if entry.name.endswith(".part") and entry.name.split(".")[2] in tasks:
                os.unlink(entry.path)


def has_ended(paths: RunPaths) -> bool:
    finals = {name.split(".")[1] for name in _all_names(paths)[0] if name.endswith(".final.json")}
    # Other readers, which need more of the records, report damaged ones.
    with suppress(CorruptRunError):
        return bool(finals) and source_of("supervisor", known_resumes(paths)) in finals
    return bool(finals)


def _all_names(paths: RunPaths) -> tuple[list[str], Mapping[str, bytes]]:
    """Return the names of all records in order, and the records in a reserve with their bytes."""
    if not os.path.isdir(paths.events):
        raise CorruptRunError(f"The run directory {paths.url!r} is damaged: its records (events/) are missing.")
    reserved = dict(reserve.read(paths.reserves))
    return sorted({*posix.list_names(paths.events), *reserved}), reserved


def read_file(path: str) -> bytes:
    """Return the bytes of a small file. Does not block on a named pipe in its place."""
    # Not `posix.opened`: a listing reads 100,000 of them.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{path!r} is not a file")
        # One call reads nearly every file, because it requests one byte more than the file has.
        parts = [os.read(handle, info.st_size + 1)]
        while parts[-1] and len(parts[0]) != info.st_size:
            parts.append(os.read(handle, 1 << 20))
        return b"".join(parts)
    finally:
        os.close(handle)


def reports_metrics(tasks: Sequence[str]) -> list[str]:
    """Return the tasks that report the numbers of the run: the first one, and an evaluator."""
    return [*tasks[:1], *(task for task in tasks if cluster.role_of(task) == "evaluator")]


def metrics_of(paths: RunPaths, attempt: int, tasks: Sequence[str]) -> list[MetricRecord]:
    """Return the metric records of an attempt, in the order in which they were reported. They must not be changed."""
    first, *others = [read_metrics(paths.metrics(attempt, task)) for task in reports_metrics(tasks)]
    # The clock of a single task may go back; its records have their order.
    return sorted([*first, *chain.from_iterable(others)], key=lambda record: record["time"]) if any(others) else first


def _read_numbers(path: str) -> tuple[int, ...] | None:
    try:
        return PROGRESS.unpack_from(Path(path).read_bytes())
    except (OSError, struct.error):
        return None


def read_account(path: str) -> TaskAccount | None:
    """Return the time account of a task, from its progress file; None if it has no account."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return None
    steps, _ = read_progress(path)
    return unpacked(data[PROGRESS.size :], steps)


def accounts_of(paths: RunPaths, events: Sequence[Event], task: str) -> dict[int, TaskAccount]:
    """Return the accounts of a task by attempt: from the records, and from files for attempts without such a record."""
    numbers = {event.attempt for event in events if event.attempt}
    files = {number: read_account(paths.progress(number, task)) for number in numbers}
    return {**{number: account for number, account in files.items() if account is not None}, **recorded(events, task)}


def accounts(paths: RunPaths, attempt: int, tasks: Sequence[str]) -> dict[str, TaskAccount]:
    """Return the accounts of the tasks of an attempt with files on this machine."""
    by_task = {task: read_account(paths.progress(attempt, task)) for task in tasks}
    return {task: account for task, account in by_task.items() if account is not None}


def read_progress(path: str) -> tuple[int, int]:
    """Return a task's training steps and beats so far, 0 if it reported none."""
    step, beats, *_ = _read_numbers(path) or (0, 0)
    return step, beats


def read_position(path: str) -> Progress | None:
    step, _, epoch, epochs, epoch_step, epoch_steps = _read_numbers(path) or (0, 0, 0, 0, 0, 0)
    # A loop may beat without counting steps.
    if not step and not epoch:
        return None
    if not epoch:
        return Progress(step=step)
    return Progress(
        step=step, epoch=epoch, epochs=epochs or None, epoch_step=epoch_step, epoch_steps=epoch_steps or None
    )


def position(paths: RunPaths, task: str) -> Progress | None:
    """Return the progress of a task in the latest attempt, if its files are on this machine."""
    attempt = last_attempt(paths)
    return read_position(paths.progress(attempt, task)) if attempt else None


def live_account(paths: RunPaths, task: str) -> LiveAccount | None:
    """Return the account of a task in the latest attempt, if its files are on this machine."""
    attempt = last_attempt(paths)
    account = read_account(paths.progress(attempt, task)) if attempt else None
    return None if account is None else LiveAccount(attempt=attempt, account=account)


def last_attempt(paths: RunPaths) -> int:
    """Return the number of the latest attempt with files on this machine, 0 if there is none."""
    names = posix.list_names(os.path.dirname(paths.attempt(1)))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def last_step(paths: RunPaths, attempt: int, task: str) -> int | None:
    """Return how many training steps a task did in an attempt, or None if it reported none."""
    return read_progress(paths.progress(attempt, task))[0] or None
