"""What tests of many rooms need: where things are, how long to wait, and waiting itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import sdk
from sdk import logs

REPO = Path(sdk.__file__).resolve().parent.parent
# Runs that earlier versions left, and requests to the letter.
GOLDEN_FILES = Path(__file__).parent / "golden"
PROGRAMS = Path(__file__).parent / "programs"
# Upper bounds of waiting, in seconds: a test that passes never waits that long.
LIMIT_S, LONG_LIMIT_S = 240, 600


def until(condition: Callable[[], object], what: Callable[[], object] = lambda: "it never happened") -> None:
    """Wait until a condition holds; `what` describes the state if it does not within LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


listeners = ExitStack()


def heard(room: str = "") -> list[str]:
    """Return a list that gets the messages that podlift logs in this process, or one room of it, until the test is over."""
    lines: list[str] = []
    listeners.enter_context(logs.heard(lines.append, room))
    return lines


def said(run: sdk.Run, task: str | None = None, attempt: int | None = None) -> list[str]:
    """Return the lines that the program itself printed, without podlift's own."""
    return [line.text for line in run.logs(task=task, attempt=attempt) if not line.text.startswith("podlift: ")]
