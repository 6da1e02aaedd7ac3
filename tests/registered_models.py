"""Versions of models, registered without a run: `register(root, "digits", {"model.keras": b"..."})`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from support import FakeClock

from sdk.model_registry.lineage import Candidate
from sdk.model_registry.models import Model, ModelVersion

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def register(root: str | Path, name: str, files: Mapping[str, bytes], *, promote: bool = True) -> ModelVersion:
    """Add a version with these files, and make it the champion."""
    model = Model(str(root), name, FakeClock(1000.0))
    number = len(model.numbers())
    with tempfile.TemporaryDirectory() as folder:
        for path, data in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        made = Candidate(
            folder=folder,
            run=f"{name}-aaaaa{_LETTERS[number]}",
            run_url=f"{root}/runs/{name}-aaaaa{_LETTERS[number]}",
            state="SUCCEEDED",
            bundle=f"{number:064x}",
            program="train.py",
            args=(),
            source="model",
            metrics={},
            data={},
        )
        version = model.add(made)
    return model.promote(version.number) if promote else version
