"""Write-once files on a disk. A reader sees all of a file or nothing of it; two writers of one name never both succeed."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

# A file that says whose the folder is in which it lies: nothing there is any program's code.
MARKER = ".podlift-folder"
EMULATED, RESULTS = "emulator", "results"


def mark(folder: str | Path, whose: str) -> None:
    """Say in a folder whose it is: EMULATED or RESULTS."""
    with suppress(FileExistsError), Path(folder, MARKER).open("x", encoding="utf-8") as file:
        file.write(f"{whose}\n")


def put_new(path: str, data: bytes) -> None:
    """Create the file with all its bytes, or fail; durable when this returns.

    Raises:
        FileExistsError: somebody created it before.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # link() is the create-if-absent of POSIX: rename() would replace what another writer has acknowledged.
        os.link(part, target)
    finally:
        part.unlink(missing_ok=True)


def list_names(folder: str) -> list[str]:
    """Return the sorted names of the finished files in a folder; none if the folder does not exist yet."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.endswith(".part"))  # noqa: PTH208
    except FileNotFoundError:
        return []
