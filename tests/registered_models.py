"""Versions of models, registered without a run: `register(root, "digits", {"model.keras": b"..."})`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock

from sdk.model_registry.lineage import Candidate
from sdk.model_registry.models import Model, ModelVersion
from sdk.model_registry.records import Lineage

# For tests of models in a folder and in a bucket: races and kills run in both by default.
in_both = pytest.mark.parametrize("root", ["folder", "bucket"], indirect=True)

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def candidate(folder: str | Path, run: str, **fields: Any) -> Candidate:
    """Return the model of a run that has succeeded, in a folder."""
    usual = {
        "run_url": "",
        "state": "SUCCEEDED",
        "bundle": "b" * 64,
        "program": "train.py",
        "args": (),
        "source": "model",
    }
    return Candidate(folder=str(folder), lineage=Lineage(run=run, **{**usual, **fields}))


def register(root: str | Path, name: str, files: Mapping[str, bytes], *, promote: bool = True) -> ModelVersion:
    """Add a version with these files, and make it the champion."""
    model = Model(str(root), name, FakeClock(1000.0))
    number = len(model.numbers())
    with tempfile.TemporaryDirectory() as folder:
        for path, data in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        run = f"{name}-aaaaa{_LETTERS[number]}"
        version = model.add(candidate(folder, run, run_url=f"{root}/runs/{run}", bundle=f"{number:064x}"))
    return model.promote(version.number) if promote else version
