"""The root: the folder below which runs, bundles and models live."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath

from . import configfile
from .errors import InputError, Problems
from .packaging.paths import usable

_DEFAULT_ROOT = "~/.podlift"


def resolve_root(root: str | Path | None, environ: Mapping[str, str]) -> str:
    """Return the absolute path of the root: what is given, else `PODLIFT_ROOT`, else the project's file, else the default.

    Raises:
        InputError: it is no path, or a URL: this version keeps runs on disk.
    """
    if root is None:
        root = environ.get("PODLIFT_ROOT") or _of_project() or _DEFAULT_ROOT
    text = str(root)
    if not isinstance(root, (str, PurePath)) or not text:
        raise InputError(f"The root is no folder. Received: {root!r}. Leave it out for {_DEFAULT_ROOT!r}.")
    if "://" in text:
        raise InputError(f"This version keeps runs on disk only. Received: root={text!r}. Use a folder.")
    with usable("The root", text):
        return str(Path(text).expanduser().resolve())


def _of_project() -> str | None:
    # What is wrong with the file is said by who plans a run.
    with suppress(OSError):
        value = configfile.find(Path.cwd(), Problems()).values.get("root")
        return value if isinstance(value, str) else None
    return None


def check_writable(root: str) -> None:
    """Raise where a root cannot be made or written.

    Raises:
        InputError: names the place that is in the way.
    """
    # The only call that says of a name that it is too long.
    with suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(root)
    place = Path(root)
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise InputError(f"The root cannot be made: {str(place)!r} is a file. Received: {root!r}.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(
            f"The root cannot be written: no permission for {str(place)!r}. Received: {root!r}. Name another (--root)."
        )
