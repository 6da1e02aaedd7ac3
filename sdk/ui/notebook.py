"""A run in a notebook's cell, and following it there or in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any, Protocol

from ..clock import Clock
from ..errors import PodliftError
from ..status import Status
from . import gather, pages

# Curves of a cell, and the time between two looks at a run.
_CURVES, _POLL_S = 12, 1.0
_INTERRUPTS = 3


class Watched(gather.SeenRun, Protocol):
    def following(self) -> Generator[Status]: ...


def cell(run: gather.SeenRun, ref: str, clock: Clock, note: str = "") -> str:
    """Return the HTML of a run for a notebook, without scripts."""
    try:
        view = gather.look(run, ref, clock, brief=True)
    except PodliftError as error:
        view = gather.unreadable(run.id, run.url, error)
    return pages.render("cell.html", view=view, curves=sorted(view.curves.items())[:_CURVES], note=note)


def watch(run: Watched, ref: str, clock: Clock) -> None:
    """Show a run until it ends or the user interrupts, which leaves the run alone."""
    notebook = sys.modules.get("IPython")
    if notebook is not None and hasattr(notebook.get_ipython(), "kernel"):
        _in_cell(run, ref, clock, notebook.display)
    else:
        _in_terminal(run.url)


def _in_cell(run: Watched, ref: str, clock: Clock, display: Any) -> None:
    handle = display.display(display.HTML(cell(run, ref, clock)), display_id=True)
    try:
        with closing(run.following()) as statuses:
            for status in statuses:
                handle.update(display.HTML(cell(run, ref, clock)))
                if not status.state.terminal:
                    clock.sleep(_POLL_S)
    except KeyboardInterrupt:
        note = f"Stopped watching. The run continues. Next: run.watch(), or podlift wait {ref}"
        handle.update(display.HTML(cell(run, ref, clock, note)))


def _in_terminal(url: str) -> None:
    # In another process, because this room cannot import the command.
    command = [sys.executable, "-m", "sdk", "wait", url]
    with subprocess.Popen(command, env={**os.environ, "PYTHONSAFEPATH": "1"}) as process:
        for _ in range(_INTERRUPTS):
            try:
                process.wait()
                return
            except KeyboardInterrupt:
                # It got the signal too, and asks for a second one, which cancels.
                continue
        process.terminate()
