"""The names of schedules and sweeps in buckets, which this machine keeps for hints."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdk.records import named


def test_a_name_that_was_forgotten_is_hinted_at_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    named.remember("schedule", ["daily", "weekly"], "gs://bucket/podlift")
    # A root that this machine has never listed has names that it does not know.
    for name in ("weekly", "unknown"):
        named.forget("schedule", name)
    assert named.remembered("schedule") == {"daily": "gs://bucket/podlift"}
