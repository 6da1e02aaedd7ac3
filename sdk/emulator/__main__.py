"""The emulator as a child process of a test: `python -m sdk.emulator FOLDER PORT OPTIONS`. It exits when stdin is closed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from .server import serve
from .vertex.lifecycle import JobTimings


def _exit_with_parent() -> None:
    # Reading stdin also notices a parent that was killed.
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # Tests kill it, and their clients continue with the next one.
    options = {"keep_token": True, **(json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})}
    options["timings"] = JobTimings(**options.get("timings", {}))
    serve(Path(sys.argv[1]), port=int(sys.argv[2]), announce=partial(print, flush=True), **options)
