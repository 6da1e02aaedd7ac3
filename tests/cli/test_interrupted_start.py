"""Ctrl-C from the first import of the command to its last moment: one sentence, code 130, no traceback."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from support import LIMIT_S, full_only

pytestmark = pytest.mark.process
WAYS = {"module": [sys.executable, "-m", "sdk"], "script": [f"{sysconfig.get_path('scripts')}/podlift"]}
# Presses Ctrl-C at one of the steps that Python's audit events show after podlift's first file was opened.
HOOK = """
import os, signal, sys
steps, begun = int(os.environ["STEP"]), False
def hook(event, arguments):
    global steps, begun
    begun = begun or (event == "exec" and arguments[0].co_filename.endswith("/interrupts.py"))
    if not begun or event not in ("import", "exec", "open"):
        return
    steps -= 1
    if steps == 0:
        os.kill(os.getpid(), signal.SIGINT)
if steps > 0:
    sys.addaudithook(hook)
else:
    import atexit
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
"""
LAST = 0
ALWAYS = {("module", 2), ("script", 40), ("module", 700), ("script", LAST)}


@pytest.fixture
def pressed(tmp_path: Path, environment: Callable[..., dict[str, str]]) -> Callable[[str, int], tuple[int, str]]:
    """Run `podlift --version`, press Ctrl-C at a step, and return the exit code and what stderr shows."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)

    def press(way: str, step: int) -> tuple[int, str]:
        variables = environment(STEP=str(step))
        variables["PYTHONPATH"] = f"{tmp_path}:{variables['PYTHONPATH']}"
        words = [*WAYS[way], "--version"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
        return done.returncode, done.stderr

    return press


EACH = list(product(WAYS, (LAST, 2, 3, 6, 14, 30, 40, 60, 100, 220, 400, 700)))


@pytest.mark.parametrize(("way", "step"), [each if each in ALWAYS else full_only(*each) for each in EACH])
def test_ctrl_c_at_any_step_of_a_start_is_one_sentence_with_code_130(pressed, way: str, step: int) -> None:
    assert pressed(way, step) == (130, "podlift: interrupted.\n")
