"""The contract of a service that starts schedules: Cloud Scheduler, on the emulator."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock, needs, until
from weekly_schedules import ACCOUNT, WEEK_S, prepared

from sdk import backends
from sdk.backends.triggers import Trigger

needs("cronsim", "google.cloud.scheduler_v1", "google.cloud.aiplatform_v1")
CLOCK = FakeClock()


class TestCloudScheduler:
    @pytest.fixture(autouse=True)
    def _draft(self, cloud, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("train.py").write_text("print('here')")
        made = prepared(partial(cloud.backend, service_account=ACCOUNT))
        self.cloud, self.service = cloud, made.service
        self.draft = replace(made.trigger, id="1a2b3c4d", digest="d" * 64)
        self.request = self.service.render(self.draft)

    def create(self) -> Trigger:
        return self.service.create(self.request, CLOCK)

    def there(self) -> Trigger:
        return self.service.get(self.request.name, CLOCK)

    def test_a_trigger_equals_its_request_names_its_schedule_and_is_paused_by_a_keeper(self) -> None:
        assert self.service.get(self.request.name, CLOCK) is None
        made = self.create()
        parent = self.service.parent(self.draft.plan, "")
        assert made == self.there() and self.service.list_all(parent, CLOCK) == [made]
        assert (made.cron, made.time_zone, made.paused, made.broken) == ("0 3 * * 1", "Europe/Berlin", False, "")
        assert (made.root, made.schedule, made.id) == (self.draft.plan.root, "weekly", "1a2b3c4d")
        assert made.digest == self.request.digest
        assert made.next is not None and (made.last_attempt, made.status) == (None, "")
        # As a keeper does, without any of Google's libraries.
        backends.load("vertex").services.deliveries.pause(self.request.name, CLOCK)
        assert self.there().paused and self.cloud.advance(WEEK_S) == []

    def test_a_slot_starts_one_keeper_and_the_trigger_shows_how_that_went(self) -> None:
        self.create()
        assert [each.code for each in self.cloud.advance(WEEK_S)] == [0]
        assert self.there().last_attempt is not None and self.there().status == ""
        self.cloud.faults({"api": "vertex", "kind": "deny", "operation": "customJobs.create"})
        assert {each.http_status for each in self.cloud.advance(WEEK_S)} == {403}
        assert self.there().status.startswith("PERMISSION_DENIED")
        assert self.there().broken == ""

    def test_keepers_that_fail_are_found_with_their_slots_and_the_ends_of_their_logs(self) -> None:
        """The files that they start from were never stored."""
        slot, made = 1_700_000_000.0, self.create()
        started = [self.service.fire_now(made, CLOCK, slot), self.service.fire_now(made, CLOCK)]

        def found() -> list[Any]:
            return sorted(self.service.failed(self.draft.plan, "weekly", 0.0, CLOCK), key=lambda each: each.by_hand)

        until(lambda: len(found()) == 2)
        of_slot, by_hand = found()
        assert [of_slot.job, by_hand.job] == started
        assert (of_slot.slot, of_slot.by_hand, by_hand.state, by_hand.by_hand) == (slot, False, "FAILED", True)
        assert "does not exist (404)" in by_hand.error and "gcloud ai custom-jobs stream-logs" in by_hand.look
        assert self.service.failed(self.draft.plan, "another", 0.0, CLOCK) == []
