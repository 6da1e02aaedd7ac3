"""What a training has left, as its checkpoints tell it, and in what two trainings differ. Bit by bit, without NumPy."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import catalog, restore
from ..checkpoint.restore import Checkpoint, LoadedArray
from ..errors import CorruptCheckpointError
from ..planning.roots import in_bucket
from ..spec.layout import RunPaths
from ..storage.registry import open_store
from ..storage.store import Store

# To say by how much arrays differ, numbers are compared one by one: of large arrays, the first ones.
_MOST_NUMBERS = 1_000_000
_CODES = {"float16": "e", "float32": "f", "float64": "d", "int32": "i", "int64": "q"}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One array that is not the same in two trainings.

    Args:
        array: its path; "steps" or "stages" where not even their number is the same.
        stage: of which stage's end, from 1; 0 where the step says it.
        step: behind so many steps.
        largest: by how much its numbers differ at most; None where that cannot be told.
    """

    array: str
    stage: int = 0
    step: int = 0
    largest: float | None = None

    def __str__(self) -> str:
        stage = f" of stage {self.stage}" if self.stage > 1 else ""
        by = "" if self.largest is None else f", by up to {self.largest:.3g}"
        return f"{self.array}{stage} at step {self.step}{by}"


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a training.

    Args:
        store: its checkpoints.
        checkpoint: the last of them.
    """

    store: Store
    checkpoint: Checkpoint

    @property
    def steps(self) -> int:
        """Training steps in all."""
        return self.checkpoint.manifest.step

    @property
    def stages(self) -> Sequence[Mapping[str, Any]]:
        """Every `fit` and every loop, in their order."""
        return list(self.checkpoint.manifest.position["stages"])

    @property
    def histories(self) -> list[Any]:
        """What each `fit` has returned."""
        return [stage["history"] for stage in self.stages]

    def of_stage(self, number: int) -> Checkpoint | None:
        """Return the end of a stage, from 0; None where it was not kept."""
        if number == len(self.stages) - 1:
            return self.checkpoint
        key = self.stages[number]["commit"]
        try:
            return restore.read(self.store, key) if key else None
        except CorruptCheckpointError:
            # Removed as too old: the ends of the newest stages are kept, not of all.
            return None


def end_of(paths: RunPaths) -> End | None:
    """Return the end of the training of a run whose directory is a folder or in a bucket; None where nothing was saved.

    Raises:
        StoreError: the checkpoints cannot be read.
        CorruptCheckpointError: there are some, and none verifies.
    """
    if not in_bucket(paths.store) and not Path(paths.store).is_dir():
        return None
    store = open_store(paths.store)
    found = restore.newest(store, lambda line: None, quarantine=False, run_id=paths.run_id)
    return None if found is None else End(store=store, checkpoint=found)


def digest(checkpoint: Checkpoint) -> str:
    """Return the sha256 of all arrays, in the order of their paths."""
    found = hashlib.sha256()
    for path, array in sorted(checkpoint.arrays.items()):
        found.update(json.dumps([path, array.dtype, list(array.shape)]).encode())
        found.update(array.data)
    return found.hexdigest()


def compare_ends(one: End, other: End) -> tuple[list[Difference], list[int]]:
    """Return in what the ends differ, and the numbers of the stages, from 1, whose ends could not be compared."""
    if one.steps != other.steps:
        return [Difference(array="steps", step=min(one.steps, other.steps), largest=abs(one.steps - other.steps))], []
    if len(one.stages) != len(other.stages):
        return [Difference(array="stages", step=one.steps)], []
    found: list[Difference] = []
    left_out: list[int] = []
    for number in range(len(one.stages)):
        mine, its = one.of_stage(number), other.of_stage(number)
        if mine is None or its is None:
            left_out.append(number + 1)
        else:
            found += differences(mine, its, stage=number + 1)
    return found, left_out


def differences(one: Checkpoint, other: Checkpoint, *, stage: int = 0) -> list[Difference]:
    """Return which arrays differ: variables of model, optimizer and metrics, and what each replica holds for itself."""
    step = one.manifest.step
    found = []
    # In the order of the checkpoint: what a model computes first comes first.
    for path in dict.fromkeys([*one.arrays, *other.arrays]):
        mine, its = one.arrays.get(path), other.arrays.get(path)
        if not _same(mine, its):
            found.append(Difference(array=path, stage=stage, step=step, largest=_largest(mine, its)))
    for rank in sorted({*one.blobs, *other.blobs}):
        if one.blobs.get(rank, {}).get("own") != other.blobs.get(rank, {}).get("own"):
            found.append(Difference(array=f"what the replicas of task {rank + 1} hold", stage=stage, step=step))
    return found


def first_differences(one: Store, other: Store) -> list[Difference]:
    """Return which arrays differ in the first checkpoints that do, of those that both have at the same step."""
    theirs = {entry.step: entry.key for entry in catalog.list_checkpoints(other)}
    for step, key in sorted((entry.step, entry.key) for entry in catalog.list_checkpoints(one)):
        if step in theirs and (found := differences(restore.read(one, key), restore.read(other, theirs[step]))):
            return found
    return []


def downgrades(store: Store) -> Iterator[str]:
    """Yield what the manifests say of state that is not restored exactly, each sentence once."""
    seen = set()
    for entry in catalog.list_checkpoints(store):
        for sentence in entry.downgrades:
            if sentence not in seen:
                seen.add(sentence)
                yield sentence


def _same(one: LoadedArray | None, other: LoadedArray | None) -> bool:
    if one is None or other is None:
        return False
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.data == other.data


def _largest(one: LoadedArray | None, other: LoadedArray | None) -> float | None:
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return None
    code = _CODES.get(one.dtype)
    if code is None:
        return None
    mine, its = one.data.cast(code), other.data.cast(code)  # type: ignore[call-overload]
    largest = max(
        (abs(a - b) for a, b in zip(mine[:_MOST_NUMBERS], its[:_MOST_NUMBERS], strict=True) if a != b), default=math.nan
    )
    return None if math.isnan(largest) else float(largest)
