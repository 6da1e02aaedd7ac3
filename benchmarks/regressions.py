"""The last ratio of each comparison, kept in ratios.json, and whether new ones are worse.

A ratio compares podlift with something else in the same minutes: the smaller, the better. It needs no quiet machine of the
same kind, which a number of seconds would.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path(__file__).with_name("ratios.json")
# Worse by more than this share fails.
LIMIT = 0.10
# How often what seems worse is measured in all before it is judged: the median counts.
TRIES = 3


@dataclass(frozen=True)
class Section:
    """What a benchmark found: the lines of its section, and its ratios by name."""

    lines: list[str]
    ratios: Mapping[str, float]


@dataclass(frozen=True)
class Kept:
    """The last ratio of one comparison."""

    ratio: float
    measured: str  # the date and the machine


@dataclass(frozen=True)
class Verdict:
    """One ratio beside the one that was kept."""

    name: str
    now: float | None  # None if it was not measured
    before: float | None  # None if none was kept

    @property
    def worse(self) -> bool:
        return self.now is not None and self.before is not None and self.now > self.before * (1 + LIMIT)

    def __str__(self) -> str:
        if self.now is None:
            return f"{self.name}: not measured here, {self.before:.3f} before"
        if self.before is None:
            return f"{self.name}: {self.now:.3f}, none was kept before"
        change = f"{self.now / self.before - 1:+.0%}" if self.before else "was 0"
        return f"{self.name}: {self.before:.3f} before, {self.now:.3f} now ({change}){', worse' if self.worse else ''}"


def judge(before: Mapping[str, float], rounds: Sequence[Mapping[str, float]]) -> list[Verdict]:
    """Compare the medians of some measurements with what was kept, by name."""
    names = sorted({*before, *(name for found in rounds for name in found)})
    found = {name: [each[name] for each in rounds if name in each] for name in names}
    return [Verdict(name, statistics.median(found[name]) if found[name] else None, before.get(name)) for name in names]


def check(before: Mapping[str, float], measure: Callable[[], Mapping[str, float]]) -> list[Verdict]:
    """Measure, and again as long as something seems worse; return what the medians say."""
    rounds: list[Mapping[str, float]] = []
    for _ in range(TRIES):
        rounds.append(measure())
        verdicts = judge(before, rounds)
        if not any(verdict.worse for verdict in verdicts):
            break
    return verdicts


def load(file: Path = FILE) -> dict[str, dict[str, Kept]]:
    """Return the ratios that were kept, by benchmark and name."""
    if not file.exists():
        return {}
    data = json.loads(file.read_text())
    return {key: {name: Kept(**kept) for name, kept in ratios.items()} for key, ratios in data.items()}


def keep(benchmark: str, ratios: Mapping[str, float], measured: str, file: Path = FILE) -> None:
    """Keep the ratios of one benchmark; those that were not measured this time stay."""
    kept = load(file)
    kept[benchmark] = {**kept.get(benchmark, {}), **{name: Kept(round(r, 4), measured) for name, r in ratios.items()}}
    data = {key: {name: asdict(each) for name, each in sorted(kept[key].items())} for key in sorted(kept)}
    file.write_text(json.dumps(data, indent=1) + "\n")
