"""A task that leaves at once: threads, exit handlers, objects and streams are ended as Python would end them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import REPO

PROGRAM = """
import atexit, sys, threading, time
from sdk.runtime import exiting

class Writer:
    def __init__(self, name): self.name, self.itself = name, self
    def __del__(self): print("dropped", self.name)

writer = Writer("writer")
sys.modules["imported"] = Writer("imported")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
atexit.register(print, "handler")
sys.stdout.write("begun ")
exiting.leave(7)
"""


@pytest.mark.process
def test_what_a_program_expects_of_its_exit_happens_and_modules_are_left_alone() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=REPO)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.split("\n") == ["begun thread", "handler", "dropped writer", ""]
