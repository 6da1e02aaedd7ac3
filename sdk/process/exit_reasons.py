"""What ended a process, in words: exit codes without a traceback, signals, and the kernel's out-of-memory killer.

The kernel ends a process by SIGKILL when memory runs out, as anybody else can. It counts such deaths, for each control group
and for the machine, and names the process in its log: whoever has looked before and looks again can often tell.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

from ..status import Reason
from .spawn import cpu_s

_SHELL_SIGNAL = 128
# TensorFlow misses heartbeats after some 10 s; a machine under load may stand still for a few.
_PAUSE_S = 5.0
_KILLED = re.compile(rb"[Kk]ill(?:ed)? process (\d+)\b")
_RECORD_BYTES = 8192
_KNOWN = frozenset(signal.Signals)

_SENTENCES: dict[int, str] = {
    signal.SIGSEGV: "native code touched memory that is not its own",
    signal.SIGBUS: "memory that was mapped is gone: a full disk or /dev/shm, or a file that has shrunk",
    signal.SIGILL: "native code holds an instruction that this processor does not have",
    signal.SIGFPE: "native code has divided an integer by zero",
    signal.SIGABRT: "native code gave up, and its last lines say why; TensorFlow does so too when a peer is gone",
    signal.SIGXCPU: "it has used up the CPU time that it may have (ulimit -t)",
    signal.SIGXFSZ: "it has written a larger file than it may (ulimit -f)",
}


class OutOfMemory(Enum):
    """Whether the kernel's out-of-memory killer has ended a process."""

    YES = "the kernel was out of memory, or its control group was at its limit"
    PERHAPS = "podlift did not send it; the kernel's out-of-memory killer has ended a process on this machine meanwhile"
    NO = "podlift did not send it, and the kernel's out-of-memory killer was not at work: another process did"
    UNKNOWN = "podlift did not send it; the kernel's out-of-memory killer does that, and this system does not say"


class MemoryWatch:
    """Tells what the kernel's out-of-memory killer has done since this was made: make it before the tasks start.

    Args:
        proc: where the kernel says how it is.
        log: where it says what it does; most systems let root only read it.
    """

    def __init__(self, proc: str = "/proc", log: str = "/dev/kmsg") -> None:
        self._machine = f"{proc}/vmstat"
        self._group = _group_counter(proc)
        self._log = log
        self._began_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._before = self._counts()

    def ended(self, pid: int) -> OutOfMemory:
        """Say whether it has ended a process that died of SIGKILL.

        Args:
            pid: the process's number; it was a child of this one, in the same control group.
        """
        group, machine = (
            None if now is None or then is None else now - then
            for now, then in zip(self._counts(), self._before, strict=True)
        )
        if group or self._is_named(pid):
            return OutOfMemory.YES
        if group == 0 or machine == 0:
            return OutOfMemory.NO
        return OutOfMemory.UNKNOWN if machine is None else OutOfMemory.PERHAPS

    def _counts(self) -> tuple[int | None, int | None]:
        return _count(self._group), _count(self._machine)

    def _is_named(self, pid: int) -> bool:
        """True where the kernel's log names it: by the number that it has outside of all containers."""
        with suppress(OSError, ValueError, IndexError):
            handle = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return any(pid == number for number in _named(handle, self._began_us))
            finally:
                os.close(handle)
        return False


def cpu_limit(pid: int) -> float | None:
    """Return the CPU time that a child that is over might use, in seconds, if it has used it up; else None.

    Args:
        pid: the child's number; it was not waited for yet.
    """
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_CPU)[1]
    except (OSError, AttributeError):  # not on this system
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    return float(hard) if hard != resource.RLIM_INFINITY and cpu_s(pid) >= hard - 0.5 else None


