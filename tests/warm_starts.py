"""Lets the runs of tests begin as forks (`sdk/backends/local/warm.py`), which saves imports, not what a program computes.

A run of a test marked `tensorflow` is a fork of a process that has imported TensorFlow, one of a test marked `process` of one
with podlift alone. A test marked `cold`, and each one with --cold, starts its processes anew.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from sdk.backends.local.warm import WarmRuns


class _HeardRuns(WarmRuns):
    """The guard of the tiers hears of each run: a fork of another process is no event of this one."""

    def spawn(self, command: Sequence[str], **more: Any) -> Any:
        sys.audit("podlift.fork", command)
        return super().spawn(command, **more)


_warm: dict[str, WarmRuns] = {}
_MODULES = {"tensorflow": ("tensorflow", "keras"), "process": ()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold", action="store_true", help="start each process of a run anew, as users' runs do")


def _starts(item: pytest.Item) -> AbstractContextManager[None]:
    mark = next(filter(item.get_closest_marker, _MODULES), None)
    cold = item.config.getoption("--cold") or item.get_closest_marker("cold")
    if mark is None or cold or not sys.platform.startswith("linux"):
        return nullcontext()
    return _warm.setdefault(mark, _HeardRuns(*_MODULES[mark]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around the test and its fixtures, those of its module and session included."""
    with _starts(item):
        return (yield)


def pytest_unconfigure() -> None:
    for process in _warm.values():
        process.close()
