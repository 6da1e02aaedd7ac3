"""Collects what the tests of the tutorials measured; once that is everything, they write docs/tutorials.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .report import Measurements


@pytest.fixture(scope="session")
def measurements() -> Iterator[Measurements]:
    found = Measurements()
    yield found
    if found.outcomes:
        found.write()
