"""The versions of a model as lists show them, from few requests. A damaged one has its reason, and hides no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..errors import CorruptObjectError
from ..storage.parallel import in_parallel
from ..storage.store import Stat, unchanged
from . import evidence
from .evidence import Evidence
from .models import Model, ModelVersion, read_version
from .records import VERSION_KEY, ChampionRecord

DAMAGED = "damaged"


@dataclass(frozen=True, kw_only=True)
class VersionRow:
    """One version."""

    number: int
    state: str  # champion, awaits approval, was champion, registered or damaged
    version: ModelVersion | None  # None if its record is damaged
    evaluations: Sequence[Evidence]  # by its gate, the oldest first, without damaged ones
    damage: Sequence[str]  # a sentence for each damaged record


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The versions of a model, the oldest first, and the moves of its champion; `left_out` counts older versions."""

    record: ChampionRecord
    rows: Sequence[VersionRow]
    left_out: int

    @property
    def awaiting(self) -> int:
        return sum(row.state == "awaits approval" for row in self.rows)

    @property
    def damage(self) -> list[str]:
        return [sentence for row in self.rows for sentence in row.damage]


def of(model: Model, newest: int | None = None) -> Listing:
    """Return the versions of a model, of many the `newest` ones; CorruptObjectError if its champion is unknown."""
    record = model.record()[0]
    listed = list(model.store.list(f"records/{model.name}/versions/"))
    versions = {int(match[2]): stat for stat in listed if (match := VERSION_KEY.fullmatch(stat.key))}
    evaluations = defaultdict[int, list[Stat]](list)
    for stat in model.store.list(evidence.key_of(model.name)):
        if number := evidence.number_in(stat.key):
            evaluations[number].append(stat)
    numbers = sorted(versions)[-newest if newest else 0 :]
    rows = in_parallel(lambda number: _row(model, record, versions[number], evaluations[number], number), numbers)
    return Listing(record=record, rows=[row for row in rows if row], left_out=len(versions) - len(numbers))


def _row(model: Model, record: ChampionRecord, stat: Stat, stats: Sequence[Stat], number: int) -> VersionRow | None:
    judged, damage, version = list[Evidence](), list[str](), None
    for each in stats:
        try:
            judged.append(unchanged(model.store, each, partial(evidence.read, model.store, each.key)))
        except CorruptObjectError as error:
            damage.append(str(error))
    try:
        version = ModelVersion(model, unchanged(model.store, stat, partial(read_version, model, number)))
    except CorruptObjectError as error:
        if number in model.record()[0].removed:
            return None
        damage.insert(0, str(error))
    judged.sort(key=evidence.by_time)
    state = DAMAGED if version is None else model.state(version, record, judged)
    # The damaged evaluation may be the newest, which decides.
    state = DAMAGED if damage and state in ("awaits approval", "registered") else state
    return VersionRow(number=number, state=state, version=version, evaluations=judged, damage=damage)
