"""Three ways to run the command: in this process, as a process, in a terminal. None of them waits for ever."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live
from support import LIMIT_S, REPO, Shown, command, finished_run

from sdk.cli import live, screen
from sdk.cli.pace import Update

COMMAND = [sys.executable, "-m", "sdk"]


@pytest.fixture
def environment() -> Callable[..., dict[str, str]]:
    """Return the variables for a process of the command."""
    return lambda **more: {**os.environ, "PYTHONPATH": str(REPO), "COLUMNS": "120", "TERM": "xterm", **more}


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    """Run the command in this process: `here("plan", "train.py")`."""
    return partial(command, capsys)


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make stdout a terminal without colours from this call on."""

    def change() -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        # Not screen.on_terminal: a module that is first imported meanwhile would keep it for the tests after this one.
        monkeypatch.setattr(screen, "is_terminal", lambda stream: stream is sys.stdout)

    return change


@pytest.fixture
def drawn() -> Callable[..., list[str]]:
    """Draw updates on a terminal, and return all that it shows after each and at the end: `drawn(80, Update(...))`."""

    def draw(width: int, *updates: Update, run: Any = "digits-aaaaaa") -> list[str]:
        shown, texts = io.StringIO(), list[str]()
        with Live(console=Console(file=shown, force_terminal=True, width=width), auto_refresh=False) as screen:
            view = live.Drawing(screen)
            for update in updates:
                view.show(SimpleNamespace(id=run), update)  # type: ignore[arg-type]
                texts.append(shown.getvalue())
        return [*texts, shown.getvalue()]

    return draw


@pytest.fixture
def project(write: Callable[..., Path]) -> Callable[..., Path]:
    """Write more files beside train.py, which prints 1: `project("podlift.toml", "workers = 2")`."""
    write("train.py", "print(1)")
    return write


@pytest.fixture
def ended_runs(root: Path) -> Callable[..., list[str]]:
    """Make runs that have ended, each newer than the one before: `ended_runs("digits-aaaaaa", "digits-bbbbbb")`."""

    def make(*names: str) -> list[str]:
        for age, name in enumerate(names):
            os.utime(finished_run(root, name).plan, (1000 + age, 1000 + age))
        return [str(root / "runs" / name) for name in names]

    return make


@pytest.fixture
def podlift(environment: Callable[..., dict[str, str]]) -> Callable[..., Shown]:
    """Run the command as a process; `shell` may say where its output goes."""

    def run(*words: str, shell: str = "", **variables: str) -> Shown:
        line = ["/bin/sh", "-c", f'exec "$@" {shell}', "sh", *COMMAND, *words]
        about = {"env": environment(**variables), "timeout": LIMIT_S}
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", **about)
        return Shown(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def in_terminal(environment: Callable[..., dict[str, str]]) -> Callable[..., tuple[int, str]]:
    """Run the command in a terminal; press Ctrl-C once for each of `at`, when the terminal shows that text."""

    def run(*words: str, at: tuple[str, ...]) -> tuple[int, str]:
        variables, deadline = environment(), time.monotonic() + LIMIT_S
        pid, terminal = pty.fork()
        if pid == 0:
            # A shell's background jobs and their children ignore Ctrl-C.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(sys.executable, [*COMMAND, *words], variables)
        shown, code = b"", None
        try:
            for text in (*at, None):
                shown += _read_until(terminal, text, deadline, shown)
                if text is not None:
                    os.write(terminal, b"\x03")
            while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
                assert time.monotonic() < deadline, f"does not end, shows {shown!r}"
                time.sleep(0.01)
            code = os.waitstatus_to_exitcode(ended[1])
        finally:
            os.close(terminal)
            if code is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return code, shown.decode("utf-8", "replace")

    return run


def _read_until(terminal: int, text: str | None, deadline: float, before: bytes) -> bytes:
    """Return the output of the terminal until the text is there; for None, until no process has it open."""
    found = b""
    while text is None or text.encode() not in found:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            pytest.fail(f"waited in vain for {text or 'the end'!r}; the terminal shows {(before + found)!r}")
        try:
            data = os.read(terminal, 4096)
        except OSError:  # Linux says so when the last process has closed the terminal
            data = b""
        if not data:
            assert text is None, f"ended without {text!r}: {(before + found)!r}"
            break
        found += data
    return found
