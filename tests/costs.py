"""`--slow`: names each test that became half slower than tests/costs.json says; `--costs-file=PATH` writes such a file.

A cost is CPU seconds of the test, its fixtures and all processes that it starts: wall time says more about the neighbours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

BEFORE = Path(__file__).parent / "costs.json"
_LEAST_S = 1.0  # cheaper tests are noise
_FACTOR = 1.5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow", action="store_true", help=f"name the tests that became half slower than {BEFORE.name} says"
    )
    parser.addoption(
        "--costs-file", metavar="PATH", help="write the CPU seconds of each test of a second or more as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--slow") or config.getoption("--costs-file"):
        # Without these control groups only children count, and forks of a warm process are none.
        config.option.cold |= not os.access("/sys/fs/cgroup/cpuacct", os.W_OK)
        config.pluginmanager.register(_Costs(config), "measured costs")


class _Cpu:
    """CPU seconds of this process and all that it starts, those included that outlive the test and are no longer children."""

    def __init__(self) -> None:
        self._group: Path | None = Path("/sys/fs/cgroup/cpuacct") / f"podlift-tests-{os.getpid()}"
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:  # no control groups of our own: children count when they have been waited for
            self._group = None

    def seconds(self) -> float:
        if self._group is not None:
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        return sum(os.times()[:4])


class _Costs:
    """Measures where tests run, and compares or writes where their reports arrive."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._cpu = config, _Cpu()
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.cpu_before = self._cpu.seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: Any, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties = [*report.user_properties, ("cpu_s", self._cpu.seconds() - item.cpu_before)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds: Any = dict(report.user_properties).get("cpu_s")
        if report.when == "teardown" and seconds is not None:
            self._seconds[report.nodeid.partition("@")[0]] = round(seconds, 2)
            if seconds >= _LEAST_S:
                self._write()

    def _write(self) -> None:
        """Write the costs so far: a run that is ended in its middle has measured, too."""
        if path := self._config.getoption("--costs-file"):
            costly = {name: seconds for name, seconds in self._seconds.items() if seconds >= _LEAST_S}
            Path(path).write_text(json.dumps(dict(sorted(costly.items(), key=lambda pair: -pair[1])), indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds")
        terminalreporter.write_line(f"{sum(self._seconds.values()):.0f} CPU seconds in {len(self._seconds):,} tests")
        if self._config.getoption("--slow"):
            before = json.loads(BEFORE.read_text())
            for name, seconds in self._seconds.items():
                if seconds >= _LEAST_S and seconds > _FACTOR * before.get(name, max(seconds, _LEAST_S)):
                    terminalreporter.write_line(f"{name} took {seconds} CPU seconds, before {before[name]}")
