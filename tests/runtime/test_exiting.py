"""A task that leaves at once: threads, exit handlers, objects and streams are ended as Python would end them."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import REPO

PROGRAM = """
import atexit, sys, threading, time
from sdk.runtime import bootstrap

class Writer:
    def __init__(self, name): self.name, self.itself = name, self
    def __del__(self): print("dropped", self.name)

writer = Writer("writer")
imported = sys.modules["imported"] = Writer("imported")
imported.file = open(sys.argv[1], "w")
imported.file.write("the last line")
del imported
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
atexit.register(print, "handler")
sys.stdout.write("begun ")
bootstrap.leave_process(7)
"""


@pytest.mark.process
def test_an_exit_behaves_as_the_program_expects_and_modules_are_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(log)], capture_output=True, text=True, cwd=REPO)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.split("\n") == ["begun thread", "handler", "dropped writer", ""]
    assert log.read_text() == "the last line"
