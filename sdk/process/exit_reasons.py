"""Explains the end of a process: exit codes without a traceback, signals, and the kernel's out-of-memory killer.

The kernel sends SIGKILL when memory runs out, but others may send it too. The kernel counts its kills per control group and per
machine. Comparing the counts before and after can often tell the cause.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from pathlib import Path

from ..status import Reason
from .control_groups import counter, folders
from .spawn import cpu_s

_SHELL_SIGNAL = 128
_KILLS = "oom_kill"
# TensorFlow misses heartbeats after about 10 s. A machine under load may pause for a few seconds.
_PAUSE_S = 5.0
_KNOWN = frozenset(signal.Signals)

_SENTENCES: dict[int, str] = {
    signal.SIGSEGV: "native code accessed invalid memory",
    signal.SIGBUS: "mapped memory is gone: a full disk or /dev/shm, or a truncated file",
    signal.SIGILL: "native code contains an instruction that this processor does not support",
    signal.SIGFPE: "native code divided an integer by zero",
    signal.SIGABRT: "native code aborted; its last lines say why, and TensorFlow also aborts if a peer is gone",
    signal.SIGXCPU: "it used up its CPU time limit (ulimit -t)",
    signal.SIGXFSZ: "it exceeded the file size limit (ulimit -f)",
}


# How native code ends a process by itself. Others send these signals only to harm.
_CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


class OutOfMemory(Enum):
    """Whether the kernel's out-of-memory killer ended a process."""

    YES = "the machine or its control group was out of memory"
    PERHAPS = (
        "podlift did not send it, and the kernel's out-of-memory killer ended a process on this machine at that time"
    )
    NO = "neither podlift nor the kernel's out-of-memory killer sent it, so another process did"
    UNKNOWN = (
        "podlift did not send it; perhaps the kernel's out-of-memory killer did, which this system does not report"
    )


class MemoryWatch:
    """Detects kills by the kernel's out-of-memory killer since its creation. Create it before the tasks start."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._machine = root / "proc/vmstat"
        self._group = _group_counter(root)
        self._before = self._counts()

    def ended(self) -> OutOfMemory:
        """Return whether it killed a former child, which died of SIGKILL."""
        group, machine = (
            None if now is None or then is None else now - then
            for now, then in zip(self._counts(), self._before, strict=True)
        )
        if group:
            return OutOfMemory.YES
        if group == 0 or machine == 0:
            return OutOfMemory.NO
        return OutOfMemory.UNKNOWN if machine is None else OutOfMemory.PERHAPS

    def _counts(self) -> tuple[int | None, int | None]:
        return counter(self._group, _KILLS), counter(self._machine, _KILLS)


def cpu_limit(pid: int) -> float | None:
    """Return the CPU time limit of an exited child in seconds, if it was used up. The child must not be reaped yet."""
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_CPU)[1]
    except (OSError, AttributeError):  # not on this system
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    return float(hard) if hard != resource.RLIM_INFINITY and cpu_s(pid) >= hard - 0.5 else None


def describe(code: int, memory: OutOfMemory, cpu_limit_s: float | None = None) -> tuple[Reason, str]:
    """Return why a task without a traceback failed, and a sentence to follow its name.

    `code` is its exit code, or the negative number of the signal that killed it.
    """
    if cpu_limit_s is not None and -code == signal.SIGKILL:
        limit = f"{_SENTENCES[signal.SIGXCPU].partition(' (')[0]}: {cpu_limit_s:g} s (ulimit -t)"
        return Reason.KILLED, f"was killed by SIGKILL: {limit}."
    if code >= 0:
        number = code - _SHELL_SIGNAL
        hint = f", which is how a shell reports a process killed by {_name(number)}" if number in _KNOWN else ""
        return Reason.USER_ERROR, f"ended with exit code {code} and no traceback{hint}."
    if -code == signal.SIGKILL:
        reason = Reason.OUT_OF_MEMORY if memory is OutOfMemory.YES else Reason.KILLED
        return reason, f"was killed by SIGKILL: {memory.value}."
    # podlift sends SIGTERM only to tasks that were requested to stop.
    reason = Reason.PREEMPTED if -code == signal.SIGTERM else Reason.KILLED
    return reason, f"was killed by {_name(-code)}: {_SENTENCES.get(-code, 'podlift did not send it')}."


def crashed_at_exit(task: str, code: int, done: Collection[str], others: Iterable[str]) -> str:
    """Return a sentence if a task crashed only after its program had returned with 0, and no other is unfinished; else "".

    A task is in `done` once its last checkpoint is committed. A peer that is lost makes TensorFlow abort a task, too.
    """
    if -code not in _CRASHES or task not in done or not set(others) <= set(done):
        return ""
    return (
        f"{task} was killed by {_name(-code)} in its exit handlers, after its program had returned and the last checkpoint was "
        "committed: it counts as done."
    )


def hint(kind: str, message: str) -> str:
    """Return which limit of this user an error is about, or ""."""
    if (kind == "BlockingIOError" and "[Errno 11]" in message) or "can't start new thread" in message:
        return "this user may have reached the limit of processes and threads (ulimit -u)"
    return "the process reached its limit of open files (ulimit -n)" if "[Errno 24]" in message else ""


def lost_peers_message(error: str, *, stopped: Sequence[str], paused_s: float) -> str:
    """Explain why tasks lost contact with each other although none had ended.

    `error` is the error of one of them, `stopped` are tasks that are suspended now, and `paused_s` is the longest time for
    which the whole run was suspended.
    """
    if stopped:
        why = f"{', '.join(stopped)} was suspended (SIGSTOP or a debugger) and sent no heartbeats."
    elif paused_s >= _PAUSE_S:
        why = f"The run was suspended for {paused_s:.0f} s, as on a sleeping laptop, and no task sent heartbeats."
    else:
        why = "A task sent no heartbeats for longer than TensorFlow waits: it was paused, too busy, or disconnected."
    return f"The tasks lost contact with each other. {why} {error}"


def _name(number: int) -> str:
    return signal.Signals(number).name if number in _KNOWN else f"signal {number}"


def _group_counter(root: Path) -> Path:
    """Return the file that counts the kills in this process's control group; it is missing where there is none."""
    files = (folder / name for folder in folders("memory", root) for name in ("memory.events", "memory.oom_control"))
    return next((file for file in files if counter(file, _KILLS) is not None), root / "none")
