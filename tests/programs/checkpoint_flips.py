"""Flips the bits of a stored checkpoint, one at a time, and checks that each flip is detected."""

from collections.abc import Callable
from pathlib import Path

from sdk.checkpoint import catalog, opening, restore
from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.envelope import unwrap
from sdk.checkpoint.opening import OpenStore, TaskInfo
from sdk.checkpoint.saver import AsyncSaver
from sdk.clock import SystemClock
from sdk.errors import CheckpointError, CorruptObjectError
from sdk.job.policies import Checkpoints
from sdk.storage.posix_store import PosixStore
from sdk.storage.store import Store


def save_small(folder: str) -> str:
    """Save a checkpoint of two tasks with a few bytes each, and pin it; return its commit."""
    store, clock = PosixStore(folder), SystemClock()
    tasks = ("chief-0", "worker-0")
    found = opening.open_first(store, 0, "flips", clock)
    array = Array("a", "uint8", (70,), lambda: memoryview(bytes(range(70))))
    savers, tickets = [], []
    for rank, task in enumerate(tasks):
        info = TaskInfo(run_id="flips", attempt=0, task=task, tasks=tasks)
        savers.append(AsyncSaver(OpenStore(store=store, opening=found, info=info, policy=Checkpoints(on_busy="block"))))
        contents = Contents(() if rank else (array,), {"rng": b"12"})
        tickets.append(savers[-1].save(contents, step=1, position={"step": 1}))
    commits = [ticket.wait(20).key for ticket in tickets if ticket]
    for saver in savers:
        saver.close()
    catalog.pin(store, commits[0], "good")
    return commits[0]


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
