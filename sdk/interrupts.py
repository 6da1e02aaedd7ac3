"""Ctrl-C while the command `podlift` is imported, which takes a while, is one sentence.

The package imports this file before anything else.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports much more
import os
import sys


def _is_command() -> bool:
    """Return whether this process is the command `podlift`, whose first import of podlift this is."""
    first, words = os.path.basename((getattr(sys, "argv", None) or [""])[0]), list(sys.orig_argv)
    if first == "-m":
        return "-m" in words and words[words.index("-m") + 1 :][:1] == ["sdk"]
    return first in ("podlift", "podlift.exe")


def leave(*_: object) -> None:
    """End the command as Ctrl-C does: it has not begun, or is over."""
    try:
        os.write(2, b"podlift: interrupted.\n")
    except OSError:
        pass
    os._exit(130)


# The command's own `main` decides what happens later.
if _is_command() and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, leave)
