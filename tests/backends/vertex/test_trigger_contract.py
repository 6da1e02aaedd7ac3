"""What a service that starts schedules has to do: Cloud Scheduler, on the emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock, needs, until

from sdk import InputError, backends
from sdk.backends.triggers import Trigger, TriggerRejectedError
from sdk.backends.vertex import client, cloud_scheduler, scheduler_calls
from sdk.planning.settings.merge import Destination
from sdk.schedules import creation
from sdk.testing.vertex import Cloud

needs("cronsim", "google.cloud.scheduler_v1", "google.cloud.aiplatform_v1")
ACCOUNT = "keeper@podlift.iam.gserviceaccount.com"
WEEK_S = 7 * 86400.0
CLOCK = FakeClock()


class TestCloudScheduler:
    def raw(self) -> list[Any]:
        """Return what the service lists."""
        return list(self.cloud.scheduler().list_jobs(parent=self.cloud.parent, timeout=30))

    @pytest.fixture(autouse=True)
    def _draft(self, podlift_vertex: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("train.py").write_text("print('here')")
        for timeout in ("_WRITE_S", "_READ_S"):
            monkeypatch.setattr(client, timeout, 2.0)
        monkeypatch.setitem(scheduler_calls._ONCE, "timeout", 2.0)
        for module in (cloud_scheduler, scheduler_calls):
            monkeypatch.setattr(module, "_FIRST_WAIT_S", 0.01)
        spec = creation.draft(name="weekly", cron="0 3 * * 1", time_zone="Europe/Berlin")
        target = Destination(backend=podlift_vertex.backend(service_account=ACCOUNT))
        made = creation.prepare(spec, "train.py", {}, target)
        assert made.service is not None and made.trigger is not None
        self.cloud, self.service = podlift_vertex, made.service
        self.draft = replace(made.trigger, id="1a2b3c4d", digest="d" * 64)
        self.request = self.service.render(self.draft)

    def create(self) -> Trigger:
        return self.service.create(self.request, CLOCK)

    def there(self) -> Trigger:
        found = self.service.get(self.request.name, CLOCK)
        assert found is not None
        return found

    def lose(self, operation: str, kind: str = "drop_after") -> None:
        self.cloud.faults({"api": "scheduler", "kind": kind, "times": 1, "operation": f"jobs.{operation}"})

    def test_a_trigger_is_what_was_asked_for_and_says_whose_it_is(self) -> None:
        assert self.service.get(self.request.name, CLOCK) is None
        made = self.create()
        assert made == self.there() and self.service.kept(self.parent, CLOCK) == [made]
        assert (made.cron, made.time_zone, made.paused, made.broken) == ("0 3 * * 1", "Europe/Berlin", False, "")
        assert (made.root, made.schedule, made.id) == (self.draft.plan.root, "weekly", "1a2b3c4d")
        assert made.digest == self.request.digest
        assert made.next is not None and (made.last_attempt, made.status) == (None, "")

    @property
    def parent(self) -> str:
        return self.service.parent(self.draft.plan, "")

    def test_creating_it_again_makes_no_second_one_and_anothers_is_left_alone(self) -> None:
        first = self.create()
        assert self.create() == first and len(self.raw()) == 1
        other = self.service.render(replace(self.draft, id="another0"))
        with pytest.raises(InputError, match=r"weekly.+id 1a2b3c4d.+Nothing was changed there"):
            self.service.create(other, CLOCK)
        assert self.there() == first and len(self.raw()) == 1

    @pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
    def test_a_lost_reply_changes_nothing_twice(self, kind: str) -> None:
        self.lose("create", kind)
        first = self.create()
        assert len(self.raw()) == 1
        later = self.service.render(replace(self.draft, cron="0 4 * * 1"))
        self.lose("patch", kind)
        assert self.service.update(later, first, CLOCK).cron == "0 4 * * 1"
        for act, paused in ((self.service.pause, True), (self.service.unpause, False)):
            self.lose("pause" if paused else "resume", kind)
            act(self.request.name, CLOCK)
            assert self.there().paused is paused
        self.lose("delete", kind)
        self.service.delete(self.request.name, CLOCK)
        assert self.raw() == []

    def test_a_paused_trigger_stays_paused_when_it_is_changed(self) -> None:
        first = self.create()
        for _ in range(2):
            self.service.pause(self.request.name, CLOCK)
        later = self.service.render(replace(self.draft, cron="0 4 * * 1"))
        changed = self.service.update(later, replace(first, paused=True), CLOCK)
        assert (changed.cron, changed.paused, changed.digest) == ("0 4 * * 1", True, later.digest)
        assert self.cloud.advance(WEEK_S) == [] and self.there().last_attempt is None
        for _ in range(2):
            self.service.unpause(self.request.name, CLOCK)
        assert len(self.cloud.advance(WEEK_S)) == 1

    def test_a_keeper_pauses_it_without_any_of_googles_libraries(self) -> None:
        self.create()
        deliveries = backends.delivery_service("vertex")
        assert deliveries is not None
        deliveries.pause(self.request.name, CLOCK)
        assert self.there().paused and self.cloud.advance(WEEK_S) == []

    def test_removing_what_is_not_there_is_no_error_and_pausing_it_is_one(self) -> None:
        self.service.delete(self.request.name, CLOCK)
        for act in (self.service.pause, self.service.unpause):
            with pytest.raises(TriggerRejectedError):
                act(self.request.name, CLOCK)

    def test_one_that_the_service_has_ended_says_so_and_an_update_makes_it_anew(self) -> None:
        self.create()
        self.cloud.faults({"api": "scheduler", "kind": "disable"})
        self.cloud.advance(WEEK_S)
        self.cloud.faults()
        before = self.there()
        assert "its state is" in before.broken and not before.paused
        assert self.service.update(self.request, before, CLOCK).broken == ""
        assert len(self.raw()) == 1

    def test_a_slot_starts_one_keeper_and_the_trigger_shows_how_that_went(self) -> None:
        self.create()
        assert [each.code for each in self.cloud.advance(WEEK_S)] == [0]
        assert self.there().last_attempt is not None and self.there().status == ""
        self.cloud.faults({"api": "vertex", "kind": "deny", "operation": "customJobs.create"})
        assert {each.http_status for each in self.cloud.advance(WEEK_S)} == {403}
        assert self.there().status.startswith("PERMISSION_DENIED")
        assert self.there().broken == ""

    @pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
    def test_a_firing_by_hand_starts_one_keeper_also_if_the_reply_is_lost(self, kind: str) -> None:
        made = self.create()
        self.cloud.faults({"api": "vertex", "kind": kind, "times": 1, "operation": "customJobs.create"})
        started = self.service.fire_now(made, CLOCK)
        jobs = list(self.cloud.jobs().list_custom_jobs(parent=self.cloud.parent, timeout=30))
        assert len(jobs) == 1 and started

    def test_a_keeper_that_is_started_for_a_slot_is_found_with_it(self) -> None:
        slot = 1_700_000_000.0
        started = self.service.fire_now(self.create(), CLOCK, slot)
        until(lambda: bool(self.service.failed(self.draft.plan, "weekly", 0.0, CLOCK)))
        (failed,) = self.service.failed(self.draft.plan, "weekly", 0.0, CLOCK)
        assert (failed.job, failed.slot, failed.by_hand) == (started, slot, False)

    def test_a_keeper_that_fails_is_named_with_the_end_of_its_log(self) -> None:
        """What it starts from was never stored."""
        started = self.service.fire_now(self.create(), CLOCK)

        def found() -> list[Any]:
            return list(self.service.failed(self.draft.plan, "weekly", 0.0, CLOCK))

        until(lambda: bool(found()))
        (failed,) = found()
        assert (failed.job, failed.state, failed.by_hand) == (started, "FAILED", True)
        assert "does not exist (404)" in failed.error and "gcloud ai custom-jobs stream-logs" in failed.look
        assert self.service.failed(self.draft.plan, "another", 0.0, CLOCK) == []

    def test_the_plan_names_rights_and_an_alert_is_a_command(self) -> None:
        lines = self.service.lines(self.draft)
        assert {"trigger", "keeper", "identity", "rights"} <= {label for label, _ in lines}
        text = "\n".join(text for _, text in lines)
        assert f"iam.serviceAccounts.actAs on {ACCOUNT}" in text and "podlift-" in text
        assert self.service.alert(self.request.name).startswith(
            "gcloud alpha monitoring policies create --project=podlift "
        )
