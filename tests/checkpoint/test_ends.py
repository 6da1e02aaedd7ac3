"""The ends of phases that are over: kept for as long as a restart reads them, in programs with any number of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from support import heard

from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.manager import CheckpointManager, UnsavedState
from sdk.errors import CorruptCheckpointError
from sdk.job.policies import Checkpoints

from . import parts

LARGE = 10**9  # of which the last end refers to 16 earlier ones


class Variable:
    """A variable of a model."""


def attempt(folder: Path, number: int) -> CheckpointManager:
    return parts.manager(folder, number, policy=Checkpoints(keep_last=1))


def trained(folder: Path, attempted: int, models: Sequence[Variable], size: int) -> list[int | None]:
    """Train each model in one phase of an attempt; return the value that each begins with: the number of its phase."""
    begun, manager = list[int | None](), attempt(folder, attempted)
    for number, model in enumerate(models):
        phase = manager.begin("fit", "alike", model)
        begun.append(None if phase.checkpoint is None else phase.checkpoint.arrays["number"].data[0])
        manager.size = size
        if not phase.record.finished:
            contents = Contents((Array("number", "uint8", (1,), lambda number=number: memoryview(bytes([number]))),))
            state = UnsavedState(phase=number, steps=1, contents=contents, at={})
            manager.finished(number, manager.save(state, reason="final", end=({}, ())))
    manager.close(20)
    return begun


def commits(folder: Path) -> int:
    return len(list(folder.rglob("commits/**/*.json")))


def test_each_of_many_models_has_its_end_whatever_their_size(tmp_path: Path) -> None:
    models = [Variable() for _ in range(40)]
    trained(tmp_path, 1, models, LARGE)
    assert trained(tmp_path, 2, models, LARGE) == list(range(40))
    assert commits(tmp_path) == 40


def test_of_a_large_model_that_is_trained_again_and_again_the_newest_ends_are_kept(tmp_path: Path) -> None:
    said, models = heard("checkpoint"), [Variable()] * 30
    trained(tmp_path, 1, models[:25], LARGE)
    assert commits(tmp_path) == 17
    assert trained(tmp_path, 2, models, LARGE) == [*[None] * 8, *range(8, 25), *[None] * 5]
    assert [line for line in said if line.startswith("not exact: ")] == [
        "not exact: earlier attempts finished phases from phase 1 of the training on, but kept no ends of them: they are "
        "skipped with the values that their variables have now, which matters to the program's code after each"
    ]
    assert trained(tmp_path, 3, models, LARGE)[-1] == 29


def test_of_a_small_model_every_end_is_kept(tmp_path: Path) -> None:
    models = [Variable()] * 40
    trained(tmp_path, 1, models, 1)
    assert trained(tmp_path, 2, models, 1) == list(range(40))


def test_an_end_that_an_older_podlift_has_removed_is_never_called_corrupt(tmp_path: Path) -> None:
    trained(tmp_path, 1, models := [Variable() for _ in range(20)], 1)
    first, second = sorted(tmp_path.rglob("commits/**/*.json"))[:2]
    first.unlink()
    assert trained(tmp_path, 2, models, 1) == [None, *range(1, 20)]
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpointError):
        trained(tmp_path, 3, models, 1)


def test_only_the_phase_that_was_open_last_is_gone_on_with(tmp_path: Path) -> None:
    first = attempt(tmp_path, 1)
    for number in (0, 1):
        first.begin("loop", "alike")
        assert not first.has_saved(number, 3), "a save of the phase before is none of this one"
        first.save(UnsavedState(phase=number, steps=3, contents=Contents(), at={"step": 3}), reason="manual")
        assert first.has_saved(number, 3) and not first.has_saved(number, 4)
    first.close(20)
    second = attempt(tmp_path, 2)
    assert (first.restored_step, second.restored_step) == (0, 6)
    begun = [second.begin("loop", "alike") for _ in range(3)]
    assert [(phase.record.finished, phase.at) for phase in begun] == [(True, {}), (False, {"step": 3}), (False, {})]
    second.close(20)
