"""The same job on the same Ray cluster by podlift and by Ray Train: to the first step, to its end, a kill to the next step."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import recovery
from .real_ray import RayCluster
from .regressions import Section
from .start import PROGRAM, RAY_PYTHON

TITLE = "A job on a Ray cluster"
_LIMIT_S = 300.0
_QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "RAY_TRAIN_V2_ENABLED": "1"}


@dataclass(frozen=True)
class Found:
    """Seconds from the command to the first step and to its end, and from a kill of a worker to the next step."""

    first_s: float
    wall_s: float
    kill_s: float


COLUMNS = {"first_s": "submit to the first step, s", "wall_s": "whole job, s", "kill_s": "kill to the next step, s"}


def run(count: int) -> Section:
    """Return the section; without RAY_PYTHON, which needs `ray[default,train]` beside this TensorFlow, it says so."""
    if not RAY_PYTHON:
        return Section(["Not measured: RAY_PYTHON names no Python with `ray[default,train]`."], {})
    cluster = RayCluster(Path(RAY_PYTHON), env=_QUIET)
    try:
        # The first round warms up.
        rounds = [[_found(cluster, _ours), _found(cluster, _by_ray)] for _ in range(count + 1)][1:]
    finally:
        cluster.close()
    lines = [f"| | {' | '.join(COLUMNS.values())} |", f"|---|{'---|' * len(COLUMNS)}"]
    names = ("`podlift submit --backend ray`", "`ray job submit` of a `TensorflowTrainer`")
    for name, results in zip(names, zip(*rounds, strict=True), strict=True):
        medians = [statistics.median(getattr(found, field) for found in results) for field in COLUMNS]
        lines.append(f"| {name} | {' | '.join(f'{seconds:.1f}' for seconds in medians)} |")
    ratios = {
        title.removesuffix(", s"): statistics.median(getattr(ours, field) / getattr(its, field) for ours, its in rounds)
        for field, title in COLUMNS.items()
    }
    lines.append(f"| relative, by pair | {' | '.join(f'{ratio:.2f}' for ratio in ratios.values())} |")
    about = (
        f"Medians of {count} pairs, on one cluster by `ray start --head --num-cpus 4`; the job of the start benchmark."
    )
    kept = {f"{name}, relative to Ray Train on a cluster": ratio for name, ratio in ratios.items()}
    return Section([*lines, "", about], kept)


def _ours(cluster: RayCluster, folder: str, variable: str, mark: str) -> Sequence[str]:
    where = ["--backend", "ray", "--ray-address", cluster.address, "--root", f"{folder}/root"]
    return [
        sys.executable,
        "-m",
        "sdk",
        "submit",
        str(PROGRAM),
        "--workers",
        "2",
        *where,
        "--env",
        f"{variable}={mark}",
    ]


def _by_ray(cluster: RayCluster, folder: str, variable: str, mark: str) -> Sequence[str]:
    steps = ["steps"] if variable == "STEPS_FOLDER" else []
    ray = str(Path(str(RAY_PYTHON)).with_name("ray"))
    program = [str(RAY_PYTHON), str(PROGRAM.with_name("by_ray.py")), mark, folder, *steps]
    return [ray, "job", "submit", "--address", cluster.address, "--", *program]


def _found(cluster: RayCluster, words: Callable[[RayCluster, str, str, str], Sequence[str]]) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        mark, started = Path(folder) / "first", time.time()
        subprocess.run(
            words(cluster, folder, "FIRST_STEP_FILE", str(mark)),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
        )
        wall_s = time.time() - started
        first_s = float(mark.read_text().split()[0]) - started
    killed = recovery.measured(
        lambda folder: words(cluster, folder, "STEPS_FOLDER", f"{folder}/steps"), lambda folder: {}
    )
    return Found(first_s, wall_s, killed.kill_s)
