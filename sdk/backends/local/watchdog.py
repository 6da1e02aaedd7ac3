"""Starts a process, and starts it again if a signal killed it, as the kernel does when memory runs out.

It runs by path and imports only the standard library, because it stays as long as the run does:
`python -I -S watchdog.py COMMAND...`
"""

from __future__ import annotations

import os
import sys
import time

# A process that keeps dying at once is not restarted for ever. The next client reports why.
_SHORT_S = 10.0
# Before each restart of a row of them.
_WAITS_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def main(command: list[str]) -> int:
    """Return the process's exit code once it exits, or 1 if it was killed too often."""
    short = 0
    while True:
        started = time.monotonic()
        child = os.posix_spawn(command[0], command, os.environ)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code >= 0:
            return code
        short = short + 1 if time.monotonic() - started < _SHORT_S else 0
        if short == len(_WAITS_S):
            sys.stderr.write(f"Killed by signal {-code} soon after its start, {short} times in a row: not restarted.\n")
            return 1
        sys.stderr.write(f"Killed by signal {-code}: restarted.\n")
        time.sleep(_WAITS_S[short])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
