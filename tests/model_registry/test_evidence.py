"""The evidence of a gate lies beside the version: written once, shown, and named by an approval."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import sdk
from sdk.cli import app
from sdk.errors import CorruptObjectError, InputError
from sdk.model_registry import evidence, listing
from sdk.model_registry.decision import Evaluation, decide
from sdk.model_registry.evidence import Evidence
from sdk.model_registry.models import Model, ModelVersion
from sdk.model_registry.records import VersionData

BAND = {"min_gain": "0.01", "ask_below": "0.05"}
GATE = sdk.Gate(evaluate="quality:measure", data="test", metric="accuracy", guards=["loss <= champion * 1.5"], **BAND)
DATA = VersionData(location="/data/test", digest="d" * 64)


@pytest.fixture
def show(model: Model, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def run(*words: str) -> list[str]:
        assert app.run(["models", *words, "--root", model.root]) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture(params=["folder"])
def root(root: str) -> str:
    return root


@pytest.fixture(autouse=True)
def three_versions(model: Model, add: Callable[..., ModelVersion]) -> None:
    """The first one is the champion."""
    add(), add(), add()
    model.promote(1)


@pytest.fixture
def evaluated(model: Model) -> Callable[..., Evidence]:
    def evaluation(found: dict | str) -> Evaluation:
        return Evaluation(problem=found) if isinstance(found, str) else Evaluation(metrics=found)

    def write(number: int, mine: dict, theirs: dict | str | None, *, champion=1, time=2000.0, data=DATA) -> Evidence:
        challenger, other = evaluation(mine), None if theirs is None else evaluation(theirs)
        about = model.version(number).record
        made = evidence.of(decide(GATE, challenger, other), about, champion, GATE, data, time, challenger, other)
        return evidence.write(model.store, made)

    return write


def test_a_damaged_version_or_evidence_hides_no_other(model, evaluated, show, capsys) -> None:
    judged = evaluated(3, {"accuracy": 0.93, "loss": 1.0}, {"accuracy": 0.9, "loss": 1.0})
    Model(model.root, "broken").store.put_new("records/broken/versions/000001.json", [b"no"])
    versions, of_version_3 = Path(model.root, "models/records/digits/versions"), evidence.key_of("digits", 3, judged.id)
    for path in (versions / "000002.json", Path(model.root, "models", of_version_3)):
        path.write_bytes(b"no")
    assert [line.split()[:4] for line in show("list")] == [["broken", "-", "1", "1"], ["digits", "1", "3", "3"]]
    assert app.run(["models", "status", "digits", "--root", model.root]) == 3
    shown = capsys.readouterr()
    assert [line.split()[1] for line in shown.out.splitlines()] == ["champion", "damaged", "damaged"]
    assert "version 2: The record of version 2 of 'digits' is damaged: " in shown.err and "000002.json" in shown.err
    assert "version 3: The evidence of a gate cannot be read: " in shown.err and of_version_3 in shown.err
    assert [len(each["damage"]) for each in json.loads(show("list", "--json")[0])] == [1, 2]
    assert app.run(["models", "status", "digits", "3", "--root", model.root]) == 3
    shown = capsys.readouterr()
    assert "run        digits-" in shown.out and of_version_3 in shown.err
    assert app.run(["diff", "digits:1", "digits:3", "--root", model.root]) in (0, 1)
    shown = capsys.readouterr()
    assert "in training" not in shown.out and "version 3" in shown.out and of_version_3 in shown.err


def test_evidence_comes_back_whole_and_a_repeated_evaluation_finds_the_first(model: Model, evaluated) -> None:
    first = evaluated(2, {"accuracy": 0.93, "loss": math.nan}, {"accuracy": 0.9, "loss": 1.0})
    assert (first.outcome, first.champion, first.metrics["loss"]) == ("keep", 1, None)
    again = evaluated(2, {"accuracy": 0.99, "loss": 0.5}, {"accuracy": 0.9, "loss": 1.0}, time=3000.0)
    assert again == first, "an evaluation that was interrupted and is repeated changes nothing"
    assert model.version(2).evidence() == [first]
    assert evidence.find(model.store, "digits", 2, evidence.evidence_id(2, 1, GATE, DATA)) == first
    assert evidence.find(model.store, "digits", 2, evidence.evidence_id(2, 3, GATE, DATA)) is None
    assert model.version(3).evidence() == []


def test_numbers_of_other_data_are_not_compared_and_other_objects_are_no_evidence(model: Model, evaluated) -> None:
    model.store.put_new("records/digits/evidence/notes.txt", [b"not ours"])
    evaluated(2, {"accuracy": 0.93}, {"accuracy": 0.9})
    evaluated(3, {"accuracy": 0.95}, {"accuracy": 0.9}, data=replace(DATA, digest="e" * 64))
    assert model.diff(2, 3).measured == {}
    evaluated(3, {"accuracy": 0.96}, {"accuracy": 0.9}, time=3000.0)
    assert model.diff(2, 3).measured == {"accuracy": (0.93, 0.96)}
    found = listing.of(model, newest=2)
    assert ([row.version.number for row in found.rows], found.left_out, found.damage) == ([2, 3], 1, [])
    assert listing.of(model).damage == []


def test_a_gate_that_asks_is_answered_by_an_approval_of_that_very_comparison(model: Model, evaluated) -> None:
    for number in (2, 3):
        assert evaluated(number, {"accuracy": 0.93, "loss": 1.0}, {"accuracy": 0.9, "loss": 1.0}).outcome == "ask"
    assert [model.state(each) for each in model.versions()] == ["champion", "awaits approval", "awaits approval"]
    assert model.promote(3, as_compared=True, note="seen").number == 3
    move = model.history()[-1]
    assert (move.cause, move.before, move.champion) == ("promote", 1, 3)
    assert model.state(model.version(2)) == "registered", "the question was about another champion"
    with pytest.raises(InputError, match=r"Expected: version 1. It is version 3"):
        model.promote(2, as_compared=True)


def test_the_newest_evidence_counts(model: Model, evaluated) -> None:
    evaluated(2, {"accuracy": 0.93, "loss": 1.0}, "it does not load", time=2000.0)
    assert model.state(model.version(2)) == "awaits approval"
    model.promote(3)
    evaluated(2, {"accuracy": 0.5, "loss": 1.0}, {"accuracy": 0.9, "loss": 1.0}, champion=3, time=3000.0)
    assert [each.outcome for each in model.version(2).evidence()] == ["ask", "keep"]
    with pytest.raises(InputError, match=r"Version 2 of 'digits' does not await an approval. No version does."):
        model.promote(2, as_compared=True)


def test_damaged_evidence_is_named_with_the_way_out_and_promotes_nothing(model: Model, evaluated) -> None:
    key = evidence.key_of("digits", 2, evaluated(2, {"accuracy": 0.93, "loss": 1.0}, {"accuracy": 0.9, "loss": 1.0}).id)
    model.store.delete(key)
    model.store.put_new(key, [b"{}"])
    for look in (model.version(2).evidence, lambda: model.promote(2, as_compared=True)):
        with pytest.raises(CorruptObjectError, match=rf"Next: remove .*{key}; podlift models promote"):
            look()
    assert model.champion().number == 1


def test_the_command_shows_both_models_side_by_side_and_the_next_step(model: Model, evaluated, show) -> None:
    evaluated(2, {"accuracy": 0.93, "loss": 1.2}, {"accuracy": 0.9, "loss": math.inf})
    evaluated(3, {"accuracy": 0.93, "loss": 1.2, "new": 1.0}, {"accuracy": 0.9, "loss": 1.0})
    shown = show("status", "digits", "3")
    for line in (
        "gate       ask: accuracy is 0.93, the champion's 0.9: better by 0.03, less than ask_below, 0.05",
        "next       podlift models promote digits 3 --as-compared",
        f"on         test: /data/test {'d' * 12}",
        "guard      holds: loss <= champion * 1.5 (it is 1.2, bound 1.5)",
    ):
        assert line in shown
    assert "compared   with version 1, then the champion, by quality:measure, " in "\n".join(shown)
    assert [line.split() for line in shown if line.startswith(" " * 11)] == [
        ["version", "3", "version", "1", "difference"],
        ["accuracy", "0.9300", "0.9000", "+0.0300"],
        ["loss", "1.2000", "1.0000", "+0.2000"],
        ["new", "1.0000", "-", "-"],
    ]
    other = show("status", "digits", "2")
    assert "guard      fails: loss <= champion * 1.5 (the champion's is inf)" in other
    assert not any(line.startswith("next ") for line in other)
    rows = [line.split("\t")[:4] for line in show("status", "digits")]
    measured = "accuracy on test: 0.9300"
    assert rows == [
        ["1", "champion", "-", "-"], ["2", "registered", "keep", measured], ["3", "awaits approval", "ask", measured],
    ]  # fmt: skip
    assert model.diff(2, 3).measured == {"accuracy": (0.93, 0.93), "loss": (1.2, 1.2), "new": (None, 1.0)}
    assert model.diff(1, 3).measured == {}, "the gate has not judged version 1"
    evaluated(1, {"accuracy": 0.9, "loss": 1.0}, None, champion=0)
    assert "guard      not checked: loss <= champion * 1.5 (there is no champion)" in show("status", "digits", "1")
    (facts,) = json.loads(show("status", "digits", "3", "--json")[0])["shown"]
    (found,) = facts["evidence"]
    assert (found["outcome"], found["champion"], found["guards"][0]["bound"]) == ("ask", 1, 1.5)
    assert json.loads(show("list", "--json")[0])[0]["awaiting"] == 1
