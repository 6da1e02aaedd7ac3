"""Collects the measurements of the tutorials; once all have run, they write docs/reference/tensorflow-tutorials.md."""

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
