"""When to save, and what to keep. Pure: steps, seconds and metrics go in, decisions come out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import InputError

_MOST_FITS = 16
# At the end of an epoch a state is saved where saving takes at most one part in so many of the time.
_EPOCH_SHARE = 20
_HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "iou", "r2", "bleu")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The user's `Checkpoints`, as the core needs it.

    Args:
        every_steps: save each that many steps; None for never by steps.
        every_s: save each that many seconds; None for never by time. Without `every_steps`, ends of epochs are saved as well.
        keep_last: how many of the newest checkpoints are kept.
        best: also keep the best by this metric: "val_loss", "min:val_loss" or "max:val_accuracy".
        on_busy: what a save does while another one is going on: "skip" it, or "block" until that is over.
    """

    every_steps: int | None = None
    every_s: float | None = 300.0
    keep_last: int = 3
    best: str | None = None
    on_busy: Literal["skip", "block"] = "skip"

    def __post_init__(self) -> None:
        problems = []
        if self.every_steps is not None and self.every_steps < 1:
            problems.append(f"every_steps must be at least 1. Received: {self.every_steps!r}.")
        if self.every_s is not None and not self.every_s > 0:
            problems.append(f"every_s must be more than 0. Received: {self.every_s!r}.")
        if self.keep_last < 1:
            problems.append(f"keep_last must be at least 1. Received: {self.keep_last!r}.")
        if self.on_busy not in ("skip", "block"):
            problems.append(f'on_busy is "skip" or "block". Received: {self.on_busy!r}.')
        if self.best is not None and not self.best.removeprefix("min:").removeprefix("max:"):
            problems.append(f'best is the name of a metric, or "min:" or "max:" and a name. Received: {self.best!r}.')
        if problems:
            raise InputError(problems)

    @property
    def metric(self) -> tuple[str, str] | None:
        """The metric of `best` and its mode, "min" or "max"; guessed from the name where it is not given."""
        if self.best is None:
            return None
        mode, separator, name = self.best.partition(":")
        if separator and mode in ("min", "max"):
            return name, mode
        higher = any(part in self.best.lower() for part in _HIGHER_IS_BETTER)
        return self.best, "max" if higher else "min"

    def due_by_steps(self, before: int, now: int) -> bool:
        """True where a step at which to save lies in what was trained: a multiple, the same in all attempts.

        Args:
            before: steps that were over before.
            now: steps that are over now.
        """
        return self.every_steps is not None and now // self.every_steps > before // self.every_steps

    def due_by_time(self, seconds: float) -> bool:
        """True when the last save is so many seconds ago that it is time for another."""
        return self.every_s is not None and seconds >= self.every_s

    def due_by_epoch(self, seconds: float, cost_s: float) -> bool:
        """True where the end of this epoch is to be saved.

        Args:
            seconds: since the last save.
            cost_s: how long a save takes.
        """
        return self.every_steps is None and self.every_s is not None and seconds >= _EPOCH_SHARE * cost_s


@dataclass(frozen=True, kw_only=True)
class Committed:
    """One checkpoint, as retention sees it.

    Attributes:
        key: of its commit. Their order is the order of the checkpoints that is given, not of the names.
        metrics: of its manifest.
        keep: it is the end of a fit.
        failure: it was saved on the way out of an exception.
        damaged: it is in quarantine or cannot be read.
    """

    key: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    keep: bool = False
    failure: bool = False
    damaged: bool = False


def best_of(commits: Sequence[Committed], policy: Policy) -> str | None:
    """Return the key of the best checkpoint, the first of equals; what is not a finite number is never the best."""
    if policy.metric is None:
        return None
    name, mode = policy.metric
    sign = 1 if mode == "min" else -1
    ranked = [
        (sign * commit.metrics[name], number)
        for number, commit in enumerate(commits)
        if not commit.damaged and math.isfinite(commit.metrics.get(name, math.nan))
    ]
    return commits[min(ranked)[1]].key if ranked else None


def retention(
    commits: Sequence[Committed], pins: Collection[str], policy: Policy, restored: str | None = None
) -> tuple[str, ...]:
    """Return the keys of the checkpoints to remove, the oldest first.

    Args:
        commits: all there are, the oldest first.
        pins: keys that somebody has pinned.
        policy: how many to keep.
        restored: the one that this attempt began with, as long as nothing newer has been verified.
    """
    good = [commit for commit in commits if not commit.damaged]
    # What a failure has left takes no place of another, and stays while it is the newest.
    kept = {commit.key for commit in [c for c in good if not c.failure][-policy.keep_last :]}
    kept |= {commit.key for commit in good[-1:]}
    kept |= {commit.key for commit in [c for c in good if c.keep][-_MOST_FITS:]}
    kept |= {*pins, *([restored] if restored else []), *([best] if (best := best_of(commits, policy)) else [])}
    # What is damaged stays for whoever looks into it, until everything that was kept from its time is gone.
    oldest = next((number for number, commit in enumerate(commits) if commit.key in kept), 0)
    return tuple(
        commit.key
        for number, commit in enumerate(commits)
        if commit.key not in kept and (not commit.damaged or number < oldest)
    )
