"""The command `podlift`: prints what the API returns. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; whatever goes wrong becomes a message and an exit code."""
    try:
        # Loaded in here because it takes most of the start: a Ctrl-C meanwhile is one short line as well.
        from .app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("podlift: interrupted.", file=sys.stderr)
        code = 130
    sys.exit(code)
