"""What of a project's folder is podlift's, or belongs to the command that packages it: none of it is the program's."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ..storage.posix import EMULATED, MARKER, RESULTS

# Which file it is, whatever its name: its device and its number there.
Identity = tuple[int, int]

_FOLDERS = {EMULATED: "the data of podlift emulator", RESULTS: "results of podlift get"}
_BUNDLE = re.compile(r"[0-9a-f]{64}\.tar")
# It holds what was typed and not saved, and comes and goes with its editor.
_SWAP_FILE = re.compile(r"\..+\.sw[a-p]")


def streams() -> dict[Identity, str]:
    """Return the files that this process's output goes to, with what to say of them."""
    numbers = {0, 1, 2}
    for stream in (sys.stdout, sys.stderr):
        # In a notebook and in a test there is no file below it.
        with suppress(AttributeError, OSError, ValueError):
            numbers.add(stream.fileno())
    found = {}
    for number in numbers:
        with suppress(OSError):
            about = os.fstat(number)
            if stat.S_ISREG(about.st_mode) and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                found[about.st_dev, about.st_ino] = "this command writes to it"
    return found


def targets(paths: Iterable[Path]) -> dict[Identity, str]:
    """Return the files that this process is about to write."""
    found = {}
    for path in paths:
        with suppress(OSError):
            about = path.expanduser().stat()
            found[about.st_dev, about.st_ino] = "this command writes it"
    return found


def file(name: str, about: os.stat_result, own: Mapping[Identity, str]) -> str | None:
    """Return why a file is never the program's; None if it may be."""
    if _SWAP_FILE.fullmatch(name):
        return "an editor's swap file"
    return own.get((about.st_dev, about.st_ino))


def folder(place: Path, names: Collection[str]) -> str | None:
    """Return whose a folder is that holds these names, None if it may be the program's."""
    if MARKER in names:
        return _FOLDERS.get(_first_line(place / MARKER), "a folder of podlift")
    if "plan.json" in names and "events" in names:
        return "a run of podlift"
    return "the code of earlier runs" if names and all(map(_BUNDLE.fullmatch, names)) else None


def _first_line(place: Path) -> str:
    try:
        number = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            return file.read(200).decode("utf-8", "replace").partition("\n")[0]
    except OSError:
        return ""
