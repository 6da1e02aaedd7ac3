"""The command `podlift`: prints what the API returns. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

_EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command; every error becomes a message and an exit code."""
    # Imports take most of the startup. A KeyboardInterrupt there may be raised in a callback of the import system, which
    # swallows it: the program would be submitted despite the Ctrl-C. Nothing has started yet, so exit at once.
    usual = signal.getsignal(signal.SIGINT)
    if shell := os.environ.get("_PODLIFT_COMPLETE"):
        from .completion import answer

        return answer(shell, sys.argv[1:], os.environ)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)
    # Imports create no garbage, and collecting would take a tenth of the time of a plan.
    gc.disable()
    from .app import load, run

    load(sys.argv[1:])
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, usual)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # Pressed again while the first one was handled.
        code = _EXIT_INTERRUPTED
    sys.exit(code)


def _exit(*_: object) -> None:
    with suppress(OSError):
        os.write(2, b"podlift: interrupted.\n")
    os._exit(_EXIT_INTERRUPTED)
