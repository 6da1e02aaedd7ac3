"""What a gate has found about a version, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..model_registry.evidence import Evidence
from ..model_registry.models import ModelVersion
from ..model_registry.records import shown_time
from ..text import clipped

_WIDEST = 32
_HOLDS = {True: "holds", False: "fails", None: "unknown"}


def outcome(version: ModelVersion) -> str:
    """Return what the gate has decided last, "-" if none has evaluated the version."""
    found = version.evidence()
    return found[-1].outcome if found else "-"


def lines(version: ModelVersion, *, asks: bool) -> Iterator[tuple[str, str]]:
    """Yield what the last evaluation has found and decided, as (label, text)."""
    found = version.evidence()
    if not found:
        return
    last = found[-1]
    yield "gate", f"{last.outcome}: {last.reason}"
    if asks:
        yield "next", f"podlift models promote {last.model} {last.number} --as-compared"
    against = f"version {last.champion}, the champion" if last.champion else "no champion"
    yield "compared", f"with {against}, by {last.gate.evaluate} at the end of the run, {shown_time(last.time)}"
    yield "on", f"{last.gate.data}: {last.data.location} {last.data.digest or last.data.problem}"
    for guard in last.guards:
        yield "guard", f"{_HOLDS[guard.holds]}: {guard}"
    yield from (("", text) for text in _table(last))
    if len(found) > 1:
        yield "earlier", "; ".join(f"{each.outcome} (champion {each.champion or 'none'})" for each in found[:-1])


def _table(evidence: Evidence) -> Iterator[str]:
    ours, theirs = evidence.metrics, evidence.champion_metrics
    names = sorted({*ours, *theirs})
    if not names:
        return
    others = [f"version {evidence.champion}", "difference"] if evidence.champion else []
    rows = [["", f"version {evidence.number}", *others]]
    for name in names:
        mine, other = ours.get(name), theirs.get(name)
        change = "-" if mine is None or other is None else f"{mine - other:+.4f}"
        rows.append([clipped(name, _WIDEST), *[_shown(ours, name), _shown(theirs, name), change][: len(rows[0]) - 1]])
    width = max(len(row[0]) for row in rows)
    for name, *numbers in rows:
        yield f"{name:<{width}} {' '.join(f'{each:>12}' for each in numbers)}"


def _shown(metrics: Mapping[str, float | None], name: str) -> str:
    value = metrics.get(name)
    return "-" if name not in metrics else "nan" if value is None else f"{value:.4f}"
