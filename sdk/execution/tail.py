"""Keeps the last output of a task in the run's directory, for when the service has deleted its logs.

The output goes through the agent, which copies it to the container's own. From time to time it uploads the new output as one
part, named by the number of bytes before it, and removes the oldest parts. A container that is killed without a warning
therefore leaves its output up to the last upload.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ..clock import Clock
from ..errors import AlreadyExistsError, MissingError
from ..job.layout import RunPaths
from ..process.line_pipe import LinePipe, end_of_lines
from ..records.sync.push import PeriodicAction, PeriodicThread
from ..runtime import secret_values
from ..storage.store import Store
from ..text import clipped, size
from ..tracebacks import last_error

TAIL_BYTES = 10_000_000
# Large output is uploaded in several parts, so that the oldest ones can be removed.
_PART_BYTES = 2_000_000
# At most one upload in this time, and no more than this rate on average.
_FIRST_S, _PERIOD_S, _BYTES_PER_S = 5.0, 30.0, 64 << 10
_CHECK_S = 1.0
# A reader of the container's output that takes nothing for this long does not come back.
_STALLED_S = 5.0
# Limits of the output in a failure without a traceback: lines, and characters of each.
_TAIL_LINES, _TAIL_CHARACTERS = 20, 600


class TailBuffer:
    """The output that is not uploaded yet, of which only the last `TAIL_BYTES` are kept."""

    def __init__(self, begin: int = 0, whole: Sequence[bytes] = ()) -> None:
        self._whole = whole
        self._lock = threading.Lock()
        self._chunks: deque[bytes] = deque()
        self._begin = self._end = begin  # positions of the kept bytes in the whole output
        self._dropped = 0

    def add(self, data: bytes) -> None:
        with self._lock:
            self._chunks.append(data)
            self._end += len(data)
            while self._end - self._begin - len(self._chunks[0]) >= TAIL_BYTES:
                gone = len(self._chunks.popleft())
                self._begin, self._dropped = self._begin + gone, self._dropped + gone

    def take(self, *, last: bool) -> tuple[int, bytes, int]:
        """Return the position and the bytes of all complete lines, and how many bytes before them were dropped."""
        with self._lock:
            data, begin, dropped = b"".join(self._chunks), self._begin, self._dropped
            if dropped:
                # The first line is incomplete. A piece of a line is still better than nothing.
                cut = data.find(b"\n") + 1
                data, begin, dropped = data[cut:], begin + cut, dropped + cut
            end = len(data) if last else end_of_lines(data, self._whole)
            if not end:
                return begin, b"", 0
            self._chunks = deque([data[end:]] if data[end:] else [])
            self._begin, self._dropped = begin + end, 0
            return begin, data[:end], dropped


class LogFile:
    """The whole output of a task of one attempt, in a file that is uploaded as it grows; without `hidden` words."""

    def __init__(self, path: str, hidden: Sequence[str]) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._path, self._hidden = path, secret_values.encoded(hidden)
        self._lines = TailBuffer(whole=self._hidden)
        self._lock = threading.Lock()

    @property
    def buffer(self) -> LogFile:
        return self

    def start(self) -> None:
        """Do nothing: it is uploaded with the records."""

    def add(self, data: bytes) -> None:
        self._lines.add(data)
        self._write(last=False)

    def finish(self, within_s: float) -> None:
        """Write an unfinished last line, too."""
        self._write(last=True)

    def _write(self, *, last: bool) -> None:
        with self._lock:
            data = secret_values.hidden_bytes(self._lines.take(last=last)[1], self._hidden)
            if data:
                with open(self._path, "ab", buffering=0) as file:
                    file.write(data)


class TailUploader:
    """Uploads the tail of one task of one attempt, without `hidden`, which are words of `secret_values`."""

    def __init__(self, store: Store, key: str, clock: Clock, hidden: Sequence[str], *, continued: bool = False) -> None:
        # Another container may have uploaded output of the same task and attempt.
        self._hidden = secret_values.encoded(hidden)
        self.buffer = TailBuffer(end_of_parts(store, key) if continued else 0, self._hidden)
        self._store, self._key, self._clock = store, key, clock
        self._parts: deque[tuple[str, int]] = deque()
        # Not uploaded yet, because the bucket could not be reached.
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._due = clock.monotonic() + _FIRST_S
        self._lock = threading.Lock()
        # Not the thread that uploads records, which must not wait for this.
        self._thread = PeriodicThread([PeriodicAction(_CHECK_S, "upload of the last output", self.push_if_due)], clock)

    def start(self) -> None:
        self._thread.start()

    def push_if_due(self) -> None:
        if self._clock.monotonic() >= self._due:
            self.push()

    def finish(self, within_s: float) -> None:
        """Upload the rest, at most for so long; StoreError if that fails."""
        self._store.set_deadline(within_s)
        if self._thread.is_alive():
            self._thread.stop(within_s)
        self.push(last=True)

    def push(self, *, last: bool = False) -> None:
        """Upload all complete lines; `last`: no more output follows."""
        with self._lock:
            # First, so that a bucket which refuses removals does not fill up.
            self._trim()
            begin, data, dropped = self.buffer.take(last=last)
            note = f"podlift: {size(dropped)} of output before this line are not kept\n" if dropped else ""
            self._due = self._clock.monotonic() + max(_PERIOD_S, len(data) / _BYTES_PER_S)
            for piece in _pieces(secret_values.hidden_bytes(data, self._hidden), _PART_BYTES):
                self._waiting.append((RunPaths.part(self._key, begin), note.encode() + piece))
                begin, note = begin + len(piece), ""
            while sum(len(data) for _, data in self._waiting) > TAIL_BYTES + _PART_BYTES:
                self._waiting.popleft()
            while self._waiting:
                key, data = self._waiting[0]
                # A repeated request, after its first answer was lost.
                with suppress(AlreadyExistsError):
                    self._store.put_new(key, [data])
                self._parts.append((key, len(data)))
                self._waiting.popleft()
            self._trim()

    def _trim(self) -> None:
        while self._parts and sum(size for _, size in self._parts) - self._parts[0][1] >= TAIL_BYTES:
            with suppress(MissingError):
                self._store.delete(self._parts[0][0])
            self._parts.popleft()


def end_of_parts(store: Store, key: str) -> int:
    """Return how many bytes the parts of an output cover, the removed ones included; each begins at its name's number."""
    ends = [int(stat.key.rpartition("/")[2].partition(".")[0]) + stat.size for stat in store.list(f"{key}/")]
    return max(ends, default=0)


