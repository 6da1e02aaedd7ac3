"""Finds out why a process ended without a traceback: limits of its user, lost peers, and the kernel's out-of-memory killer.

The kernel sends SIGKILL when memory runs out, but others may send it too. The kernel counts its kills per control group and per
machine. Comparing the counts before and after can often tell the cause.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from ..records.exits import OutOfMemory, signal_name
from .control_groups import counter, folders
from .spawn import cpu_s

_KILLS, _COUNTERS = "oom_kill", ("memory.events", "memory.oom_control")
# TensorFlow misses heartbeats after about 10 s. A machine under load may pause for a few seconds.
_PAUSE_S = 5.0

# How native code ends a process by itself. Others send these signals only to harm.
_CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


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


def crashed_at_exit(task: str, code: int, done: Collection[str], others: Iterable[str]) -> str:
    """Return a sentence if a task crashed only after its program had returned with 0, and no other is unfinished; else "".

    A task is in `done` once its last checkpoint is committed. A peer that is lost makes TensorFlow abort a task, too.
    """
    if -code not in _CRASHES or task not in done or not set(others) <= set(done):
        return ""
    return (
        f"{task} was killed by {signal_name(-code)} in its exit handlers, after its program had returned and the last "
        "checkpoint was committed: it counts as done."
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


def _group_counter(root: Path) -> Path:
    """Return the file that counts the kills in this process's control group; it is missing where there is none."""
    groups = (folder for folder in folders("memory", root) if (folder / "cgroup.procs").exists())
    # The counts of a group that contains it hold the kills of other processes.
    own = next(groups, root)
    return next((file for name in _COUNTERS if counter(file := own / name, _KILLS) is not None), root / "none")
