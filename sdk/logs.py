"""podlift's messages: the logger `podlift`, one child for each room, and one handler in each process that podlift starts.

In a client's process these are ordinary loggers, and the program that imports podlift configures them. A task is different:
its log must hold each of podlift's lines once, whatever the program does to `logging` (`basicConfig(force=True)`,
`dictConfig`, `logging.disable`, absl's and Keras's handlers). After `start`, records go to podlift's own handler, and never to
the root's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_NAME = "podlift"
MARKED = "podlift: %(message)s"
PLAIN = "%(message)s"
DATED = "%(asctime)s %(message)s"

# The handler of this process, once it has one.
_own: list[logging.Handler] = []


class PodliftLogger(logging.Logger):
    """A logger that, once `start` was called, no configuration of `logging` can silence or send to the root."""

    def isEnabledFor(self, level: int) -> bool:
        return level >= logging.INFO if _own else super().isEnabledFor(level)

    def handle(self, record: logging.LogRecord) -> None:
        if not _own:
            super().handle(record)
            return
        for handler in (*_own, *logging.getLogger(_NAME).handlers):
            handler.handle(record)


class _LineWriter(logging.Handler):
    """Writes each record to the process's own output, with one system call and without a lock.

    A signal's handler may thus log at any instant. The descriptors are copies: a program may redirect or close its streams.
    """

    def __init__(self, message: str, *, errors_apart: bool) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(message, "%Y-%m-%d %H:%M:%S"))
        self._errors = _copy_of(2)
        self._others = _copy_of(1) if errors_apart else self._errors

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        fd, file = self._errors if record.levelno >= logging.ERROR else self._others
        with suppress(Exception):  # the disk may be full, and a message must not end what it is about
            rest = f"{self.format(record)}\n".encode(errors="backslashreplace")
            # A program that closed all descriptors may have opened a file of its own under this number.
            while rest and os.path.samestat(os.fstat(fd), file):
                rest = rest[os.write(fd, rest) :]


def _copy_of(fd: int) -> tuple[int, os.stat_result]:
    try:
        copy = os.dup(fd)
    except OSError:  # the process was started without it
        copy = os.open(os.devnull, os.O_WRONLY)
    return copy, os.fstat(copy)


def logger(room: str) -> logging.Logger:
    """Return the logger of a room, such as `podlift.checkpoint`."""
    top = logging.getLogger(_NAME)
    if not top.handlers:
        # Without any handler, `logging` itself would print warnings in the process of a client.
        top.addHandler(logging.NullHandler())
    named = logging.getLogger(f"{_NAME}.{room}")
    named.__class__ = PodliftLogger
    return named


def start(message: str = MARKED, *, errors_apart: bool = False) -> None:
    """Print the messages of this process from now on: to its standard error, or with `errors_apart` only the errors there."""
    _own[:] = [_LineWriter(message, errors_apart=errors_apart)]


def keep(path: str) -> None:
    """Write the messages of this process also to a file, with their times."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(DATED))
    _own.append(handler)


@contextmanager
def heard(call: Callable[[str], object], room: str = "") -> Iterator[None]:
    """Call `call` with the text of each message of a room, or of all rooms, inside this context."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            call(record.getMessage())

    listened, listener = logging.getLogger(f"{_NAME}.{room}" if room else _NAME), Listener()
    level = listened.level
    listened.addHandler(listener)
    listened.setLevel(logging.INFO)
    try:
        yield
    finally:
        listened.removeHandler(listener)
        listened.setLevel(level)
