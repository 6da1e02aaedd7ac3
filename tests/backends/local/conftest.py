"""A fake TensorFlow for the tasks of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import sdk
from sdk.job.job import FromCaller


@pytest.fixture
def submit(write: Callable[..., Path]) -> Callable[..., sdk.Run]:
    """Submit a program: `submit("print(1)", workers=2)`."""

    def start(text: str, **settings: object) -> sdk.Run:
        write("train.py", text)
        return sdk.submit("train.py", **settings)

    return start


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """Return a function that writes a `tensorflow` with this text, and returns the variables with which tasks import it."""
    site = tmp_path / "site"

    def make(text: str = "", **others: str) -> dict:
        for name, content in {"keras": "", **others, "tensorflow": text}.items():
            (site / name).mkdir(parents=True, exist_ok=True)
            (site / name / "__init__.py").write_text(content)
        monkeypatch.setenv("PYTHONPATH", str(site))
        return {"PYTHONPATH": FromCaller()}

    return make
