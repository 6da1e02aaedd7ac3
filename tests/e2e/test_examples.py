"""Every example, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import REPO


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ex01_submit.py", "model: ['digits.keras']"),
        ("ex02_function.py", "'weight': 0.98"),
    ],
)
def test_an_example_does_what_it_says(name: str, said: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, name]
    shown = subprocess.run(command, capture_output=True, text=True, env=env, cwd=REPO / "examples", timeout=300)
    assert shown.returncode == 0, shown.stderr
    assert said in shown.stdout
