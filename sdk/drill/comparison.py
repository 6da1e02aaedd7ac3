"""Compares the checkpoints of two trainings, bit by bit and without NumPy."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ..checkpoint import catalog, restore
from ..checkpoint.restore import Checkpoint, LoadedArray
from ..errors import CorruptCheckpointError
from ..job.layout import RunPaths
from ..planning.roots import in_bucket
from ..storage.registry import open_store
from ..storage.store import Store

# The largest difference of two arrays is searched in their first numbers only.
_MOST_NUMBERS = 1_000_000
_CODES = {"float16": "e", "float32": "f", "float64": "d", "int32": "i", "int64": "q"}


@dataclass(frozen=True, kw_only=True)
class ArrayDifference:
    array: str  # its path; "steps" or "phases" if their number differs
    phase: int = 0  # the phase that was compared at its end, from 1; 0 if the step identifies it
    step: int = 0  # after this step
    largest: float | None = None  # largest difference of two numbers; None if unknown

    def __str__(self) -> str:
        phase = f" of phase {self.phase}" if self.phase > 1 else ""
        by = "" if self.largest is None else f", by up to {self.largest:.3g}"
        return f"{self.array}{phase} at step {self.step}{by}"


class _Phase(TypedDict):
    commit: str  # key of the checkpoint at its end, "" if there is none
    history: object


@dataclass(frozen=True, kw_only=True)
class TrainingEnd:
    store: Store
    checkpoint: Checkpoint  # the last one

    @property
    def steps(self) -> int:
        return self.checkpoint.manifest.step

    @property
    def phases(self) -> list[_Phase]:
        """Every `fit` and every custom loop, in order."""
        return list(self.checkpoint.manifest.position["stages"])

    @property
    def histories(self) -> list[object]:
        return [phase["history"] for phase in self.phases]

    def of_phase(self, number: int) -> Checkpoint | None:
        """Return the checkpoint at the end of a phase, from 0; None if it was not kept."""
        if number == len(self.phases) - 1:
            return self.checkpoint
        key = self.phases[number]["commit"]
        try:
            return restore.read(self.store, key) if key else None
        except CorruptCheckpointError:
            # Retention keeps the ends of the newest phases only.
            return None


def end_of(paths: RunPaths) -> TrainingEnd | None:
    """Return the end of a run's training; None if nothing was saved."""
    if not in_bucket(paths.store) and not Path(paths.store).is_dir():
        return None
    store = open_store(paths.store)
    checkpoint = restore.newest(store, quarantine=False, run_id=paths.run_id)
    return None if checkpoint is None else TrainingEnd(store=store, checkpoint=checkpoint)


def digest(checkpoint: Checkpoint) -> str:
    """Return the sha256 of all arrays, in the order of their paths."""
    total = hashlib.sha256()
    for path, array in sorted(checkpoint.arrays.items()):
        total.update(json.dumps([path, array.dtype, list(array.shape)]).encode())
        total.update(array.data)
    return total.hexdigest()


def compare_ends(one: TrainingEnd, other: TrainingEnd) -> tuple[list[ArrayDifference], list[int]]:
    """Return the differences, and the numbers of the phases, from 1, without a comparison of their ends."""
    if one.steps != other.steps:
        return [
            ArrayDifference(array="steps", step=min(one.steps, other.steps), largest=abs(one.steps - other.steps))
        ], []
    if len(one.phases) != len(other.phases):
        return [ArrayDifference(array="phases", step=one.steps)], []
    different: list[ArrayDifference] = []
    left_out: list[int] = []
    for number in range(len(one.phases)):
        mine, its = one.of_phase(number), other.of_phase(number)
        if mine is None or its is None:
            left_out.append(number + 1)
        else:
            different += differences(mine, its, phase=number + 1)
    return different, left_out


def differences(one: Checkpoint, other: Checkpoint, *, phase: int = 0) -> list[ArrayDifference]:
    """Return the arrays that differ: variables of model, optimizer and metrics, and the state of single replicas."""
    step = one.manifest.step
    different = []
    # In the order of the checkpoint, which is the order of the model's layers.
    for path in dict.fromkeys([*one.arrays, *other.arrays]):
        mine, its = one.arrays.get(path), other.arrays.get(path)
        largest = None
        if mine is not None and its is not None and (mine.dtype, mine.shape) == (its.dtype, its.shape):
            if mine.data == its.data:
                continue
            largest = _largest(mine, its)
        different.append(ArrayDifference(array=path, phase=phase, step=step, largest=largest))
    for rank in sorted({*one.blobs, *other.blobs}):
        if one.blobs.get(rank, {}).get("own") != other.blobs.get(rank, {}).get("own"):
            different.append(ArrayDifference(array=f"the state of task {rank + 1}'s replicas", phase=phase, step=step))
    return different


def first_differences(one: Store, other: Store) -> list[ArrayDifference]:
    """Return the differences of the first checkpoints at the same step that differ."""
    theirs = {entry.step: entry.key for entry in catalog.list_checkpoints(other)}
    for step, key in sorted((entry.step, entry.key) for entry in catalog.list_checkpoints(one)):
        if step in theirs and (different := differences(restore.read(one, key), restore.read(other, theirs[step]))):
            return different
    return []


def downgrades(store: Store) -> list[str]:
    """Return the sentences of the manifests about state that is not restored exactly."""
    return [sentence for entry in catalog.list_checkpoints(store) for sentence in entry.downgrades]


def _largest(one: LoadedArray, other: LoadedArray) -> float | None:
    code = _CODES.get(one.dtype)
    if code is None:
        return None
    mine, its = one.data.cast(code), other.data.cast(code)  # type: ignore[call-overload]
    largest = max(
        (abs(a - b) for a, b in zip(mine[:_MOST_NUMBERS], its[:_MOST_NUMBERS], strict=True) if a != b), default=math.nan
    )
    return None if math.isnan(largest) else float(largest)
