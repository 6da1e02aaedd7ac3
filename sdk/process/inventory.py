"""What a folder held when it was made, file by file, and whether it still does: for caches that are used for months."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from ..storage.checksums import sha256

# Python makes these anew wherever they do not fit their source.
_MADE_AGAIN = "__pycache__"


def take(top: str) -> bytes:
    """Return the inventory of a folder: size and sha256 of every file; links and what Python compiles are left out."""
    found = {}
    for path in _files(top):
        place = f"{top}/{path}"
        found[path] = [os.path.getsize(place), sha256(place)]
    return json.dumps(found).encode()


def damage(top: str, inventory: bytes, *, read: bool) -> str:
    """Return the first file that is no longer as it was, with what is wrong; "" where there is none. New files are no damage.

    Args:
        top: the folder.
        inventory: what `take` returned.
        read: compare every byte, too; without it, sizes alone.
    """
    for path, (size, digest) in json.loads(inventory).items():
        place = f"{top}/{path}"
        try:
            if os.path.getsize(place) != size:
                return f"{path} has another size"
            if read and sha256(place) != digest:
                return f"{path} has other bytes"
        except OSError as error:
            return f"{path}: {error.strerror}"
    return ""


def _files(top: str) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name != _MADE_AGAIN)
        for name in sorted(names):
            place = f"{folder}/{name}"
            if os.path.isfile(place) and not os.path.islink(place):
                yield os.path.relpath(place, top)
