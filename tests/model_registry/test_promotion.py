"""From a finished run to a promotion: one version, one decision and one move, whatever happens in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from programs.store_faults import FaultyStore, Op, StoreFault
from registered_models import candidate
from support import FakeClock

import sdk
from sdk.job.layout import RootPaths
from sdk.model_registry.decision import Evaluation
from sdk.model_registry.lineage import Candidate
from sdk.model_registry.models import Model, ModelVersion
from sdk.model_registry.promotion import MOST_COMPARISONS, Trial, judge
from sdk.status import Registered
from sdk.storage.registry import open_store
from sdk.storage.store import Store

GATE = sdk.Gate(evaluate="quality:measure", data="test", metric="accuracy", min_gain="0.01")


class World:
    """A root, the data of a gate, and runs with models that are files with their accuracy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, str(folder / "root")
        self.data = folder / "test.csv"
        self.data.write_text("1,2\n")
        self.evaluated: list[list[str]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._moments = itertools.count(1000)

    def model(self, store: Store | None = None) -> Model:
        return Model(self.root, "digits", FakeClock(1000.0), store)

    def evaluate(self, models: Sequence[str], data: str) -> list[Evaluation]:
        assert data == str(self.data)
        texts = [Path(each, "weights").read_text() for each in models]
        self.evaluated.append(texts)
        Path(models[0], "cache").write_text("what a function may leave beside a model")
        self.meanwhile()
        broken = Evaluation(problem="ValueError: bad layer")
        return [broken if text == "broken" else Evaluation(metrics={"accuracy": float(text)}) for text in texts]

    def candidate(self, run: str, weights: str) -> Candidate:
        folder = self.folder / "made" / run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_text(weights)
        return candidate(folder, run)

    def phase(self, run: str, weights: str, *, gate: sdk.Gate = GATE, store: Store | None = None) -> Registered:
        """The last phase of a run with its model."""
        model = self.model(store)
        version = model.of_run(run, "model") or model.add(self.candidate(run, weights))
        return judge(version, self.trial(gate))

    def trial(self, gate: sdk.Gate = GATE) -> Trial:
        return Trial(gate=gate, data=str(self.data), evaluate=self.evaluate, now=lambda: float(next(self._moments)))

    def champion(self) -> str:
        found: ModelVersion = self.model().champion()
        return Path(found.download(self.folder / f"champion-{found.number}"), "weights").read_text()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_first_and_every_better_model_is_promoted_and_a_worse_one_is_kept_back(world: World) -> None:
    assert world.phase("a-aaaaaa", "0.5").outcome == "promoted"
    better = world.phase("b-aaaaaa", "0.6")
    assert str(better) == (
        "version 2 of 'digits' was promoted: accuracy is 0.6, the champion's 0.5: better by 0.1. "
        "Next: podlift models status digits 2"
    )
    assert (world.phase("c-aaaaaa", "0.55").outcome, world.champion()) == ("kept", "0.6")
    # Both models are evaluated by one call, the champion last: if it ends the process, the other one's numbers are there.
    assert world.evaluated == [["0.5"], ["0.6", "0.5"], ["0.55", "0.6"]]
    notes = [move.note for move in world.model().history()]
    assert notes == ["The first model: accuracy is 0.5", "accuracy is 0.6, the champion's 0.5: better by 0.1"]


def test_a_champion_that_cannot_be_evaluated_or_is_damaged_needs_a_person(world: World) -> None:
    world.phase("a-aaaaaa", "broken")
    assert world.model().history() == ()
    world.model().promote(1)
    asks = world.phase("b-aaaaaa", "0.6")
    assert (asks.outcome, asks.version) == ("asks", 2)
    assert "The champion could not be evaluated: ValueError: bad layer" in asks.reason
    for blob in [each for each in Path(RootPaths(world.root).models, "blobs").rglob("*") if each.is_file()]:
        if b"broken" in blob.read_bytes():
            blob.write_bytes(blob.read_bytes().replace(b"broken", b"broker"))
    damaged = world.phase("c-aaaaaa", "0.7")
    assert damaged.outcome == "asks" and "damaged" in damaged.reason
    assert world.model().champion().number == 1
    assert world.model().promote(3, as_compared=True).number == 3


def test_data_that_change_while_they_are_read_promote_nothing(world: World) -> None:
    world.meanwhile = lambda: world.data.write_text("3,4\n5,6\n")
    found = world.phase("a-aaaaaa", "0.5")
    assert found.outcome == "kept" and "test.csv changed meanwhile" in found.reason
    world.data.unlink()
    found = world.phase("b-aaaaaa", "0.5")
    assert found.outcome == "kept" and "the data cannot be read" in found.reason
    assert world.model().history() == ()


def test_if_another_process_moves_the_champion_the_new_one_is_compared_with(world: World) -> None:
    for run, weights in (("a-aaaaaa", "0.5"), ("b-aaaaaa", "0.7")):
        world.model().add(world.candidate(run, weights))
    world.model().promote(1)
    world.meanwhile = lambda: world.model().promote(2)
    found = world.phase("c-aaaaaa", "0.6")
    assert (found.outcome, found.reason) == ("kept", "accuracy is 0.6, the champion's 0.7: worse by 0.1")
    assert world.evaluated == [["0.6", "0.5"], ["0.6", "0.7"]]
    decisions = [(each.champion, each.outcome) for each in world.model().version(3).evidence()]
    assert decisions == [(1, "promote"), (2, "keep")]


def test_if_the_champion_moves_again_and_again_a_person_is_asked(world: World) -> None:
    for number in range(MOST_COMPARISONS + 1):
        world.model().add(world.candidate(f"{'abcdef'[number]}-aaaaaa", f"0.{number + 1}"))
    world.model().promote(1)
    others = iter(range(2, MOST_COMPARISONS + 2))
    world.meanwhile = lambda: world.model().promote(next(others))
    found = world.phase("z-aaaaaa", "0.9")
    assert (found.outcome, len(world.evaluated)) == ("asks", MOST_COMPARISONS)
    assert "was replaced 3 times" in found.reason
    model = world.model()
    assert model.state(model.version(found.version)) == "awaits approval"
    assert model.promote(found.version, as_compared=True).number == found.version


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("op", ["put_new", "swap", "get", "list"])
def test_an_interrupted_phase_repeats_with_one_version_one_decision_and_one_move(tmp_path, op: Op, when: str) -> None:
    """Each step is an operation of the store, or the evaluation itself."""
    steps = 0
    for nth in itertools.count(1):
        (tmp_path / f"{nth}").mkdir()
        world = World(tmp_path / f"{nth}")
        world.phase("a-aaaaaa", "0.5")
        fault = StoreFault(op, do="interrupt", when=when, nth=nth)  # type: ignore[arg-type]
        store = FaultyStore(open_store(RootPaths(world.root).models), fault)
        try:
            world.phase("b-aaaaaa", "0.6", store=store)
        except KeyboardInterrupt:
            steps += 1
        assert world.champion() in ("0.5", "0.6")
        assert [each.damage() for each in world.model().versions()] == [[]] * len(world.model().versions())
        assert world.phase("b-aaaaaa", "0.6").outcome == "promoted"
        assert world.phase("b-aaaaaa", "0.6").outcome == "promoted"
        model = world.model()
        assert [each.record.run for each in model.versions()] == ["a-aaaaaa", "b-aaaaaa"]
        assert [(move.before, move.champion) for move in model.history()] == [(0, 1), (1, 2)]
        assert len(model.version(2).evidence()) == 1
        if not fault.happened:
            break
    assert steps >= (1 if op == "swap" else 3)


def test_a_phase_interrupted_after_its_decision_does_not_undo_a_later_rollback(world: World) -> None:
    world.phase("a-aaaaaa", "0.5")
    world.phase("b-aaaaaa", "0.6")
    world.model().rollback()
    assert world.phase("b-aaaaaa", "0.6").outcome == "promoted"
    assert world.champion() == "0.5"
