"""Which tier a test is of, a guard that keeps the tier true, and which tests go to one worker together.

`unit`: starts no process and does not import TensorFlow. `process`: starts processes. `tensorflow`: runs TensorFlow, here
or in another process. A test is `unit` unless its mark, a fixture or the tables say otherwise (`tier_tables.py`).
Of the tensorflow tier, the default run has the tests that SMOKE names; the others are marked `full`.
docs/explanation/decisions/test-tiers.md has the reasons.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from tier_tables import ALONE, PROCESS, PROCESS_FIXTURES, SMOKE, SURPLUS, TENSORFLOW, TOGETHER

TIERS = ("unit", "process", "tensorflow")
TESTS = Path(__file__).parent
# CPU seconds of each file in the default run, largest first; written by --durations-file.
DURATIONS = TESTS / "durations.json"
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


class _Seen:
    """What this process has started and imported so far, from Python's audit events."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._pid = os.getpid()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import":
            first = arguments[0].partition(".")[0] == "tensorflow" and "tensorflow" not in sys.modules
            if first and os.getpid() == self._pid:
                self.found.append("imported tensorflow")
        elif event in _STARTS and os.getpid() == self._pid:
            self.found.append(f"started a process: {event}{arguments[:2]}"[:300])


_seen = _Seen()


def enter_worker(config: pytest.Config) -> None:
    """Follow and measure this process, a fork (`workers.py`), from now on."""
    _seen._pid = os.getpid()
    durations: Any = config.pluginmanager.getplugin("durations")
    if durations is not None:
        durations.cpu = _Cpu()


# --- Tiers ----------------------------------------------------------------------------------------------------------


def name_of(item: pytest.Item) -> str:
    """Return the name of a test in the tables: `cli/test_help.py::test_the_sentence[case]`."""
    return item.nodeid.removeprefix("tests/")


def listed(name: str, table: Iterable[str]) -> bool:
    """Return whether a table has a test: by its name, without its parameters, by its file, or by a folder."""
    whole = name.partition("[")[0]
    path = whole.partition("::")[0]
    folders = {"/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)}
    return not {name, whole, path, *folders}.isdisjoint(table)


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test: its own mark, otherwise what the tables say of its name and its fixtures."""
    for tier in TIERS:
        if item.get_closest_marker(tier):
            return tier
    if listed(name_of(item), TENSORFLOW):
        return "tensorflow"
    fixtures = set(getattr(item, "fixturenames", ()))
    return "process" if fixtures & PROCESS_FIXTURES or listed(name_of(item), PROCESS) else "unit"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    smoke, surplus = ({name for names in table.values() for name in names} for table in (SMOKE, SURPLUS))
    for item in items:
        name, tier = name_of(item), tier_of(item)
        item.add_marker(tier)
        if listed(name, surplus) or (tier == "tensorflow" and not listed(name, smoke)):
            item.add_marker("full")
    # The longest files first: a worker that is handed a long one at the end would work alone.
    seconds = budget()
    items.sort(key=lambda item: (-seconds.get(group_of(item.nodeid), 0), group_of(item.nodeid)))


# --- The guard ------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """A fixture that is shared counts for each test that uses it."""
    before = len(_seen.found)
    result = yield
    fixturedef.seen = _seen.found[before:]
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.seen = len(_seen.found)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if item.get_closest_marker("unit"):
        used = [each for definitions in item._fixtureinfo.name2fixturedefs.values() for each in definitions]
        found = [*_seen.found[item.seen :], *(line for each in used for line in getattr(each, "seen", ()))]
        if found:
            pytest.fail(
                f"A test of the tier unit {found[0]}. Mark it @pytest.mark.process or @pytest.mark.tensorflow, or name it "
                f"in tests/tier_tables.py.",
                pytrace=False,
            )
    return result


# --- Which tests go to one worker -----------------------------------------------------------------------------------


def group_of(nodeid: str) -> str:
    """Return the group of a test: its file, which shares fixtures; TOGETHER joins files or tests, ALONE divides a file."""
    name = nodeid.removeprefix("tests/")
    path = name.partition("::")[0]
    joined = next((group for group, names in TOGETHER.items() if listed(name, names)), "")
    return joined or (name.partition("[")[0] if path in ALONE else path)


# --- What a test costs ----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-file", metavar="PATH", help="write what tiers, files and tests cost as JSON")


def budget() -> dict[str, float]:
    """Return the CPU seconds of each group that takes half a second or more, as measured last."""
    return json.loads(DURATIONS.read_text())["groups"] if DURATIONS.exists() else {}


class _Cpu:
    """CPU seconds of this process and all that it starts, those included that outlive the test and are no longer children."""

    def __init__(self) -> None:
        self._group = Path("/sys/fs/cgroup/cpuacct") / f"podlift-tests-{os.getpid()}"
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:  # no control groups of our own: children count when they have been waited for
            self._group = None

    def seconds(self) -> float:
        if self._group is not None:
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        return sum(os.times()[:4])


class _Durations:
    """Measures in each worker, and writes in the process that has collected."""

    def __init__(self, path: str) -> None:
        self._path, self.cpu = Path(path), _Cpu()
        self._rows: dict[str, dict[str, float]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.began = (self.cpu.seconds(), time.monotonic())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: Any
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            cpu, wall = item.began
            measured = {"cpu_s": round(self.cpu.seconds() - cpu, 3), "wall_s": round(time.monotonic() - wall, 3)}
            report.user_properties = [*report.user_properties, ("measured", {**measured, "tier": tier_of(item)})]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        measured = dict(report.user_properties).get("measured") if report.when == "teardown" else None
        if isinstance(measured, dict):
            self._rows[report.nodeid] = measured

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        groups: dict[str, float] = {}
        tiers = dict.fromkeys(TIERS, 0.0)
        for nodeid, row in self._rows.items():
            groups[group_of(nodeid)] = groups.get(group_of(nodeid), 0) + row["cpu_s"]
            tiers[str(row["tier"])] += row["cpu_s"]
        found = {
            "tiers": {name: round(seconds, 1) for name, seconds in tiers.items()},
            "groups": _largest(groups, 0.5),
            "tests": {
                name: self._rows[name] for name in _largest({n: row["cpu_s"] for n, row in self._rows.items()}, 1.0)
            },
        }
        self._path.write_text(json.dumps(found, indent=1) + "\n")


def _largest(seconds: dict[str, float], least: float) -> dict[str, float]:
    ordered = sorted(seconds.items(), key=lambda pair: -pair[1])
    return {name: round(value, 1) for name, value in ordered if value >= least}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--durations-file"):
        config.pluginmanager.register(_Durations(config.getoption("--durations-file")), "durations")
