"""The command `podlift`: prints what the API returns. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import gc
import os
import signal
import sys

from ..interrupts import leave


def main() -> None:
    """Run the command; every error becomes a message and an exit code."""
    # Imports take most of the startup. A KeyboardInterrupt there may be raised in a callback of the import system, which
    # swallows it: the program would be submitted despite the Ctrl-C. Nothing has started yet, so exit at once.
    usual = signal.getsignal(signal.SIGINT)
    if getattr(usual, "__name__", "") == leave.__name__:
        usual = signal.default_int_handler  # from here on, instead of what `interrupts.py` has done
    if shell := os.environ.get("_PODLIFT_COMPLETE"):
        from .completion import answer

        return answer(shell, sys.argv[1:], os.environ)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    # Imports create no garbage, and collecting would take a tenth of the time of a plan.
    gc.disable()
    from .app import load, run

    load(sys.argv[1:])
    gc.freeze()
    gc.enable()
    try:
        signal.signal(signal.SIGINT, usual)
        code = run(sys.argv[1:])
        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, leave)
    except KeyboardInterrupt:
        # Before the command began, or pressed again while the first one was handled.
        leave()
    sys.exit(code)
