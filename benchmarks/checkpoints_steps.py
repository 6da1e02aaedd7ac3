"""What the saves of a training have cost it, from the times of its steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Training:
    """The saves of one training.

    Attributes:
        stalls_s: from the end of a saved step to the beginning of the next, in seconds, one of each save.
        step_s: a step while nothing is saved, in the median.
        saving: a step while something is saved to one while nothing is, on average; nan where no step is.
        lost_s: training time that a save costs: its stall, and what the steps up to the next one take longer.
        cpu_s: CPU that a save costs.
        done_s: from the end of the step until the checkpoint has its name.
        memory: how much the peak of the memory grows by saving, in sizes of the state.
        late: saves that were not seen to be over when the next one was due.
    """

    stalls_s: Sequence[float]
    step_s: float
    saving: float
    lost_s: float
    cpu_s: float
    done_s: float
    memory: float
    late: int = 0


def training(found: Any, every: int) -> Training:
    """Return what `saving_fit` has found; the steps before the first save have warmed up."""
    steps = found["steps"]
    cycles = [range(first, min(first + every - 1, len(steps))) for first in range(every, len(steps), every)]
    done = [_done(found, steps, cycle) for cycle in cycles]
    busy = [_taken(steps[i]) for c, until in zip(cycles, done, strict=True) for i in c if steps[i]["begun"] < until]
    # The first step behind a save pays for it even where the save is over.
    calm = [
        _taken(steps[i]) for c, until in zip(cycles, done, strict=True) for i in c[1:] if steps[i]["begun"] >= until
    ]
    if not calm:
        raise RuntimeError(f"In every step something was saved: {every} steps from one save to the next are too few.")
    step_s = statistics.median(calm)
    cpu_s = statistics.median(steps[i + 1]["cpu"] - steps[i]["cpu"] for c in cycles for i in c[-3:-1])
    stalls = [steps[c[0]]["entered"] - steps[c[0] - 1]["ended"] for c in cycles]
    spans = list(zip(cycles, stalls, done, strict=True))
    memory = found["memory"]
    return Training(
        stalls_s=stalls,
        step_s=step_s,
        saving=statistics.mean(busy) / step_s if busy else float("nan"),
        lost_s=statistics.mean(stall + sum(_taken(steps[i]) - step_s for i in c) for c, stall, _ in spans),
        cpu_s=statistics.mean(steps[c[-1]]["cpu"] - steps[c[0] - 1]["cpu"] - len(c) * cpu_s for c in cycles),
        done_s=statistics.median(until - steps[c[0] - 1]["ended"] for c, _, until in spans),
        memory=(memory["saving"] - memory["plain"]) / memory["state"],
        late=sum(until == steps[c[-1]]["ended"] for c, _, until in spans[:-1]),
    )


def _taken(step: Any) -> float:
    return float(step["ended"] - step["begun"])


def _done(found: Any, steps: Any, cycle: range) -> float:
    """Return when the save before these steps was over; where that was not seen, it went on to their end."""
    if not found["background"]:
        return float(steps[cycle[0]]["entered"])
    since, until = steps[cycle[0] - 1]["ended"], steps[cycle[-1]]["ended"]
    return float(next((when for when in found["seen"] if since < when <= until), until))


def p99(values: Sequence[float]) -> float:
    """Return the value that one of a hundred exceeds; the largest of fewer than a hundred."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