def describe(code: int, memory: OutOfMemory, cpu_limit_s: float | None = None) -> tuple[Reason, str]:
    """Return why a task failed that left no traceback, and a sentence that begins behind its name.

    Args:
        code: its exit code, or the negative number of the signal that ended it.
        memory: what the kernel says, for SIGKILL.
        cpu_limit_s: the CPU time that it might use, in seconds, if it has used it up; None if not.
    """
    if cpu_limit_s is not None and -code == signal.SIGKILL:
        limit = f"{_SENTENCES[signal.SIGXCPU].partition(' (')[0]}: {cpu_limit_s:g} s (ulimit -t)"
        return Reason.KILLED, f"was killed by SIGKILL: {limit}."
    if code >= 0:
        number = code - _SHELL_SIGNAL
        hint = f", as a shell says of what was killed by {_name(number)}" if number in _KNOWN else ""
        return Reason.USER_ERROR, f"ended with exit code {code} and no traceback{hint}."
    if -code == signal.SIGKILL:
        reason = Reason.OUT_OF_MEMORY if memory is OutOfMemory.YES else Reason.KILLED
        return reason, f"was killed by SIGKILL: {memory.value}."
    # Nobody of podlift sends it to a task that nobody has asked to end.
    reason = Reason.PREEMPTED if -code == signal.SIGTERM else Reason.KILLED
    return reason, f"was killed by {_name(-code)}: {_SENTENCES.get(-code, 'podlift did not send it')}."


def hint(kind: str, message: str) -> str:
    """Return which limit of this user an error of a program is about; "" for none."""
    if (kind == "BlockingIOError" and "[Errno 11]" in message) or "can't start new thread" in message:
        return "perhaps this user may start no more processes and threads (ulimit -u)"
    return "a process may open no more files (ulimit -n)" if "[Errno 24]" in message else ""


def of_lost_peers(said: str, *, left: Sequence[str], stopped: Sequence[str], paused_s: float) -> str:
    """Return the sentences for tasks that lost touch with each other.

    Args:
        said: the error of one of them.
        left: its peers that had ended before, without an error.
        stopped: tasks that are stopped now.
        paused_s: how long all of the run stood still, at most.
    """
    if left:
        why = f"{', '.join(left)} had ended before, with exit code 0: tasks that train together take the same number of steps."
    elif stopped:
        why = f"{', '.join(stopped)} was stopped (SIGSTOP, or a debugger) and sent no heartbeat."
    elif paused_s >= _PAUSE_S:
        why = f"The run stood still for {paused_s:.0f} s, as on a laptop that sleeps: no task sent a heartbeat."
    else:
        why = "A task sent no heartbeat for longer than TensorFlow waits: it was paused, too busy, or cut off."
    return f"The tasks lost touch with each other. {why} {said}"


def _name(number: int) -> str:
    return signal.Signals(number).name if number in _KNOWN else f"signal {number}"


def _named(handle: int, since_us: int) -> Iterator[int]:
    """Yield the processes that the kernel says it has killed; each call of read() returns one record of its log."""
    while True:
        try:
            record = os.read(handle, _RECORD_BYTES)
        except BlockingIOError:
            return  # that was the last one
        except BrokenPipeError:
            continue  # the oldest one was written over meanwhile
        if not record:
            return
        about, _, message = record.partition(b";")
        found = _KILLED.search(message)
        # Its clock is the monotonic one, but for some milliseconds.
        if found and int(about.split(b",")[2]) >= since_us - 1_000_000:
            yield int(found[1])


def _group_counter(proc: str) -> str | None:
    """Return the file that counts the deaths in this process's control group; None where there is none."""
    with suppress(OSError, ValueError, IndexError):
        groups = [line.split(":", 2) for line in Path(proc, "self/cgroup").read_text().splitlines()]
        for line in Path(proc, "self/mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            root, place = mount.split()[3:5]
            kind, _, options = source.split(" ", 2)
            for _, controllers, path in groups:
                second = kind == "cgroup2" and not controllers
                first = kind == "cgroup" and "memory" in controllers.split(",") and "memory" in options.split(",")
                inside = path.removeprefix(root) if root != "/" else path
                file = f"{place}/{inside.strip('/')}/{'memory.events' if second else 'memory.oom_control'}"
                if (first or second) and _count(file) is not None:
                    return file
    return None


def _count(file: str | None) -> int | None:
    with suppress(OSError, ValueError):
        for line in Path(file).read_text().splitlines() if file else ():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
