"""Helpers of all checkpoint tests: states that are a function of their step, and attempts that save them."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import heard

from sdk.checkpoint import opening, restore
from sdk.checkpoint.commit import SaveLimits
from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.manager import CheckpointManager
from sdk.checkpoint.opening import Env, Opening, OpenStore, TaskInfo
from sdk.checkpoint.restore import Checkpoint
from sdk.checkpoint.saver import AsyncSaver
from sdk.clock import SystemClock
from sdk.job.policies import Checkpoints
from sdk.storage.posix_store import PosixStore
from sdk.storage.store import Store

CLOCK = SystemClock()
SIZES = {"dense/kernel": 700, "dense/bias": 3, "empty": 0, "embedding": 2500}
OBJECT_BYTES = 1024


def state(step: int, sizes: Mapping[str, int] = SIZES) -> dict[str, bytes]:
    """The arrays of a step: no two steps have one in common."""
    return {name: random.Random(f"{name}/{step}").randbytes(size) for name, size in sizes.items()}


def contents(step: int, rank: int = 0) -> Contents:
    arrays = tuple(Array(name, "uint8", (len(d),), lambda d=d: memoryview(d)) for name, d in state(step).items())
    chance = random.Random(f"{rank}/{step}")
    return Contents(arrays if rank == 0 else (), {"data": chance.randbytes(9), "rng": chance.randbytes(40)})


def check(checkpoint: Checkpoint | None, ranks: int = 1) -> int:
    """Return the step of a checkpoint, after a bitwise comparison with the content of that step."""
    assert checkpoint is not None
    step = checkpoint.manifest.step
    assert {name: bytes(array.data) for name, array in checkpoint.arrays.items()} == state(step)
    assert checkpoint.blobs == {rank: contents(step, rank).blobs for rank in range(ranks)}
    assert checkpoint.manifest.position == {"step": step}
    return step


class Attempt:
    """One attempt of a run with tasks that live in this process."""

    def __init__(self, store: Store, number: int = 0, *, tasks: int = 1, run_id: str = "test", **policy: Any) -> None:
        self.store, self.run_id = store, run_id
        self.said = heard("checkpoint")
        self.opening: Opening = opening.open_first(store, number, f"attempt {number}", CLOCK, run_id=run_id)
        self.policy = Checkpoints(**{"on_busy": "block", **policy})
        self.savers = [self.saver(rank, tasks) for rank in range(tasks)]

    def saver(self, rank: int, tasks: int, receipts_s: float = 20.0) -> AsyncSaver:
        names = tuple(f"worker-{rank}" for rank in range(tasks))
        info = TaskInfo(run_id=self.run_id, attempt=self.opening.attempt, task=names[rank], tasks=names)
        opened = OpenStore(store=self.store, opening=self.opening, info=info, policy=self.policy, env=Env(clock=CLOCK))
        return AsyncSaver(opened, SaveLimits(receipts_s=receipts_s, object_bytes=OBJECT_BYTES))

    def save(self, step: int, **options: Any) -> str:
        """Save in all tasks, wait until it is acknowledged and tidied up, and return the commit's key."""
        tickets = [
            saver.save(contents(step, rank), step=step, position={"step": step}, **options)
            for rank, saver in enumerate(self.savers)
        ]
        keys = [ticket.wait(60).key for ticket in tickets if ticket]
        for saver in self.savers:
            saver.wait(60)
        return keys[0]

    def close(self) -> None:
        for saver in self.savers:
            saver.close(20)


def manager(folder: Path, attempt: int = 1, *, names: tuple[str, ...] = ("chief-0",), **more: Any) -> CheckpointManager:
    """Return the manager of the first task in an attempt; `more` is its policy, its environment or about the task."""
    policy, env = more.pop("policy", Checkpoints()), more.pop("env", Env())
    info = TaskInfo(**{"run_id": "test", "attempt": attempt, "task": names[0], "tasks": tuple(sorted(names)), **more})
    return CheckpointManager(info, str(folder), policy, env)


def restored(store: Store, ranks: int = 1) -> int:
    """Return the step that a new attempt would begin with, after comparing all its bytes."""
    return check(restore.newest(store), ranks)


def files(store: PosixStore, prefix: str = "") -> list[str]:
    return [stat.key for stat in store.list(prefix)]
