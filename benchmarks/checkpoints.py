"""Checkpoints of a Keras model with Adam: what they cost the training, how long they take, and how fast they come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import sdk

from .checkpoints_steps import Training, p99, training
from .gcs import emulator

TITLE = "Checkpoints"
TITLES = {"gcs": "Checkpoints of a training in a bucket"}
PROGRAMS = Path(__file__).parent / "programs"
# A Python in which Orbax is installed beside this TensorFlow (`pip install orbax-checkpoint`); without it Orbax is left out.
ORBAX_PYTHON = os.environ.get("ORBAX_PYTHON")
WAYS = {
    "podlift": "podlift",
    "bucket": "podlift, in a bucket",
    "tf-async": "`tf.train.CheckpointManager`, `enable_async=True`",
    "tf-bucket": "`tf.train.CheckpointManager`, `enable_async=True`, in the same bucket",
    "tf": "`tf.train.CheckpointManager`",
    "backup": "`keras.callbacks.BackupAndRestore`",
    "keras": '`model.save("x.keras")`',
    **({"orbax": "Orbax, `CheckpointManager`"} if ORBAX_PYTHON else {}),
}
_SMALL_MB, _SMALL_EVERY, _SMALL_SAVES = 25, 8, 120
_EVERY, _SAVES = 12, 5
# Size (0 for the one that is asked for), steps from one save to the next, saves: for a bucket on the same two cores.
_BUCKET_SIZES = ((50, 100, 30), (0, 40, 3))
_LIMIT_S = 1200.0
_ROOT = "gs://bucket/podlift"


def run(count: int, *, size_mb: float = 1000, store: str = "posix") -> list[str]:
    """Return the section's lines.

    Args:
        count: rounds; each takes every way once, another one first.
        size_mb: the weights and Adam's slots together.
        store: "gcs" for podlift and TensorFlow in a bucket of the emulator, beside podlift in a folder.
    """
    if store == "gcs":
        return _in_a_bucket(count, size_mb)
    order = [way for way in WAYS if not way.endswith("bucket")]
    small, large, alone = ({way: [] for way in order} for _ in range(3))
    for number in range(count):
        for way in order[number % len(order) :] + order[: number % len(order)]:
            small[way].append(_fit(way, _SMALL_MB, _SMALL_EVERY, _SMALL_SAVES))
            large[way].append(_fit(way, size_mb, _EVERY, _SAVES))
            alone[way].append(_alone(way, size_mb))
    return [
        *_trainings(large, f"A `fit` with {size_mb:.0f} MB of state, saved every {_EVERY} steps."),
        "",
        *_trainings(small, f"A `fit` with {_SMALL_MB} MB of state, saved every {_SMALL_EVERY} steps."),
        "",
        *_saves(alone, size_mb),
        "",
        _SAID.format(count=count),
    ]


_SAID = (
    "Figures are medians (rounds: {count}). In each, every way runs once, in its own process. A stall is the time between the "
    "end of a step that saves and the beginning of the next one, all callbacks included; p99 is taken over all saves of all"
    ' rounds. "Lost per save" is the stall plus the slowdown of the steps until the next save, compared with steps while '
    'nothing is saved. "Memory" is the process\'s peak relative to its peak without saves. "Named" is when everything has '
    "its final name: podlift has synced the files by then; for the others the benchmark syncs them afterwards. The state is"
    " restored from the page cache. podlift and `CheckpointManager` compare a checksum of every byte, `.keras` one of its "
    "archive, the others none."
)


def _in_a_bucket(count: int, size_mb: float) -> list[str]:
    """Return the lines of trainings whose checkpoints go to a folder and to a bucket, of a small size and of the given one."""
    lines, late = [], 0
    for size, every, saves in _BUCKET_SIZES:
        if size > size_mb:
            continue
        size = size or size_mb
        found: dict[str, list[Training]] = {"podlift": [], "bucket": [], "tf-bucket": []}
        for number in range(count):
            for way in list(found)[:: -1 if number % 2 else 1]:
                found[way].append(_fit(way, size, every, saves))
        late += sum(one.late for rounds in found.values() for one in rounds)
        lines += [*_trainings(found, f"A `fit` with {size:.0f} MB of state, saved every {every} steps."), ""]
    return [*lines, _SAID_OF_A_BUCKET.format(count=count, late=late)]


_SAID_OF_A_BUCKET = (
    'Figures are medians (rounds: {count}). In each, every way runs once. The columns are those of "Checkpoints". The '
    "bucket is the emulator's, which uses the same cores and the same disk; with the real service that capacity stays with "
    "the training. TensorFlow's own client reaches it through a proxy in the run's supervisor, which decrypts on these cores "
    "too. Saves skipped because the previous one had not finished: {late}."
)


def _trainings(found: dict[str, list[Training]], title: str) -> list[str]:
    columns = (
        "stall p50, ms | p99, ms | step while saving | lost per save, s | of a minute | CPU, s | named, s | memory"
    )
    lines = [title, "", f"| | saves | {columns} |", "|---|---|---|---|---|---|---|---|---|---|"]
    for way, rounds in found.items():
        stalls = [1000 * stall for one in rounds for stall in one.stalls_s]
        lost = median(one.lost_s for one in rounds)
        values = [
            str(len(stalls)),
            f"{median(stalls):.1f}",
            f"{p99(stalls):.1f}",
            _percent(median(one.saving for one in rounds) - 1),
            f"{lost:.3f}",
            _percent(lost / 60),
            f"{median(one.cpu_s for one in rounds):.2f}",
            f"{median(one.done_s for one in rounds):.2f}",
            f"{median(one.memory for one in rounds):+.2f}x",
        ]
        lines.append(f"| {WAYS[way]} | {' | '.join(values)} |")
    return lines


def _percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:+.1f}%"


def _saves(found: dict[str, list[Any]], size_mb: float) -> list[str]:
    columns = "returns, ms | named, s | synced, s | raw to synced | CPU, s | memory | restore, GB/s"
    lines = [f"{size_mb:.0f} MB while nothing trains.", "", f"| | {columns} |", "|---|---|---|---|---|---|---|---|"]
    raws = [save["raw"] for rounds in found.values() for one in rounds for save in one["saves"]]
    lines.append(f"| raw `write` and `fsync` | | | {median(raws):.2f} | | | | |")
    for way, rounds in found.items():
        saves = [save for one in rounds for save in one["saves"]]
        state = rounds[0]["state"]
        values = [
            f"{1000 * median(save['stall'] for save in saves):.1f}",
            f"{median(save['named'] for save in saves):.2f}",
            f"{median(save['synced'] for save in saves):.2f}",
            f"{median(save['raw'] / save['synced'] for save in saves):.2f}",
            f"{median(save['cpu'] for save in saves):.2f}",
            f"{median(save['memory'] for save in saves) / state:+.2f}x",
            f"{state / 1e9 / median(taken for one in rounds for taken in one['restores']):.2f}",
        ]
        lines.append(f"| {WAYS[way]} | {' | '.join(values)} |")
    return lines


def _fit(way: str, size_mb: float, every: int, saves: int) -> Training:
    # The last save is followed by as many steps as the others.
    given = {"MB": size_mb, "EVERY": every, "STEPS": every * (saves + 1) - 1, "WAY": way}
    if way.endswith("bucket"):
        with emulator():
            return training(_measured({**given, "ROOT": _ROOT}, _submitted(way, every, _ROOT)), every)
    start = _submitted(way, every) if way == "podlift" else _by_hand(way, "saving_fit.py")
    return training(_measured(given, start), every)


def _alone(way: str, size_mb: float) -> Any:
    named = "direct" if way == "podlift" else way
    return _measured({"MB": size_mb, "ROUNDS": 3, "WAY": named}, _by_hand(way, "saving_alone.py"))


def _measured(given: dict[str, Any], start: Callable[[str, dict[str, str]], None]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        env = {f"SAVING_{name}": str(value) for name, value in {**given, "FOLDER": folder}.items()}
        start(folder, env)
        return json.loads(Path(folder, "found.json").read_text())


def _by_hand(way: str, program: str) -> Callable[[str, dict[str, str]], None]:
    python = str(ORBAX_PYTHON) if way == "orbax" else sys.executable
    words: Sequence[str] = [python, str(PROGRAMS / program)]

    def start(folder: str, env: dict[str, str]) -> None:
        path = str(PROGRAMS.parent.parent)
        shown = subprocess.run(
            words, env={**os.environ, **env, "PYTHONPATH": path}, capture_output=True, text=True, timeout=_LIMIT_S
        )
        if shown.returncode != 0:
            raise RuntimeError(f"{way} in {program} has failed:\n{shown.stderr[-3000:]}")

    return start


def _submitted(way: str, every: int, root: str = "") -> Callable[[str, dict[str, str]], None]:
    saves = sdk.Checkpoints(every_steps=every, every_s=None, keep_last=2)
    # The run only leads TensorFlow to the emulator.
    none = sdk.Checkpoints(every_s=None)

    def start(folder: str, env: dict[str, str]) -> None:
        job = sdk.Job(
            str(PROGRAMS / "saving_fit.py"),
            env=env,
            code=sdk.Code(project=str(PROGRAMS)),
            checkpoints=none if way == "tf-bucket" else saves,
        )
        # The files of a root in a bucket lie in the cache.
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": f"{folder}/cache"}):
            sdk.submit(job, root=root or folder).result(_LIMIT_S)

    return start
