"""The command `podlift`: prints what the API returns. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

_EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command; whatever goes wrong becomes a message and an exit code."""
    # Loading takes most of the start. An exception meanwhile may end in one of the import system's own callbacks, which
    # swallows it: a program would be submitted in spite of the Ctrl-C. Nothing has begun yet, so leave at once.
    usual = signal.getsignal(signal.SIGINT)
    if shell := os.environ.get("_PODLIFT_COMPLETE"):
        from .completion import answer

        return answer(shell, sys.argv[1:], os.environ)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    # Nothing that is loaded here is ever garbage: looking for some takes a tenth of a plan's time.
    gc.disable()
    from .app import load, run

    load(sys.argv[1:])
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, usual)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # Pressed again, while the first one was being explained.
        code = _EXIT_INTERRUPTED
    sys.exit(code)


def _leave(*_: object) -> None:
    with suppress(OSError):
        os.write(2, b"podlift: interrupted.\n")
    os._exit(_EXIT_INTERRUPTED)
