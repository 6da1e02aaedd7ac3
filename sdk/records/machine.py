"""The machine use of a run's tasks: one file of samples for each task, which grows slower the longer it is.

The first sample comes after two seconds, then one every ten seconds of the first hour. After each 360 samples the time between
two of them doubles, so that a week has 3,000 samples. A podlift version without these files ignores them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from ..job.layout import RunPaths
from ..job.wire import decode, parsed
from .recorder import last_attempt

FIRST_S, SAMPLE_S, _PER_INTERVAL = 2.0, 10.0, 360


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    use: float  # from 0 to 1
    memory_bytes: int
    memory_limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class MachineSample:
    """The use of a machine by one task since the previous sample. `network` counts all processes of its machine."""

    time: float  # unix time
    cpu_cores: float
    memory_bytes: int
    memory_limit_bytes: int | None
    disk_read_bytes_s: float
    disk_write_bytes_s: float
    network_received_bytes_s: float
    network_sent_bytes_s: float
    gpus: tuple[GpuUse, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MachineUse:
    """The samples of one task in one attempt: curves for a page, the last one and the averages for a line of text."""

    task: str
    attempt: int
    samples: tuple[MachineSample, ...]

    @property
    def last(self) -> MachineSample:
        return self.samples[-1]

    @property
    def mean_cpu_cores(self) -> float:
        return self.mean([sample.cpu_cores for sample in self.samples])

    @property
    def peak_memory_bytes(self) -> int:
        return max(sample.memory_bytes for sample in self.samples)

    @property
    def mean_gpu_use(self) -> float | None:
        uses = [
            sum(gpu.use for gpu in sample.gpus) / len(sample.gpus) if sample.gpus else None for sample in self.samples
        ]
        return None if set(uses) == {None} else self.mean(uses)

    def mean(self, values: Sequence[float | None]) -> float:
        """Return the mean over the time: each sample stands for the time since the previous one, which grows with the run."""
        times = [self.samples[0].time - FIRST_S, *(sample.time for sample in self.samples)]
        # A clock that was set back gives no negative time.
        pairs = [(value, max(end - begin, 1e-3)) for value, (begin, end) in zip(values, pairwise(times), strict=True)]
        weighted = [(value, weight) for value, weight in pairs if value is not None]
        return sum(value * weight for value, weight in weighted) / sum(weight for _, weight in weighted)


def machine_use(paths: RunPaths, task: str, attempt: int | None = None) -> MachineUse | None:
    """Return the machine use of a task in an attempt, by default the last one; None if there are no samples here.

    Lines that cannot be read are left out: the curve of a machine is never a reason to refuse a run.
    """
    number = last_attempt(paths) if attempt is None else attempt
    samples: list[MachineSample] = []
    with suppress(OSError):
        for line in Path(paths.machine(number, task)).read_bytes().splitlines():
            with suppress(ValueError, TypeError):
                samples.append(_read(line))
    return MachineUse(task=task, attempt=number, samples=tuple(samples)) if samples else None


def write(path: str, sample: MachineSample) -> None:
    """Add a sample; a full disk is no reason to fail, and the sample is lost."""
    with suppress(OSError):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("ab") as file:
            file.write(json.dumps(asdict(sample), separators=(",", ":")).encode() + b"\n")


def interval_s(written: int) -> float:
    """Return the seconds until the next sample, once this many were written."""
    return FIRST_S if not written else float(SAMPLE_S * 2 ** (written // _PER_INTERVAL))


def _read(line: bytes) -> MachineSample:
    sample = decode(MachineSample, parsed(line))
    if not all(math.isfinite(value) for value in vars(sample).values() if isinstance(value, float)):
        raise ValueError("a number that is none")
    return sample
