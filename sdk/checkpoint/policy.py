"""When to save, and which checkpoints to keep. Pure: steps, seconds and metrics in, decisions out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..job.policies import LONGEST_PACED_S, Checkpoints, metric_and_mode

# Of fits of the same variables, the newest ends are kept: this many, and more if they are small.
_LEAST_ENDS, _MOST_ENDS, _ENDS_BYTES = 16, 1000, 10_000_000_000
# The end of an epoch is saved if that takes at most 1/20 of the time.
_EPOCH_SHARE = 20
# A step replaces the memory of the state that a save still holds.
_REPLACED_PER_S = 2.5e9
# Saves with an automatic interval take this part of the training's time, or more where that would be too rare.
_PACED_SHARE = 0.01


def metric_of(policy: Checkpoints) -> tuple[str, str] | None:
    """Return the metric of `best` and its mode, "min" or "max"; the mode is guessed from the name if not given."""
    return None if policy.best is None else metric_and_mode(policy.best)


def due_by_steps(policy: Checkpoints, before: int, now: int) -> bool:
    """True if a multiple of `every_steps` lies in (before, now]; the same in all attempts."""
    return policy.every_steps is not None and now // policy.every_steps > before // policy.every_steps


def paced_s(cost_s: float, shortest_s: float) -> float:
    """Return the seconds from one save to the next where podlift chooses them, at `cost_s` of training per save."""
    return max(shortest_s, min(cost_s / _PACED_SHARE, LONGEST_PACED_S))


def due_by_epoch(policy: Checkpoints, seconds: float, cost_s: float) -> bool:
    """True if the end of this epoch is to be saved: `seconds` after the last save, at `cost_s` per save."""
    by_time = policy.every_steps is None and policy.seconds is not None
    return by_time and seconds >= _EPOCH_SHARE * cost_s


def training_cost_s(cpu_s: float, size: int) -> float:
    """Return the cost of a save to the training: the processor time of its threads, and the memory that a step replaces."""
    return cpu_s + size / _REPLACED_PER_S


class Waits:
    """How long the training waited for its state at the last two saves. The shorter time counts: a machine may have slept."""

    def __init__(self) -> None:
        self._last_two: deque[float] = deque(maxlen=2)

    def add(self, seconds: float) -> None:
        self._last_two.append(seconds)

    def prolong(self, seconds: float) -> None:
        """Add to the last wait."""
        self._last_two.append(self._last_two.pop() + seconds)

    def added_to(self, cost_s: float | None) -> float | None:
        """Return the cost of a save with this wait; None if it is not known yet."""
        return None if cost_s is None else cost_s + (min(self._last_two) if len(self._last_two) == 2 else 0.0)


def most_ends(size: int) -> int:
    """Return how many ends of fits of the same variables are kept, of `size` bytes each."""
    return max(_LEAST_ENDS, min(_MOST_ENDS, _ENDS_BYTES // max(size, 1)))


@dataclass(frozen=True, kw_only=True)
class Committed:
    """One checkpoint, as retention sees it."""

    key: str  # its commit
    metrics: Mapping[str, float] = field(default_factory=dict)
    ends: tuple[str, ...] = ()  # other commits that a restart from this one reads
    failure: bool = False  # saved after an exception
    damaged: bool = False  # in quarantine, or unreadable
    future: bool = False  # written by a newer podlift
    generation: str = ""  # of the commit
    data: tuple[str, ...] = ()  # keys of its objects


def best_of(commits: Sequence[Committed], policy: Checkpoints) -> str | None:
    """Return the key of the best checkpoint, the first of equals; a metric that is not finite never wins."""
    metric = metric_of(policy)
    if metric is None:
        return None
    name, mode = metric
    sign = 1 if mode == "min" else -1
    ranked = [
        (sign * commit.metrics[name], number)
        for number, commit in enumerate(commits)
        if not commit.damaged and math.isfinite(commit.metrics.get(name, math.nan))
    ]
    return commits[min(ranked)[1]].key if ranked else None


def retention(
    commits: Sequence[Committed], pins: Collection[str], policy: Checkpoints, restored: str | None = None
) -> tuple[str, ...]:
    """Return the keys of the checkpoints to remove, the oldest first.

    `commits` are all checkpoints, the oldest first; `restored` is the one that this attempt started from, until a newer one has
    been verified.
    """
    good = [commit for commit in commits if not commit.damaged]
    # A checkpoint of a failure does not count in keep_last, and stays while it is the newest.
    keys_to_keep = {commit.key for commit in [c for c in good if not c.failure][-policy.keep_last :]}
    keys_to_keep |= {commit.key for commit in good[-1:]}
    keys_to_keep |= {*pins, *([restored] if restored else []), *([best] if (best := best_of(commits, policy)) else [])}
    keys_to_keep |= {end for commit in commits if commit.key in keys_to_keep for end in commit.ends}
    # Damaged ones stay for inspection until every older one is removed.
    oldest = next((number for number, commit in enumerate(commits) if commit.key in keys_to_keep), 0)
    return tuple(
        commit.key
        for number, commit in enumerate(commits)
        if commit.key not in keys_to_keep and (not commit.damaged or number < oldest)
    )
