"""Backends that installed packages add, and runs of a backend that is not registered here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import LIMIT_S, REPO

from sdk.backends import ENTRY_POINTS

pytestmark = pytest.mark.process

PACKAGE = """
from dataclasses import dataclass
from sdk.job.targets import Target
from sdk.testing.fake_backend import FakeBackend

@dataclass(frozen=True, kw_only=True)
class Shelf(Target):
    \"\"\"Which shelf a run is on.

    Args:
        level: Level of the shelf, from the floor.
    \"\"\"

    level: int = 1

class ShelfBackend(FakeBackend):
    options = Shelf

print("the shelf is loaded")
"""


@pytest.fixture
def podlift(tmp_path: Path, root: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command with or without a package that adds backends: `podlift("list", installed=True)`."""
    site = tmp_path / "site"
    places = {"shelf": "shelf_backend:ShelfBackend", "broken": "nothing_here:Backend", "leaving": "leaves:Backend"}
    lines = [f"{name} = {place}" for name, place in {**places, "local": "shelf_backend:ShelfBackend"}.items()]
    for path, text in {
        "leaves.py": "raise SystemExit(3)",
        "shelf_backend.py": PACKAGE,
        "shelf_backend-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: shelf-backend\nVersion: 1.0\n",
        "shelf_backend-1.0.dist-info/entry_points.txt": "\n".join([f"[{ENTRY_POINTS}]", *lines]),
    }.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)

    def run(*words: str, installed: bool) -> subprocess.CompletedProcess[str]:
        paths = [str(REPO), *([str(site)] if installed else [])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PODLIFT_ROOT": str(root)}
        command = [sys.executable, "-m", "sdk", *words]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)

    return run


def test_runs_of_an_installed_backend_are_read_where_it_is_not_installed(podlift, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('on the shelf')")
    submitted = podlift("submit", "train.py", "--backend", "shelf", "--shelf-level", "3", "--json", installed=True)
    assert submitted.returncode == 0, submitted.stderr
    assert json.loads(submitted.stdout)["state"] == "SUCCEEDED", "nothing else is printed there"
    assert "the shelf is loaded\n" in submitted.stderr
    assert "The installed backend 'broken' (nothing_here:Backend) is left out. ModuleNotFoundError" in submitted.stderr
    assert "The installed backend 'leaving' (leaves:Backend) is left out. SystemExit: 3" in submitted.stderr
    assert "The installed backend 'local' (shelf_backend:ShelfBackend) is left out. " in submitted.stderr
    (listed,) = json.loads(podlift("list", "--json", installed=False).stdout)
    assert (listed["state"], listed["backend"]) == ("SUCCEEDED", "shelf")
    state = ["state      SUCCEEDED (done)", "backend    shelf"]
    assert podlift("status", installed=False).stdout.splitlines()[1:3] == state
    assert podlift("logs", installed=False).stdout == "on the shelf\n"
    refused = podlift("plan", "train.py", "--backend", "shelf", installed=False)
    assert (refused.returncode, "Unknown backend. Received: 'shelf'." in refused.stderr) == (2, True)
