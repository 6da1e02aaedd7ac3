"""Describes the end of a process without a traceback in words, by its exit code or its signal. Pure."""

from __future__ import annotations

import signal
from enum import Enum

from ..status import Reason

_SHELL_SIGNAL = 128
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


def describe(code: int, memory: OutOfMemory, cpu_limit_s: float | None = None) -> tuple[Reason, str]:
    """Return why a task without a traceback failed, and a sentence to follow its name.

    `code` is its exit code, or the negative number of the signal that killed it.
    """
    if cpu_limit_s is not None and -code == signal.SIGKILL:
        limit = f"{_SENTENCES[signal.SIGXCPU].partition(' (')[0]}: {cpu_limit_s:g} s (ulimit -t)"
        return Reason.KILLED, f"was killed by SIGKILL: {limit}."
    if code >= 0:
        number = code - _SHELL_SIGNAL
        hint = f", which is how a shell reports a process killed by {signal_name(number)}" if number in _KNOWN else ""
        return Reason.USER_ERROR, f"ended with exit code {code} and no traceback{hint}."
    if -code == signal.SIGKILL:
        reason = Reason.OUT_OF_MEMORY if memory is OutOfMemory.YES else Reason.KILLED
        return reason, f"was killed by SIGKILL: {memory.value}."
    # podlift sends SIGTERM only to tasks that were requested to stop.
    reason = Reason.PREEMPTED if -code == signal.SIGTERM else Reason.KILLED
    return reason, f"was killed by {signal_name(-code)}: {_SENTENCES.get(-code, 'podlift did not send it')}."


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in _KNOWN else f"signal {number}"
