"""Reads and writes the records of a run as files."""

from __future__ import annotations

import json
import os
import stat
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..clock import Clock
from ..errors import CorruptRunError
from ..spec.layout import RunPaths
from ..status import Progress
from ..storage import posix, reserve
from ..storage.reserve import Reserve
from .events import Event, parse, source_of, telling

# What a task notes with every step (runtime/progress.py): training steps, and signs of life: those and the batches of
# evaluate and predict; the epoch from 1, after which one fit ends, the steps of this epoch so far, and of an epoch. 0 is none.
PROGRESS = struct.Struct("<QQQQQQ")
# An earlier podlift noted two.
_TWO = struct.Struct("<QQ")
# They say how a task or a run ended.
_ENDS = ("failed", "final")


class Recorder:
    """Writes one source's records of one attempt. Make one for each source and attempt: it alone counts them.

    Args:
        paths: the run.
        source: "client", "supervisor" or a task's name.
        attempt: 0 before the first attempt.
        clock: what time it is.
        reserve: takes what the disk does not; None for a process that fails without it.
    """

    def __init__(
        self, paths: RunPaths, source: str, attempt: int, clock: Clock, reserve: Reserve | None = None
    ) -> None:
        self._reserve = reserve
        self._paths = paths
        self._source = source
        self._attempt = attempt
        self._clock = clock
        self._count = 0
        # Checkpoints are acknowledged in a thread of their own.
        self._lock = threading.Lock()

    def record(self, kind: str, **data: Any) -> None:
        """Create the next record.

        Raises:
            OSError: the disk does not take it, and there is no room in the reserve.
        """
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


def read_events(paths: RunPaths, kinds: tuple[str, ...] | None = None) -> list[Event]:
    """Return the records of a run.

    Args:
        paths: the run.
        kinds: only these are read; None for all.

    Raises:
        CorruptRunError: they are gone, or a file among them is damaged or not ours.
    """
    names, reserved = _names(paths), dict(reserve.read(paths.reserves))
    wanted = sorted({*names, *reserved})
    if kinds is not None:
        ends = tuple(f".{kind}.json" for kind in kinds)
        wanted = [name for name in wanted if name.endswith(ends)]
    return _parsed(paths, wanted, reserved)


def read_telling(paths: RunPaths) -> list[Event]:
    """Return the records that a status follows from: a run of many attempts has many more.

    Raises:
        CorruptRunError: they are gone, or a file among them is damaged or not ours.
    """
    names, reserved = _names(paths), dict(reserve.read(paths.reserves))
    return _parsed(paths, telling(sorted({*names, *reserved})), reserved)


def _parsed(paths: RunPaths, names: Sequence[str], reserved: Mapping[str, bytes]) -> list[Event]:
    try:
        return [
            parse(name, reserved[name] if name in reserved else read_file(f"{paths.events}/{name}")) for name in names
        ]
    except (ValueError, OSError, RecursionError) as error:
        raise CorruptRunError(f"The run directory {paths.url!r} is damaged: {error}. Nothing was changed.") from None


def sweep(paths: RunPaths, tasks: Sequence[str]) -> None:
    """Remove the halves of records that tasks have left which were killed while they wrote them.

    Args:
        paths: the run.
        tasks: names of tasks that are gone.
    """
    with suppress(OSError), os.scandir(paths.events) as entries:
        for entry in entries:
            if entry.name.endswith(".part") and entry.name.split(".")[2] in tasks:
                os.unlink(entry.path)


def has_ended(paths: RunPaths) -> bool:
    """True once the run's final record is there.

    Raises:
        CorruptRunError: the records are gone.
    """
    names = [*_names(paths), *(name for name, _ in reserve.read(paths.reserves))]
    supervisor = source_of("supervisor", sum(name.endswith(".resumed.json") for name in names))
    return any(name.endswith(".final.json") and name.split(".")[1] == supervisor for name in names)


def _names(paths: RunPaths) -> list[str]:
    if not os.path.isdir(paths.events):
        raise CorruptRunError(f"The run directory {paths.url!r} is damaged: its records, events/, are gone.")
    return posix.list_names(paths.events)


def read_file(path: str) -> bytes:
    """Return the bytes of a small file.

    Raises:
        OSError: it cannot be read, or is no file: a named pipe in its place would be waited for.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{path!r} is no file")
        # One call reads nearly every file whole, and a second one says that this was all.
        parts = [os.read(handle, info.st_size + 1)]
        while parts[-1]:
            parts.append(os.read(handle, 1 << 20))
        return b"".join(parts)
    finally:
        os.close(handle)


def read_metrics(path: str) -> list[dict[str, Any]]:
    """Return the metric records of one task; a last line that is still being written is left for later."""
    try:
        lines = Path(path).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CorruptRunError(f"The metrics file {path!r} cannot be read: {error}.") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record["metrics"], dict):
                raise TypeError("no metrics")
            found.append(record)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CorruptRunError(f"The metrics file {path!r} is damaged in line {number}: {error}.") from None
    return found


def read_progress(path: str) -> tuple[int, int] | None:
    """Return a task's training steps and signs of life so far; None where it has noted none."""
    try:
        steps, beats = _TWO.unpack_from(Path(path).read_bytes())
    except (OSError, struct.error):
        return None
    return steps, beats


def read_position(path: str) -> Progress | None:
    """Return how far a task says it is; None where it has noted nothing."""
    try:
        data = Path(path).read_bytes()
        step, _, epoch, epochs, epoch_step, epoch_steps = PROGRESS.unpack(data.ljust(PROGRESS.size, b"\0"))
    except (OSError, struct.error):
        return None
    # A loop may show signs of life and count no steps.
    if not step and not epoch:
        return None
    if not epoch:
        return Progress(step=step)
    return Progress(
        step=step, epoch=epoch, epochs=epochs or None, epoch_step=epoch_step, epoch_steps=epoch_steps or None
    )


def position(paths: RunPaths, task: str) -> Progress | None:
    """Return how far a task of the last attempt is, where its files lie here."""
    attempts = [name for name in posix.list_names(os.path.dirname(paths.attempt(1))) if name.isdigit()]
    return read_position(paths.progress(int(max(attempts)), task)) if attempts else None


def last_step(paths: RunPaths, attempt: int, task: str) -> int | None:
    """Return how many training steps a task has done in an attempt; None where it has reported none."""
    steps = (read_progress(paths.progress(attempt, task)) or (0, 0))[0]
    return steps or None
