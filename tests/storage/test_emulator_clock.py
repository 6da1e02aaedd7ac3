"""The time of an emulator with a moved clock is the time of its clients."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support import needs

from sdk.clock import SystemClock
from sdk.errors import UnavailableError
from sdk.storage.emulator_clock import EmulatorTime, service_clock
from sdk.testing.vertex import Cloud

needs("google.cloud.scheduler_v1")
DAY_S = 86400.0


def test_without_an_emulator_it_is_the_time_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODLIFT_EMULATOR", raising=False)
    assert type(service_clock()) is SystemClock


@pytest.mark.process
def test_a_clock_that_was_moved_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cloud(tmp_path) as cloud:
        monkeypatch.setenv("PODLIFT_EMULATOR", cloud.url)
        clock = service_clock()
        assert clock.now() == pytest.approx(time.time(), abs=5)
        cloud.advance(3 * DAY_S)
        assert service_clock().now() == pytest.approx(time.time() + 3 * DAY_S, abs=5)
    with pytest.raises(UnavailableError, match="does not tell its time"):
        EmulatorTime(cloud.url).now()
