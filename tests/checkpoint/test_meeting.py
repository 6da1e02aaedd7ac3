"""How tasks agree, before a save on the way out, that all of them can save behind the same step."""

import time
from pathlib import Path

import pytest

from sdk.checkpoint.manager import CheckpointManager

from .parts import manager


@pytest.fixture
def tasks(tmp_path: Path) -> list[CheckpointManager]:
    found = [manager(tmp_path, names=names) for names in (("chief-0", "worker-0"), ("worker-0", "chief-0"))]
    for each in found:
        each.begin("fit", "signature")
    return found


def test_tasks_meet_behind_one_step_or_not_at_all(tasks: list[CheckpointManager]) -> None:
    first, second = tasks
    assert not first.meet(7, 0.0), "the other one is not there"
    assert not second.meet(8, 0.0), "nor at the same step"
    assert second.meet(7, 0.0)


def test_tasks_do_not_wait_for_one_that_has_ended_unless_it_had_reported(tasks: list[CheckpointManager]) -> None:
    first, second = tasks
    begun = time.monotonic()
    assert not first.meet(7, 60.0, lambda: {"worker-0"}), "it was killed"
    assert time.monotonic() - begun < 30
    second.meet(8, 0.0)
    assert first.meet(8, 0.0, lambda: {"worker-0"}), "it has left all that it had"
