"""A user's backend brings its own service for schedules: nothing but the registry knows which one it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from paper_runs import START
from support import FakeClock

from sdk import InputError, backends
from sdk.backends.services import Services
from sdk.backends.triggers import FailedKeeper, Trigger, TriggerDraft, TriggerRejectedError, TriggerRequest
from sdk.clock import Clock
from sdk.errors import StoreError
from sdk.job.findings import Finding
from sdk.job.plan import Plan
from sdk.planning.settings.merge import Destination
from sdk.schedules import creation, handle
from sdk.schedules.handle import Schedule
from sdk.schedules.records import REMOVED, Book
from sdk.schedules.server import Server
from sdk.testing.fake_backend import FakeBackend


class Bells:
    """A trigger service in memory."""

    title, grace_s = "The bell tower", 60.0

    def __init__(self) -> None:
        self.kept_here: dict[str, Trigger] = {}
        self.rung: list[str] = []
        self.deleted: list[str] = []
        self.listed_at = 0.0
        self.writes = 0

    def adapted(self, plan: Plan) -> Plan:
        return plan

    def review(self, draft: TriggerDraft) -> list[Finding]:
        return [Finding("error", "The tower is closed on Sundays.")] if draft.cron.endswith("0") else []

    def lines(self, draft: TriggerDraft) -> list[tuple[str, str]]:
        return [("bell", f"rings {draft.firings} times in 30 days")]

    def parent(self, plan: Plan, location: str) -> str:
        return location or "towers/one"

    def render(self, draft: TriggerDraft) -> TriggerRequest:
        name = f"{self.parent(draft.plan, draft.location)}/jobs/{draft.schedule}"
        owner = {"root": draft.plan.root, "schedule": draft.schedule, "id": draft.id}
        settings = {"cron": draft.cron, "time_zone": draft.time_zone, **owner}
        files = {f"bells/{draft.cron.replace(' ', '-')}": b"ding"}
        return TriggerRequest(name=name, body=settings, settings=settings, files=files)

    def upload(self, plan: Plan) -> None:
        pass

    def create(self, request: TriggerRequest, clock: Clock) -> Trigger:
        return self._write(request, paused=False)

    def get(self, name: str, clock: Clock) -> Trigger | None:
        return self.kept_here.get(name)

    def list_all(self, parent: str, clock: Clock) -> list[Trigger]:
        self.listed_at = clock.now()
        return [each for name, each in self.kept_here.items() if name.startswith(f"{parent}/")]

    def update(self, request: TriggerRequest, before: Trigger, clock: Clock) -> Trigger:
        return self._write(request, paused=before.paused)

    def pause(self, name: str, clock: Clock) -> None:
        self.kept_here[name] = replace(self.kept_here[name], paused=True)

    def unpause(self, name: str, clock: Clock) -> None:
        self.kept_here[name] = replace(self.kept_here[name], paused=False)

    def delete(self, name: str, clock: Clock) -> None:
        self.deleted += [name] if self.kept_here.pop(name, None) else []

    def fire_now(self, trigger: Trigger, clock: Clock, slot: float | None = None) -> str:
        self.rung.append(trigger.schedule if slot is None else f"{trigger.schedule} {slot:.0f}")
        return f"rings/{len(self.rung)}"

    def failed(self, plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
        return []

    def alert(self, name: str) -> str:
        return f"listen {name}"

    def _write(self, request: TriggerRequest, *, paused: bool) -> Trigger:
        self.writes += 1
        about = {**json.loads(json.dumps(request.settings)), "paused": paused, "description": ""}
        self.kept_here[request.name] = Trigger(name=request.name, settings=request.settings, **about)
        return self.kept_here[request.name]


@pytest.fixture
def bells(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bells]:
    tower = Bells()
    monkeypatch.setattr(backends, "_registered", {})

    class Ringing(Services):
        triggers = tower

    class Tower(FakeBackend):
        services = Ringing()

    backends.register("tower", Tower)
    yield tower


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "root"


def create(place: Path, cron: str = "0 3 * * 1", *clock: FakeClock) -> creation.Created:
    spec, target = creation.draft(name="weekly", cron=cron), Destination(backend="tower", root=place)
    return creation.create(creation.prepare(spec, "train.py", {}, target, *clock), *clock)


def test_a_schedule_of_ones_own_backend_is_started_by_its_service(bells: Bells, place: Path) -> None:
    made = create(place)
    assert (made.record.trigger, made.alert) == ("towers/one/jobs/weekly", "listen towers/one/jobs/weekly")
    assert create(place).outcome == "unchanged" and bells.writes == 1
    each = Schedule("weekly", root=place)
    each.pause()
    changed = create(place, "0 4 * * 1")
    assert (changed.outcome, changed.changes) == ("changed", ["~ cron: '0 3 * * 1' -> '0 4 * * 1'"])
    (place / "schedules/bells/0-4-*-*-1").unlink()
    assert create(place, "0 4 * * 1").changes == ["+ schedules/bells/0-4-*-*-1: it was removed from the root"]
    assert create(place, "0 4 * * 1").outcome == "unchanged"
    assert bells.kept_here[made.record.trigger].paused and bells.kept_here[made.record.trigger].cron == "0 4 * * 1"
    each.unpause()
    assert each.run().keeper == "rings/1" and bells.rung == ["weekly"]
    listing = handle.listed(place)
    assert [one.name for one in listing.schedules] == ["weekly"] and not listing.orphans and not listing.problems
    assert bells.listed_at >= made.record.created
    handle.listed(place, FakeClock(5.0))
    assert bells.listed_at == 5.0
    each.remove()
    assert not bells.kept_here and not handle.listed(place).schedules


def test_the_state_of_a_trigger_counts_as_current_for_five_seconds(bells: Bells, place: Path) -> None:
    create(place)
    clock = FakeClock()
    each = Schedule("weekly", root=place, clock=clock)
    found = each.trigger()
    assert found is not None and found.sync == "in sync"
    bells.kept_here.clear()
    clock.sleep(5)
    assert each.trigger() == found
    clock.sleep(0.5)
    found = each.trigger()
    assert found is not None and found.sync == "missing"


def test_a_trigger_that_has_lost_its_schedule_is_listed_and_removed_by_name(bells: Bells, place: Path) -> None:
    record = create(place).record
    Book(str(place)).remove(record)
    assert [trigger.name for trigger in handle.listed(place).orphans] == [record.trigger]
    assert not handle.remove_orphan("daily", place)
    assert handle.remove_orphan("weekly", place)
    assert bells.deleted == [record.trigger]
    assert not handle.remove_orphan("weekly", place)


def test_the_server_of_this_machine_leaves_it_to_the_service(bells: Bells, place: Path) -> None:
    made = create(place, "* * * * *")
    clock = FakeClock()
    clock.time = made.record.since + 120
    Server(str(place), clock).serve_once()
    # Nor has a pause that there was not swallowed the slots.
    each = Schedule("weekly", root=place, clock=clock)
    each.unpause()
    assert each.history() == []


def test_a_schedule_that_cannot_be_listed_is_named_beside_the_others(bells: Bells, place: Path, monkeypatch) -> None:
    create(place)
    names = Book.names

    def readable(book: Book) -> list[str]:
        if book.root == "gone":
            raise StoreError("no such bucket")
        return names(book)

    def locked(*_: object) -> list[Trigger]:
        raise TriggerRejectedError("the bells are locked", 403)

    monkeypatch.setattr(handle, "searched", lambda root: ([str(place), "gone"], []))
    monkeypatch.setattr(Book, "names", readable)
    monkeypatch.setattr(bells, "list_all", locked)
    assert handle.listed().problems == [
        "Triggers without a schedule are not listed: the bells are locked",
        "The schedules of gone are not listed: no such bucket",
    ]


def test_a_removal_that_was_cut_short_is_finished_before_the_schedule_is_made_again(bells: Bells, place: Path) -> None:
    made = create(place)
    Book(str(place)).change("weekly", paused=REMOVED)
    assert create(place).outcome == "created"
    assert bells.deleted == [made.record.trigger]


def test_an_objection_of_the_service_is_part_of_the_one_error(bells: Bells, place: Path) -> None:
    with pytest.raises(InputError) as caught:
        spec = creation.draft(name="weekly", cron="0 3 * * 0", when=("data_changed(rows)",))
        inputs = {"days": "day-{slot:%d}.csv", "bucket": "gs://mine/{slot:%d}.csv"}
        creation.prepare(spec, "train.py", {"inputs": inputs}, Destination(backend="tower", root=place))
    assert "The tower is closed on Sundays." in caught.value.problems
    assert any("no such input" in problem for problem in caught.value.problems)
    on_disk = [problem for problem in caught.value.problems if "is on this machine's disk" in problem]
    assert [problem.partition(":")[0] for problem in on_disk] == ["inputs.days"]


def test_a_changed_expression_leaves_the_last_slot_to_the_keeper_that_is_on_its_way(bells: Bells, place: Path) -> None:
    clock = FakeClock(START.timestamp() - 60)
    create(place, "1 * * * *", clock)
    # Two slots were not served, and the keeper of a third one, 20 s ago, has no machine yet.
    clock.time = START.timestamp() + 2 * 3600 + 80
    create(place, "31 * * * *", clock)
    found = Schedule("weekly", root=place, clock=clock).history()
    assert [each.slot[11:16] for each in found] == ["01:01", "00:01"]
    assert {each.reason for each in found} == {"missed: no keeper took it"}
