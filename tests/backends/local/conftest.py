"""A fake TensorFlow for the tasks of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sdk.job.job import FromCaller


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """Return a function that writes the text of a `tensorflow`, and returns the variables with which tasks import that one."""
    site = tmp_path / "site"

    def make(text: str = "", **others: str) -> dict:
        for name, content in {"keras": "", **others, "tensorflow": text}.items():
            (site / name).mkdir(parents=True, exist_ok=True)
            (site / name / "__init__.py").write_text(content)
        monkeypatch.setenv("PYTHONPATH", str(site))
        return {"PYTHONPATH": FromCaller()}

    return make
