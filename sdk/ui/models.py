"""Registered models as the page shows them: the champion, the curve of the versions, and the comparison of the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .. import ids
from ..errors import InputError
from ..job.policies import metric_and_mode
from ..model_registry import listing
from ..model_registry.evidence import Evidence
from ..model_registry.listing import VersionRow
from ..model_registry.models import Model, ModelVersion
from ..model_registry.records import Move, VersionRecord
from ..records.summaries import main_metric
from ..text import clipped

# Versions that a page lists, the newest ones.
_VERSIONS = 200
_LONGEST_NOTE = 300
_WORDS = {"promote": "promoted", "keep": "kept the champion", "ask": "asks for an approval"}


@dataclass(frozen=True, kw_only=True)
class VersionView:
    """One version.

    Args:
        state: champion, awaits approval, was champion or registered.
        value: its value of the model's metric: from its evaluation by the gate, else from its run.
        schedule: the schedule that has started its run, "" for none.
    """

    record: VersionRecord
    state: str
    value: float | None
    schedule: str
    evidence: Evidence | None = None

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def decision(self) -> str:
        """Decision of the gate in words; "" without one."""
        return _WORDS[self.evidence.outcome] if self.evidence else ""


@dataclass(frozen=True, kw_only=True)
class GateLine:
    """One line of the table of a gate: a metric of the champion and of the challenger, or a guard."""

    name: str
    champion: float | None
    challenger: float | None
    decides: bool = False  # it is the metric of the gate

    @property
    def difference(self) -> float | None:
        return None if self.champion is None or self.challenger is None else self.challenger - self.champion


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The values of the versions as an SVG: its points, and the numbers at its axes."""

    points: list[tuple[float, float, VersionView]]
    low: float
    high: float
    width: int = 720
    height: int = 150

    @property
    def line(self) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in self.points)


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """One model. `versions` are the newest ones, the oldest first; `left_out` counts the others."""

    name: str
    metric: str = ""
    mode: str = "max"
    champion: int = 0
    previous: int = 0  # the version that a rollback returns to, 0 for none
    versions: list[VersionView] = field(default_factory=list)
    left_out: int = 0
    moves: Sequence[Move] = ()
    problems: list[str] = field(default_factory=list)

    @property
    def best(self) -> VersionView | None:
        """The view of the champion."""
        return next((version for version in self.versions if version.number == self.champion), None)

    @property
    def awaiting(self) -> list[VersionView]:
        return [version for version in self.versions if version.state == "awaits approval"]

    @property
    def compared(self) -> VersionView | None:
        """The version in the comparison of the page: one that awaits an approval, else the newest; both with an evaluation."""
        judged = [version for version in self.versions[::-1] if version.evidence]
        return next((version for version in judged if version in self.awaiting), next(iter(judged), None))

    def gate(self) -> list[GateLine]:
        """Return the metrics of that comparison, the metric of the gate first."""
        evidence = self.compared.evidence if self.compared else None
        if evidence is None:
            return []
        ours, theirs, decides = evidence.metrics, evidence.champion_metrics, evidence.gate.measured
        names = sorted({*ours, *theirs}, key=lambda name: (name != decides, name))
        return [
            GateLine(name=name, champion=theirs.get(name), challenger=ours.get(name), decides=name == decides)
            for name in names
        ]

    def curve(self) -> Curve | None:
        """Return the curve of the metric over the versions; None for fewer than two values."""
        version_values = [(version, version.value) for version in self.versions if version.value is not None]
        if len(version_values) < 2:
            return None
        values = [value for _, value in version_values]
        low, high, shape = min(values), max(values), Curve(points=[], low=min(values), high=max(values))
        tall, wide = (high - low) or 1.0, shape.width / (len(version_values) - 1)
        points = [
            (at * wide, shape.height * (1 - ((value - low) / tall if high > low else 0.5)), version)
            for at, (version, value) in enumerate(version_values)
        ]
        return Curve(points=points, low=low, high=high)


def look(model: Model, *, brief: bool = False) -> ModelView:
    """Return the view of a model. With `brief`, parts that only its own page shows are empty."""
    version_list = listing.of(model, _VERSIONS)
    metric, mode = _metric(version_list.rows)
    versions = [
        VersionView(
            record=row.version.record,
            state=row.state,
            value=_value(row, row.version, metric),
            schedule=ids.schedule_of(row.version.record.run),
            evidence=row.evaluations[-1] if row.evaluations else None,
        )
        for row in version_list.rows
        if row.version
    ]
    return ModelView(
        name=model.name,
        metric=metric,
        mode=mode,
        champion=version_list.record.champion,
        previous=next(iter(version_list.record.predecessors[::-1]), 0),
        versions=versions,
        left_out=version_list.left_out,
        moves=() if brief else version_list.record.moves[::-1],
        problems=version_list.damage,
    )


def _metric(rows: Sequence[VersionRow]) -> tuple[str, str]:
    """Return the metric that compares the versions, and whether more or less of it is better."""
    gate = next((row.evaluations[-1].gate for row in rows[::-1] if row.evaluations), None)
    if gate is not None:
        return gate.measured, gate.mode
    versions = [row.version for row in rows if row.version]
    metric = main_metric(versions[-1].metrics if versions else {})
    return metric, metric_and_mode(metric)[1] if metric else "max"


def _value(row: VersionRow, version: ModelVersion, metric: str) -> float | None:
    judged = row.evaluations[-1].metrics.get(metric) if row.evaluations else None
    return version.metrics.get(metric) if judged is None else judged


def act(model: Model, form: Mapping[str, str]) -> None:
    """Promote a version, or roll back, as a form asks for.

    Raises:
        PodliftError: the form asks for neither, or the registry refuses.
    """
    note, expected = clipped(form.get("note", "").strip(), _LONGEST_NOTE), form.get("expect", "")
    if not expected.isdecimal():
        raise InputError(
            f"The form names no champion. Received: {clipped(expected, 100)!r}. Next: load the page again."
        )
    if form.get("do") == "promote":
        # Of two people who look at the same page, the second one is refused.
        model.promote(form.get("version", ""), expect=int(expected), note=note)
    elif form.get("do") == "rollback":
        model.rollback(expect=int(expected), note=note)
    else:
        raise InputError(f"Unknown action. Received: {clipped(form.get('do', ''), 100)!r}.")
