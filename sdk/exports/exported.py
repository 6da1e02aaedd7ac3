"""The exported facts about a run, as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .. import ids
from ..checkpoint import catalog
from ..checkpoint.catalog import CheckpointInfo
from ..errors import InputError
from ..job.layout import RunPaths
from ..job.plan import Plan
from ..records.metric_file import MetricRecord
from ..status import State, Status

_HIDDEN = "not exported: it may hold credentials"


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """The metrics that were reported at one time."""

    number: int  # its place among all points of the run, from 0; a run only gets more of them
    step: int  # the training step; the number, if none was reported
    time: float  # unix time
    metrics: Mapping[str, float]  # each may be infinite or NaN


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A run as trackers know runs."""

    id: str
    label: str  # the part of the id that the user chose
    url: str
    params: Mapping[str, object]  # arguments of the program, and resources under "podlift."
    tags: Mapping[str, str]  # state, reason, URL and checkpoints under "podlift."; labels of its job
    points: Sequence[MetricPoint]
    final: Mapping[str, float]  # the last value of each metric
    state: State
    created: float  # unix time of the submit
    ended: float | None  # None while it is going


class Exportable(Protocol):
    """The properties of a run that an export needs: `Run` has them."""

    plan: Plan

    @property
    def id(self) -> str: ...
    @property
    def url(self) -> str: ...
    def status(self) -> Status: ...
    def metric_records(self) -> list[MetricRecord]: ...
    def checkpoints(self, best: str | None = None) -> Sequence[CheckpointInfo]: ...


def read(run: Exportable) -> ExportedRun:
    """Return a run as it is now."""
    plan, status = run.plan, run.status()
    points = _points(run.metric_records(), status.created)
    final: dict[str, float] = {}
    for point in points:
        final.update(point.metrics)
    return ExportedRun(
        id=run.id,
        label=ids.name_of(run.id),
        url=run.url,
        params=_params(plan),
        tags=_tags(run, status),
        points=points,
        final=final,
        state=status.state,
        created=status.created,
        ended=status.since if status.state.terminal else None,
    )


def _points(records: Iterable[MetricRecord], created: float) -> list[MetricPoint]:
    points: list[MetricPoint] = []
    for record in records:
        metrics = {name: value for name, raw in record["metrics"].items() if (value := _number(raw)) is not None}
        step, time = record.get("step"), record.get("time")
        if metrics:
            number = len(points)
            points.append(
                MetricPoint(
                    number=number,
                    step=number if step is None else int(step),
                    time=created if time is None else float(time),
                    metrics=metrics,
                )
            )
    return points


def _number(value: object) -> float | None:
    if value is None:
        # JSON has no NaN and no infinity: podlift records both as null.
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _params(plan: Plan) -> dict[str, object]:
    resources, args = plan.job.resources, plan.job.args
    if args and "args" in plan.job.code.allow_secret:
        args = {"args": _HIDDEN}
    given: Mapping[str, object] = args if isinstance(args, dict) else {"args": json.dumps(args)} if args else {}
    own = {
        "entry": plan.job.entry,
        "backend": plan.backend,
        "accelerator": resources.accelerator,
        "workers": resources.workers,
        "ps": resources.ps,
        "evaluator": resources.evaluator,
        "bundle": plan.code.digest,
    }
    return {**given, **{f"podlift.{name}": value for name, value in own.items()}}


def _tags(run: Exportable, status: Status) -> dict[str, str]:
    tags = {
        "podlift.id": run.id,
        "podlift.url": run.url,
        "podlift.state": status.state.value,
        "podlift.reason": status.reason.value,
        "podlift.attempts": str(status.attempts),
    }
    if status.failure is not None:
        tags["podlift.failure"] = status.failure.message
    labels = getattr(run.plan.target, "labels", {})
    return {**tags, **_checkpoints(run), **{f"label.{name}": str(value) for name, value in labels.items()}}


def _checkpoints(run: Exportable) -> dict[str, str]:
    usable = [entry for entry in run.checkpoints() if entry.quarantined is None]
    store, best = RunPaths(run.url).store, run.plan.job.checkpoints.best
    tags = {"podlift.last_checkpoint": f"{store}/{usable[-1].key}"} if usable else {}
    if usable and best is not None:
        try:
            first = catalog.best_first(usable, best)[0]
        except InputError:
            # None of them has the metric yet.
            return tags
        tags["podlift.best_checkpoint"] = f"{store}/{first.key}"
    return tags
