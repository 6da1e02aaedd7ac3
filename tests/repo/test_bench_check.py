"""`scripts/bench --check` fails on a ratio that is more than 10% worse, and only on one that stays so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import regressions
from benchmarks.regressions import Kept, Section, check, judge, keep, load


@pytest.mark.parametrize(
    ("before", "now", "worse"), [(1.0, 1.1, False), (1.0, 1.11, True), (0.15, 0.17, True), (0.0, 0.1, True)]
)
def test_more_than_a_tenth_is_worse(before: float, now: float, worse: bool) -> None:
    (verdict,) = judge({"start": before}, [{"start": now}])
    assert verdict.worse is worse
    assert str(verdict).endswith("worse") is worse
    assert f"{before:.3f} before, {now:.3f} now" in str(verdict)


def test_a_missing_measurement_or_record_is_reported_and_fails_nothing() -> None:
    verdicts = judge({"to Ray": 0.15}, [{"by hand": 0.9}])
    assert [str(each) for each in verdicts] == [
        "by hand: 0.900, none was kept before",
        "to Ray: not measured here, 0.150 before",
    ]
    assert not any(each.worse for each in verdicts)


@pytest.mark.parametrize(
    ("rounds", "needed", "worse"), [([2.0, 1.0, 1.05], 3, False), ([2.0, 1.0, 1.2], 3, True), ([1.2, 0.9], 2, False)]
)
def test_a_worse_ratio_is_measured_again_and_the_median_counts(rounds: list[float], needed: int, worse: bool) -> None:
    left = iter([*rounds, 1.0, 1.0])
    used = 0

    def measure() -> dict[str, float]:
        nonlocal used
        used += 1
        return {"start": next(left)}

    (verdict,) = check({"start": 1.0}, measure)
    assert (used, verdict.worse) == (needed, worse)


def test_ratios_are_kept_with_their_date_and_machine_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    assert load(file) == {}
    keep("start", {"to Ray": 0.15, "by hand": 0.8}, "2026-11-20, 2 cores", file)
    keep("start", {"by hand": 0.7}, "2026-11-21, 4 cores", file)
    keep("listing", {"all": 2.0}, "2026-11-21, 4 cores", file)
    assert load(file) == {
        "listing": {"all": Kept(2.0, "2026-11-21, 4 cores")},
        "start": {"by hand": Kept(0.7, "2026-11-21, 4 cores"), "to Ray": Kept(0.15, "2026-11-20, 2 cores")},
    }


def test_the_command_fails_names_the_ratio_and_says_before_and_now(tmp_path: Path, monkeypatch, capsys) -> None:
    class Fake:
        @staticmethod
        def run(count: int) -> Section:
            return Section([], {"to Ray": 0.3, "by hand": 0.8})

    monkeypatch.setattr(regressions, "load", lambda: {"start": {"to Ray": Kept(0.15, "2026-11-20, 2 cores")}})
    monkeypatch.setitem(bench.BENCHMARKS, "start", Fake)
    assert bench.check(["start"], 1) == 1
    said = capsys.readouterr().out
    assert "start: to Ray: 0.150 before, 0.300 now (+100%), worse (kept: 2026-11-20, 2 cores)" in said
    assert "start: by hand: 0.800, none was kept before" in said
    monkeypatch.setattr(Fake, "run", lambda count: Section([], {"to Ray": 0.14}))
    assert bench.check([], 1) == 0


def test_a_check_without_a_kept_ratio_says_how_to_record_it_and_compares_the_others(monkeypatch, capsys) -> None:
    class Fake:
        @staticmethod
        def run(count: int) -> Section:
            return Section([], {"to Ray": 0.3})

    monkeypatch.setattr(regressions, "load", lambda: {"start": {"to Ray": Kept(0.15, "2026-11-20, 2 cores")}})
    for name in ("start", "listing"):
        monkeypatch.setitem(bench.BENCHMARKS, name, Fake)
    assert bench.check(["listing"], 1) == 2
    said = capsys.readouterr().out
    assert "listing: there is nothing to compare with" in said
    assert (
        "scripts/bench listing on a quiet machine measures its ratios, records them in benchmarks/ratios.json" in said
    )
    assert "Ratios are kept of: start." in said
    assert bench.check(["kills"], 1) == 2
    assert "kills: there is nothing to compare, because it measures no ratio" in capsys.readouterr().out
    assert bench.check(["listing", "start"], 1) == 1
    assert "worse" in capsys.readouterr().out


def test_every_kept_ratio_belongs_to_a_benchmark_that_exists() -> None:
    data = json.loads(regressions.FILE.read_text())
    assert data and set(data) <= set(bench.BENCHMARKS)
    assert all(kept.ratio > 0 and kept.measured for found in load().values() for kept in found.values())
