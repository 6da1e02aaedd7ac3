"""A named pipe as the output of a task: a thread of this process takes it line by line.

Unbuffered Python writes a line in several pieces. A secret must not pass in two pieces, and no other output may come between.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

# A line that is longer is cut.
LINE_BYTES = 1 << 20
_READ_BYTES = 64 << 10


class LinePipe:
    """The pipe at `path`. Each call of `take` gets complete lines; the last one need not be complete.

    A line that is too long is cut, but never inside one of the words `whole`.
    """

    def __init__(self, path: str, take: Callable[[bytes], None], whole: Sequence[bytes] = ()) -> None:
        self.path, self._take, self._whole = path, take, whole
        self.count = 0  # of bytes so far
        # The pipe of an earlier process of this attempt.
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        self._source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # Without a writer, the pipe would be at its end.
        self._writer: int | None = os.open(path, os.O_WRONLY)
        os.set_blocking(self._source, True)
        self._thread = threading.Thread(target=self._copy, name="podlift-output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def release(self) -> None:
        """Let the pipe end with the last process that writes to it."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def join(self, within_s: float) -> None:
        """Take the rest, at most for so long. Call it once all writers have ended."""
        self.release()
        if self.is_open:
            self._thread.join(within_s)

    def _copy(self) -> None:
        line = b""
        while data := os.read(self._source, _READ_BYTES):
            line += data
            self.count += len(data)
            if end := end_of_lines(line, self._whole):
                self._take(line[:end])
                line = line[end:]
        if line:
            self._take(line)
        os.close(self._source)


def end_of_lines(data: bytes, whole: Sequence[bytes] = ()) -> int:
    """Return the length of all complete lines; of a line that is too long, of as much as ends inside no word of `whole`."""
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if end or len(data) <= LINE_BYTES:
        return end
    # A word may also have begun without its rest.
    end = len(data) + 1 - max(map(len, whole), default=1)
    while cut := [
        at for word in whole if (at := data.find(word, max(0, end + 1 - len(word)), end - 1 + len(word))) >= 0
    ]:
        end = min(cut)
    return end
