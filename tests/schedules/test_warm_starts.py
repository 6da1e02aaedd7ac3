"""Each firing of a schedule starts from the version of its time, also if another server takes it over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from paper_runs import START, PaperRuns, World
from registered_models import register
from support import FakeClock, needs

import sdk
from sdk import launch
from sdk.job.plan import Plan
from sdk.model_registry.models import Model
from sdk.planning import initial
from sdk.planning.settings.merge import Destination
from sdk.schedules import creation
from sdk.schedules.runs import LocalRuns

needs("cronsim")


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "train.py").write_text("print(1)\n")
    job = sdk.Job(tmp_path / "train.py", warm_start="champion")
    spec = creation.draft(name="each", cron="0 * * * *", trigger="serve")
    made = creation.prepare(spec, job, {}, Destination(root=tmp_path / "root"))
    clock = FakeClock(START.timestamp() - 60)
    return World(str(tmp_path / "root"), made.plan, clock, PaperRuns(clock))


def versions(world: World) -> list[int | None]:
    return [plan.initial.version if plan.initial else None for plan in world.runs.plans.values()]


def test_each_firing_starts_from_the_current_champion_and_the_template_names_none(world: World) -> None:
    assert world.template.initial is None
    assert "warm start   the champion of 'each' at the time of the firing, weights only" in str(world.template)
    world.add()
    server = world.server()
    world.advance(server, 1)
    for _ in range(2):
        register(world.root, "each", {"model.keras": b"weights"})
        world.advance(server, 1)
    Model(world.root, "each").rollback()
    world.advance(server, 1)
    assert versions(world) == [0, 1, 2, 1]


def test_a_damaged_champion_fails_the_slot_before_anything_is_spent(world: World) -> None:
    register(world.root, "each", {"model.keras": b"weights"})
    (part,) = Path(world.root, "models", "blobs").iterdir()
    part.write_bytes(b"other")
    world.add()
    world.advance(world.server(), 0.5)
    (slot,) = world.history()
    assert slot.state == "FAILED"
    assert "not started: Version 1 of 'each' is damaged" in slot.reason
    assert world.runs.plans == {}


def test_a_run_that_another_server_has_submitted_keeps_its_version(world: World, monkeypatch) -> None:
    register(world.root, "each", {"model.keras": b"weights"})
    stored = replace(world.template, run_id="each-20270104t010000-aaaaaa")
    stored = replace(stored, initial=initial.chosen("champion", stored.model, stored.root))
    finished: list[Plan] = []
    monkeypatch.setattr(launch, "finish", finished.append)
    monkeypatch.setattr(launch, "execute", lambda plan: pytest.fail("it exists"))
    Path(stored.paths.events).mkdir(parents=True)
    Path(stored.paths.plan).write_text(stored.to_json())
    LocalRuns(world.clock).submit(replace(stored, initial=None))
    assert [plan.initial and plan.initial.version for plan in finished] == [1]
