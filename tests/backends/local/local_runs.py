"""Questions of tests of local runs to their records and this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from support import REPO, until

import sdk
from sdk.records.events import Event
from sdk.records.recorder import read_events


def client(program: str) -> str:
    """Return the output of a Python program in another process."""
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


def events(run: sdk.Run, kind: str, attempt: int | None = None) -> list[Event]:
    return [event for event in read_events(run.plan.paths, (kind,)) if attempt in (None, event.attempt)]


def event(run: sdk.Run, kind: str) -> Event:
    """Wait for the first record of this kind, and return it."""
    until(lambda: events(run, kind), run.why)
    return events(run, kind)[0]


def supervisor(run: sdk.Run) -> int:
    """Return the process id of the run's newest supervisor."""
    newest = max(events(run, "started"), key=lambda each: each.time)
    return int(newest.data["supervisor"].split(":")[1])


def pid_of(run: sdk.Run, task: str, attempt: int = 1) -> int:
    (begun,) = events(run, "attempt_started", attempt)
    return int(begun.data["pids"][task])


def codes(run: sdk.Run, attempt: int) -> list[int]:
    """Return the exit codes of an attempt's tasks."""
    return [each.data["code"] for each in events(run, "exited", attempt)]


def attempts_said(run: sdk.Run) -> list[str]:
    return [line.text for line in run.logs() if line.text.startswith("attempt")]


def why_fresh(run: sdk.Run) -> list[str]:
    """Return why the tasks of each attempt were not forked; "" where they were."""
    return [str(begun.data["why_fresh"]) for begun in events(run, "attempt_started")]


def processes(holds: Callable[[bytes, bytes], bool]) -> dict[int, str]:
    """Return the command lines of processes whose command and environment are such, by their pids."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                words, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                if holds(words, environ):
                    found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


def left_alive(run: sdk.Run) -> list[int]:
    """Pids of processes that still know this run from their environment; forks do not: mark the test `cold`."""
    needle = f"PODLIFT_RUN={run.url}".encode()
    return [*processes(lambda _, environ: needle in environ.split(b"\0"))]
