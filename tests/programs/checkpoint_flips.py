"""Flips the bits of a stored checkpoint, one at a time, and checks that each flip is detected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sdk.checkpoint import opening, restore
from sdk.checkpoint.envelope import unwrap
from sdk.errors import CheckpointError, CorruptObjectError
from sdk.storage.posix_store import PosixStore
from sdk.storage.store import Store


def undetected(folder: str, commit: str, *, stride: int = 1, first: int = 0) -> tuple[int, list[str]]:
    """Flip every `stride`-th bit of every object in a PosixStore; return the number of flips, and the undetected ones."""
    store = PosixStore(folder)
    flips = 0
    missed = []
    for stat in list(store.list("")):
        path = Path(folder) / stat.key
        data = bytearray(path.read_bytes())
        read = _reader(store, stat.key, commit)
        for bit in range(first % stride, 8 * len(data), stride):
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            data[bit // 8] ^= 1 << bit % 8
            flips += 1
            try:
                read()
                missed.append(f"bit {bit} of {stat.key}")
            except (CheckpointError, CorruptObjectError):
                continue
            finally:
                path.write_bytes(data)
    return flips, missed


def _reader(store: Store, key: str, commit: str) -> Callable[[], object]:
    """Return a function that reads an object like its normal reader."""
    if key == commit or (key.startswith("data/") and key.endswith(".bin")):
        return lambda: restore.read(store, commit)
    if key == "LEASE.json":
        return lambda: opening.decode_lease(store.get(key))
    if key.startswith("pins/"):
        return lambda: restore.pins(store)
    kinds = {"openings/": "opening", "quarantine/": "note", "data/": "receipt", "commits/": "manifest"}
    kind = next(kind for start, kind in kinds.items() if key.startswith(start))
    return lambda: unwrap(kind, store.get(key))
