"""Keeps the marks of tests true, and says which tests one worker runs together.

`process`: starts processes. `tensorflow`: runs TensorFlow, here or in another process. A test with neither mark does neither:
it fails if it does. `full`: left to `scripts/test --full`. `spread`: the tests of this file share nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Generator
from typing import Any

import costs
import pytest

# A test that uses one of these talks to a process, even if another test started it.
PROCESS_FIXTURES = {
    "cloud", "developer", "fresh", "in_terminal", "jobs", "podlift", "podlift_drill", "podlift_gcs_server", "podlift_run",
    "podlift_vertex_server", "shell", "wheel", "wheels", "with_memory",
}  # fmt: skip
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "podlift.fork"}


class _Started:
    """Starts of processes and imports of TensorFlow in this process so far, from Python's audit events."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._pid = os.getpid()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import":
            first = arguments[0].partition(".")[0] == "tensorflow" and "tensorflow" not in sys.modules
            if first and os.getpid() == self._pid:
                self.events.append("imported tensorflow")
        elif event in _STARTS and os.getpid() == self._pid:
            self.events.append(f"started a process: {event}{arguments[:2]}"[:300])


_started = _Started()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Group the tests of a file, which share its fixtures, unless it is marked `spread`: before xdist looks for groups."""
    if PROCESS_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("process")
    if not item.get_closest_marker("xdist_group"):
        path, _, name = item.nodeid.partition("::")
        item.add_marker(pytest.mark.xdist_group(name.partition("[")[0] if item.get_closest_marker("spread") else path))


@pytest.hookimpl(trylast=True)  # only what will run counts
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the groups that cost most: a worker that begins a long one at the end would work alone."""
    known: dict[str, float] = json.loads(costs.BEFORE.read_text())
    cost: Counter[str] = Counter()
    for item in items:
        cheap = 0.5 if item.get_closest_marker("tensorflow") else 0.1 if item.get_closest_marker("process") else 0.001
        cost[_group(item)] += known.get(item.nodeid.partition("@")[0], cheap)
    items.sort(key=lambda item: (-cost[_group(item)], _group(item)))


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    assert mark is not None
    return str(mark.args[0])


# --- The guard ------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """A fixture that is shared counts for each test that uses it."""
    before = len(_started.events)
    result = yield
    fixturedef.started = _started.events[before:]
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.before = len(_started.events)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if not item.get_closest_marker("process") and not item.get_closest_marker("tensorflow"):
        used = [fixture for definitions in item._fixtureinfo.name2fixturedefs.values() for fixture in definitions]
        events = [*_started.events[item.before :], *(line for each in used for line in getattr(each, "started", ()))]
        if events:
            pytest.fail(
                f"A test without a mark {events[0]}. Next: mark it @pytest.mark.process or @pytest.mark.tensorflow.",
                pytrace=False,
            )
    return result
