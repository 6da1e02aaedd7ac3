"""When to save and what to keep. Pure: steps, seconds and metrics in, decisions out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import InputError

_MOST_FITS = 16
# The end of an epoch is saved if that takes at most 1/20 of the time.
_EPOCH_SHARE = 20
_HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "iou", "r2", "bleu")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The settings of `Checkpoints` that the core uses.

    Args:
        every_steps: save every N steps; None for never by steps.
        every_s: save every N seconds; None for never by time. Without `every_steps`, ends of epochs are saved as well.
        keep_last: how many of the newest checkpoints to keep.
        best: also keep the best by this metric: "val_loss", "min:val_loss" or "max:val_accuracy".
        on_busy: what a save does while another is in progress: "skip" it, or "block" until the other is done.
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
            problems.append(f'on_busy must be "skip" or "block". Received: {self.on_busy!r}.')
        if self.best is not None and not self.best.removeprefix("min:").removeprefix("max:"):
            problems.append(
                f'best must be the name of a metric, optionally after "min:" or "max:". Received: {self.best!r}.'
            )
        if problems:
            raise InputError(problems)

    @property
    def metric(self) -> tuple[str, str] | None:
        """The metric of `best` and its mode, "min" or "max"; guessed from the name if not given."""
        if self.best is None:
            return None
        mode, separator, name = self.best.partition(":")
        if separator and mode in ("min", "max"):
            return name, mode
        higher = any(part in self.best.lower() for part in _HIGHER_IS_BETTER)
        return self.best, "max" if higher else "min"

    def due_by_steps(self, before: int, now: int) -> bool:
        """True if a multiple of `every_steps` lies in (before, now]; the same in all attempts."""
        return self.every_steps is not None and now // self.every_steps > before // self.every_steps

    def due_by_time(self, seconds: float) -> bool:
        """True if the last save was at least `every_s` ago."""
        return self.every_s is not None and seconds >= self.every_s

    def due_by_epoch(self, seconds: float, cost_s: float) -> bool:
        """True if the end of this epoch is to be saved: `seconds` after the last save, at `cost_s` per save."""
        return self.every_steps is None and self.every_s is not None and seconds >= _EPOCH_SHARE * cost_s


@dataclass(frozen=True, kw_only=True)
class Committed:
    """One checkpoint, as retention sees it."""

    key: str  # its commit
    metrics: Mapping[str, float] = field(default_factory=dict)
    keep: bool = False  # the end of a fit
    failure: bool = False  # saved after an exception
    damaged: bool = False  # in quarantine, or unreadable


def best_of(commits: Sequence[Committed], policy: Policy) -> str | None:
    """Return the key of the best checkpoint, the first of equals; a metric that is not finite never wins."""
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

    `commits` are all checkpoints, the oldest first; `restored` is the one that this attempt started from, until a newer one has
    been verified.
    """
    good = [commit for commit in commits if not commit.damaged]
    # A checkpoint of a failure does not count in keep_last, and stays while it is the newest.
    kept = {commit.key for commit in [c for c in good if not c.failure][-policy.keep_last :]}
    kept |= {commit.key for commit in good[-1:]}
    kept |= {commit.key for commit in [c for c in good if c.keep][-_MOST_FITS:]}
    kept |= {*pins, *([restored] if restored else []), *([best] if (best := best_of(commits, policy)) else [])}
    # Damaged ones stay for inspection until every older one is removed.
    oldest = next((number for number, commit in enumerate(commits) if commit.key in kept), 0)
    return tuple(
        commit.key
        for number, commit in enumerate(commits)
        if commit.key not in kept and (not commit.damaged or number < oldest)
    )