def _pieces(data: bytes, most: int) -> list[bytes]:
    """Split at ends of lines where there are any, into parts of at most this size."""
    pieces = []
    while len(data) > most:
        end = data.rfind(b"\n", 0, most) + 1 or most
        pieces.append(data[:end])
        data = data[end:]
    return [*pieces, data] if data else pieces


class CopiedOutput:
    """Two named pipes. Their content is copied line by line to this process's stdout and stderr, and to `add`.

    The agent may write messages of its own to the same streams. `secrets` are hidden, and `never_stored`, which include them,
    in the last lines and errors, because records have these.
    """

    def __init__(
        self,
        add: Callable[[bytes], None],
        folder: str,
        secrets: Sequence[str] = (),
        never_stored: Sequence[str] = (),
    ) -> None:
        self._add, self._secrets = add, secret_values.encoded(secrets)
        self._never_stored = secret_values.encoded(never_stored or secrets)
        self._written, self.last_error = 0, ""
        self.last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._readers = {1: True, 2: True}
        self._pipes = [
            LinePipe(os.path.join(folder, name), partial(self._emit, target), self._never_stored)
            for target, name in ((1, "stdout"), (2, "stderr"))
        ]

    @property
    def paths(self) -> list[str]:
        """The pipes for the task's stdout and stderr."""
        return [pipe.path for pipe in self._pipes]

    @property
    def count(self) -> int:
        """The bytes so far."""
        return sum(pipe.count for pipe in self._pipes)

    def start(self) -> None:
        """Begin to copy, once the task has opened its ends."""
        for pipe in self._pipes:
            pipe.release()
            pipe.start()

    def finish(self, within_s: float) -> None:
        """Copy the rest while its reader takes it, at most for so long. All processes of the task have ended."""
        until = time.monotonic() + within_s
        for pipe in self._pipes:
            before = -1
            while pipe.is_open and self._moved > before and (left_s := until - time.monotonic()) > 0:
                before = self._moved
                pipe.join(min(_STALLED_S, left_s))

    @property
    def _moved(self) -> int:
        return self.count + self._written

    def _emit(self, target: int, data: bytes) -> None:
        """Keep and write this. A lost reader of the container's output must not affect the task."""
        data = secret_values.hidden_bytes(data, self._secrets)
        text = secret_values.hidden_bytes(data, self._never_stored).decode(errors="replace")
        self.last_error = last_error(text) or self.last_error
        # Of a bar that is drawn again in its line, the last state.
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\n").split("\n")[-_TAIL_LINES:]]
        self.last_lines.extend(clipped(line, _TAIL_CHARACTERS) for line in lines)
        self._add(data)
        # The kernel lets no other writer in between.
        for piece in _pieces(data, select.PIPE_BUF):
            while self._readers[target] and piece:
                try:
                    count = os.write(target, piece)
                except OSError:
                    self._readers[target] = False
                else:
                    piece = piece[count:]
                    self._written += count
