"""The emulator as a child process of a test: `python -m sdk.emulator.gcs FOLDER PORT`. It ends when its stdin is closed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from .server import serve


def _end_with_parent() -> None:
    # Of a parent that was killed nothing else comes here.
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


def _announce(url: str) -> None:
    os.write(1, f"{url}\n".encode())


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    serve(Path(sys.argv[1]), port=int(sys.argv[2]), announce=_announce)
