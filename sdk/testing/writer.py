"""A program that does nothing but save checkpoints, for those who kill it. No framework is loaded.

Each step's state is a function of the step, so that a restore shows whether it is wholly that step's.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from ..checkpoint import opening
from ..checkpoint.contents import Array, Contents
from ..checkpoint.names import CheckpointId
from ..checkpoint.policy import Policy
from ..checkpoint.restore import Checkpoint
from ..checkpoint.saver import AsyncSaver
from ..clock import SystemClock
from ..storage.store import Store

SIZES = {"dense/kernel": 90_000, "dense/bias": 3, "empty": 0, "embedding": 250_000}
OBJECT_BYTES = 64 << 10


def state(step: int) -> dict[str, bytes]:
    """Return the arrays of a step."""
    return {name: random.Random(f"{name}/{step}").randbytes(size) for name, size in SIZES.items()}  # noqa: S311


def contents(step: int) -> Contents:
    """Return what is saved at a step."""
    arrays = tuple(_array(name, data) for name, data in state(step).items())
    return Contents(arrays, {"rng": f"the generator's state at step {step}".encode()})


def difference(checkpoint: Checkpoint) -> str | None:
    """Return how a checkpoint differs from the state of its step; None if it does not."""
    step = checkpoint.manifest.step
    wanted = state(step)
    found = {name: bytes(array.data) for name, array in checkpoint.arrays.items()}
    wrong = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if wrong or checkpoint.blobs != {0: contents(step).blobs} or checkpoint.manifest.position != {"step": step}:
        return f"the checkpoint of step {step} is not that step's: {', '.join(wrong) or 'blobs or position'}"
    return None


def write(store: Store, attempt: int, acks: str, *, steps: int = 1_000_000, log: Callable[[str], None] = print) -> None:
    """Restore, and save each step after that until this process is killed.

    Args:
        store: where to.
        attempt: the attempt's number.
        acks: a file that gets a line for each acknowledged checkpoint, durable before the next save begins.
        steps: how many to save.
        log: takes sentences.
    """
    clock = SystemClock()
    opened = opening.open_first(store, attempt, f"writer {os.getpid()}", clock, log=log)
    start = opened.manifest.step if opened.manifest else 0
    saver = AsyncSaver(
        store,
        opened,
        task="chief-0",
        rank=0,
        tasks=["chief-0"],
        policy=Policy(keep_last=2, best="loss", on_busy="block"),
        clock=clock,
        about={"run_id": "writer"},
        log=log,
        object_bytes=OBJECT_BYTES,
    )
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
    """Return the places of the acknowledged checkpoints; a line that was torn by the kill was not acknowledged."""
    try:
        with open(acks, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [CheckpointId(*map(int, line.split())) for line in lines]


def promised(acks: str) -> set[CheckpointId]:
    """Return the places of the acknowledged checkpoints that nothing may remove: the last one, and the best one."""
    places = acked(acks)
    return {places[-1], min(places, key=lambda checkpoint_id: loss(checkpoint_id.step))} if places else set()


def loss(step: int) -> float:
    """Return the metric of a step."""
    return random.Random(step).random()  # noqa: S311


def _array(name: str, data: bytes) -> Array:
    return Array(path=name, dtype="uint8", shape=(len(data),), data=lambda: memoryview(data))
