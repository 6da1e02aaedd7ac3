"""Fixtures with which the runs of tests begin as forks (`sdk/backends/local/warm.py`), unless pytest is called with --cold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from sdk.backends.local.warm import WarmRuns


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold", action="store_true", help="start each process of a run anew, as users' runs do")


def _warm(request: pytest.FixtureRequest, *modules: str) -> Iterator[WarmRuns | nullcontext[None]]:
    if request.config.getoption("--cold") or not sys.platform.startswith("linux"):
        yield nullcontext()
        return
    process = WarmRuns(*modules)
    yield process
    process.close()


@pytest.fixture(scope="session")
def warm_runs(request: pytest.FixtureRequest) -> Iterator[WarmRuns | nullcontext[None]]:
    """Begins runs as forks of a process that has imported TensorFlow: `with warm_runs: sdk.submit(...)`."""
    yield from _warm(request, "tensorflow", "keras")


@pytest.fixture(scope="session")
def _warm_podlift(request: pytest.FixtureRequest) -> Iterator[WarmRuns | nullcontext[None]]:
    yield from _warm(request)


@pytest.fixture
def warm_podlift(_warm_podlift: WarmRuns | nullcontext[None]) -> Iterator[None]:
    """The runs of a test begin as forks of a process that has imported podlift."""
    with _warm_podlift:
        yield


@pytest.fixture
def warm_tensorflow(warm_runs: WarmRuns | nullcontext[None]) -> Iterator[None]:
    """The runs of a test save themselves the import of TensorFlow, unless pytest was called with --cold."""
    with warm_runs:
        yield
