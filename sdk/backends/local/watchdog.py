"""Starts a process, and again when a signal has ended it, as the kernel does when memory runs out.

It runs by path, with nothing but the standard library, because it stays as long as the run does:
`python -I -S guard.py COMMAND...`
"""

from __future__ import annotations

import os
import sys
import time

# One that never lives long is left alone in the end: the next client tells its user why.
_SHORT_S, _MOST = 10.0, 5
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 30.0


def main(command: list[str]) -> int:
    """Return the process's exit code once it has ended by itself, or 1 if it is killed again and again.

    Args:
        command: a path and its arguments. It gets this process's variables, its group and what it has open.
    """
    short = 0
    while True:
        started = time.monotonic()
        child = os.posix_spawn(command[0], command, os.environ)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code >= 0:
            return code
        short = short + 1 if time.monotonic() - started < _SHORT_S else 0
        if short > _MOST:
            sys.stderr.write(f"Ended by signal {-code}, the {short}th time at once: left alone.\n")
            return 1
        sys.stderr.write(f"Ended by signal {-code}: started again.\n")
        sys.stderr.flush()
        time.sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**short))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
