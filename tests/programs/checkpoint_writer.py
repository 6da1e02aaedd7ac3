"""A writer that only saves checkpoints, to be killed. No framework is loaded.

The state is a function of the step, so that a restored state can be compared completely.
"""

from __future__ import annotations

import os
import random

from sdk.checkpoint import opening
from sdk.checkpoint.commit import SaveLimits
from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.names import CheckpointId
from sdk.checkpoint.opening import OpenStore, TaskInfo
from sdk.checkpoint.restore import Checkpoint
from sdk.checkpoint.saver import AsyncSaver
from sdk.clock import SystemClock
from sdk.job.policies import Checkpoints
from sdk.storage.store import Store

SIZES = {"dense/kernel": 90_000, "dense/bias": 3, "empty": 0, "embedding": 250_000}
OBJECT_BYTES = 64 << 10
# Made once: the first policy of a process imports what checks it, which takes a killed writer longer than some saves.
_POLICY = Checkpoints(keep_last=2, best="loss", on_busy="block")


def state(step: int) -> dict[str, bytes]:
    return {name: random.Random(f"{name}/{step}").randbytes(size) for name, size in SIZES.items()}


def contents(step: int) -> Contents:
    arrays = tuple(_array(name, data) for name, data in state(step).items())
    return Contents(arrays, {"rng": f"the generator's state at step {step}".encode()})


def difference(checkpoint: Checkpoint) -> str | None:
    """Return how a checkpoint differs from the state of its step, or None."""
    step = checkpoint.manifest.step
    wanted = state(step)
    found = {name: bytes(array.data) for name, array in checkpoint.arrays.items()}
    wrong = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if wrong or checkpoint.blobs != {0: contents(step).blobs} or checkpoint.manifest.position != {"step": step}:
        return f"the checkpoint of step {step} has other content: {', '.join(wrong) or 'blobs or position'}"
    return None


def write(store: Store, attempt: int, acks: str, *, steps: int = 1_000_000) -> None:
    """Restore, then save every step until killed; `acks` gets a durable line for each acknowledged checkpoint."""
    clock = SystemClock()
    opened = opening.open_first(store, attempt, f"writer {os.getpid()}", clock)
    start = opened.manifest.step if opened.manifest else 0
    info = TaskInfo(run_id="writer", attempt=attempt, task="chief-0", tasks=("chief-0",))
    open_store = OpenStore(store=store, opening=opened, info=info, policy=_POLICY)
    saver = AsyncSaver(open_store, SaveLimits(object_bytes=OBJECT_BYTES))
    handle = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for step in range(start + 1, start + steps + 1):
        ticket = saver.save(contents(step), step=step, position={"step": step}, metrics={"loss": loss(step)})
        if ticket is not None:
            commit = ticket.wait()
            os.write(handle, f"{commit.epoch} {commit.step} 0\n".encode())
            os.fsync(handle)
    saver.close()
    os.close(handle)


def acked(acks: str) -> list[CheckpointId]:
    """Return the acknowledged checkpoints; a line torn by the kill does not count."""
    try:
        with open(acks, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [CheckpointId(*map(int, line.split())) for line in lines]


def promised(acks: str) -> set[CheckpointId]:
    """Return the acknowledged checkpoints that must never be removed: the last one and the best one."""
    found = acked(acks)
    return {found[-1], min(found, key=lambda one: loss(one.step))} if found else set()


def loss(step: int) -> float:
    return random.Random(step).random()


def _array(name: str, data: bytes) -> Array:
    return Array(path=name, dtype="uint8", shape=(len(data),), data=lambda: memoryview(data))
