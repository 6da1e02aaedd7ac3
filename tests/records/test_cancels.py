"""Each cancel request in a store is found by who looks again and again, mostly by one read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support import FakeClock

from sdk.errors import StoreError
from sdk.records.sync.cancels import KEYS, CancelWatch, request_cancel
from sdk.storage.posix_store import PosixStore


class Counted(PosixStore):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.calls = Counter[str]()
        self.is_reachable = True

    def list(self, prefix):
        self.calls["list"] += 1
        if not self.is_reachable:
            raise StoreError("the bucket cannot be reached")
        return super().list(prefix)

    def stat(self, key):
        self.calls["read"] += 1
        return super().stat(key)


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def test_requests_are_found_one_after_the_other_without_a_list(store: Counted) -> None:
    clock = FakeClock()
    watch = CancelWatch(store, clock, 2, 1, every_s=5.0)
    request_cancel(store, 1, b"{}")
    assert watch.look() == [KEYS.remote_cancel_request(1, 1)]
    for number in (1, 2, 3):
        request_cancel(store, 2, b"{}")
        assert KEYS.remote_cancel_request(2, number) not in watch.look()
        clock.sleep(5.0)
        assert KEYS.remote_cancel_request(2, number) in watch.look()
    assert store.calls["list"] == 1


def test_a_late_request_for_an_earlier_job_is_found_by_the_next_list(store: Counted) -> None:
    clock = FakeClock()
    watch = CancelWatch(store, clock, 2, 1, every_s=5.0)
    assert watch.look() == []
    request_cancel(store, 1, b"{}")
    request_cancel(store, 0, b"{}")
    clock.sleep(299.0)
    assert watch.look() == []
    clock.sleep(5.0)
    # The one before the last resume by a user is over.
    assert watch.look() == [KEYS.remote_cancel_request(1, 1)]


def test_a_list_that_failed_is_made_again_at_the_next_look(store: Counted) -> None:
    clock = FakeClock()
    watch = CancelWatch(store, clock, 2, 1, every_s=5.0)
    request_cancel(store, 1, b"{}")
    store.is_reachable = False
    with pytest.raises(StoreError):
        watch.look()
    store.is_reachable = True
    # A request for an earlier job is found by lists alone.
    clock.sleep(5.0)
    assert watch.look() == [KEYS.remote_cancel_request(1, 1)]


def test_an_hour_of_looks_makes_twelve_lists(store: Counted) -> None:
    clock = FakeClock()
    watch = CancelWatch(store, clock, 0, every_s=2.0)
    for _ in range(3600):
        watch.look()
        clock.sleep(1.0)
    assert store.calls == {"list": 12, "read": 1788}
