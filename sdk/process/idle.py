"""Tells when the GPUs of a run stand idle. The supervisor watches those of all tasks, and the agent of a container its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..clock import Clock
from ..job import cluster
from ..records.recorder import Recorder
from ..status import Failure
from ..text import compact_duration
from .machine import Gpus

# NVML tells the share of the last second only: each verdict has several readings.
_READINGS, _LONGEST_S = 12, 5.0
# A desktop draws its windows with less.
_UNUSED = 0.01
UNREADABLE = "limit_idle_accelerator: NVML cannot tell here whether the GPUs are used, so idle ones do not end the run."


class IdleWatch:
    """Adds up the time for which no GPU of some tasks was used, against a limit; None to watch nothing."""

    def __init__(self, limit_s: float | None, gpus: Gpus, recorder: Recorder, clock: Clock) -> None:
        self._limit_s, self._gpus, self._recorder, self._clock = limit_s, gpus, recorder, clock
        self._idle_s, self._read = 0.0, clock.monotonic()
        self._unreadable = False

    def is_idle(self, visible: Callable[[], Iterable[str | None]]) -> bool:
        """Return whether the GPUs were idle for the limit; `visible` returns CUDA_VISIBLE_DEVICES of each running task."""
        if self._limit_s is None:
            return False
        now, every_s = self._clock.monotonic(), min(self._limit_s / _READINGS, _LONGEST_S)
        if now - self._read >= every_s:
            # Time during which this process was suspended says nothing about the GPUs.
            passed, self._read = min(now - self._read, 2 * every_s), now
            self._add(passed, list(visible()))
        return self._idle_s >= self._limit_s

    @property
    def failure(self) -> Failure:
        limit = compact_duration(self._limit_s or 0.0)
        message = f"The accelerator stood idle: no GPU of the run was used for {limit} (limit_idle_accelerator)."
        return Failure(task="", message=message)

    def _add(self, passed_s: float, tasks: list[str | None]) -> None:
        uses = [gpu.use for each in tasks for gpu in self._gpus.read(each)]
        unused = bool(uses) and max(uses) <= _UNUSED
        self._idle_s = self._idle_s + passed_s if unused else 0.0
        if tasks and not uses and not self._unreadable:
            self._unreadable = True
            self._recorder.record("finding", text=UNREADABLE)


def watched(tasks: Iterable[str]) -> list[str]:
    """Return the tasks whose GPUs the training uses: parameter servers have none, and an evaluator waits most of the time."""
    return [task for task in tasks if cluster.role_of(task) not in ("ps", "evaluator")]
