"""A two-worker job from the command to its first step and to its end: by hand in two shells, and by `podlift submit`."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from .measure import Cost, Peak, command, descendants_of, peak_memory
from .regressions import Section

TITLE = "Start of a two-worker job"
# A Python in which Ray is installed beside this TensorFlow (`pip install "ray[train]"`); without it Ray is left out. The
# CPU time of its daemons is not its command's, and is not counted.
RAY_PYTHON = os.environ.get("RAY_PYTHON")
STEPS = 60
PROGRAM = Path(__file__).parent / "programs" / "cnn_loop.py"


@dataclass(frozen=True)
class Found:
    """Seconds to the first step; steps per second from there to the last one; the whole job; the memory of all processes."""

    first_s: float
    steps_per_s: float
    wall_s: float
    cpu_s: float
    memory_mb: float


COLUMNS = {
    "first_s": ("to the first step, s", ".1f"),
    "steps_per_s": ("steps/s", ".1f"),
    "wall_s": ("whole job, s", ".1f"),
    "cpu_s": ("CPU, s", ".1f"),
    "memory_mb": ("peak memory, MB", ".0f"),
}


def run(count: int) -> Section:
    """Return the section."""
    ways: dict[str, Callable[[], Found]] = {"two processes by hand": _by_hand}
    ways["`podlift submit --workers 2`"] = lambda: _ours("auto")
    ways["the same with `--local-start spawn`"] = lambda: _ours("spawn")
    if RAY_PYTHON:
        ways["Ray Train's `TensorflowTrainer`, two workers"] = _by_ray
    # The first round warms up.
    rounds = [[way() for way in ways.values()] for _ in range(count + 1)][1:]
    lines = [f"| | {' | '.join(name for name, _ in COLUMNS.values())} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, results in zip(ways, zip(*rounds, strict=True), strict=True):
        medians = {field: statistics.median(getattr(found, field) for found in results) for field in COLUMNS}
        lines.append(f"| {name} | {' | '.join(format(medians[field], COLUMNS[field][1]) for field in COLUMNS)} |")
    kept: dict[str, float] = {}
    for number, name in ((0, "by hand"), *([(3, "Ray")] if RAY_PYTHON else [])):
        ratios = {
            field: statistics.median(getattr(each[1], field) / getattr(each[number], field) for each in rounds)
            for field in COLUMNS
        }
        lines.append(f"| `submit` relative to {name}, by pair | {' | '.join(f'{r:.2f}' for r in ratios.values())} |")
        # Of a kept ratio, less is better.
        ratios["steps_per_s"] = 1 / ratios["steps_per_s"]
        said = {field: title for field, (title, _) in COLUMNS.items()} | {"steps_per_s": "seconds per step"}
        kept |= {f"{said[field].removesuffix(', s')}, relative to {name}": ratios[field] for field in COLUMNS}
    steps = "60 steps of a small CNN in a custom training loop, with generated data."
    memory = (
        "Memory is that of all processes of the job, by their share of common pages (PSS), looked at twice a second."
    )
    return Section([*lines, "", f"Medians of {count} pairs; {steps} {memory}"], kept)


def _found(mark: Path, started: float, cost: Cost, peak: Peak) -> Found:
    # Each task may have written: the first step is that of the last one to begin, and the last that of the last to end.
    first, *_, last = map(float, mark.read_text().split())
    return Found(first - started, (STEPS - 1) / (last - first), cost.wall_s, cost.cpu_s, peak.memory_mb)


def _by_ray() -> Found:
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "first"
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        words = [str(RAY_PYTHON), str(PROGRAM.with_name("by_ray.py")), str(mark), folder]
        started = time.time()
        with _children_peak() as peak:
            cost = command(words, env=env)
        return _found(mark, started, cost, peak)


def _children_peak() -> AbstractContextManager[Peak]:
    """Look at all that this process starts, and not at itself."""
    return peak_memory(lambda: descendants_of(os.getpid()))


def _free_ports() -> list[int]:
    held = [socket.socket() for _ in range(2)]
    for one in held:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _by_hand() -> Found:
    ports = _free_ports()
    cluster = {"chief": [f"localhost:{ports[0]}"], "worker": [f"localhost:{ports[1]}"]}
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "first"
        started, before, children = time.time(), time.perf_counter(), []
        for role in ("chief", "worker"):
            config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
            env = {**os.environ, "TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1"}
            if role == "chief":
                env["FIRST_STEP_FILE"] = str(mark)
            words = [sys.executable, str(PROGRAM)]
            children.append(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        cpu_s = 0.0
        with _children_peak() as peak:
            for child in children:
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
                cpu_s += usage.ru_utime + usage.ru_stime
                if child.returncode != 0:
                    raise RuntimeError(f"a process by hand ended with {child.returncode}")
        return _found(mark, started, Cost(time.perf_counter() - before, cpu_s), peak)


def _ours(start: str) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "first"
        env = {**os.environ, "PODLIFT_ROOT": folder, "FIRST_STEP_FILE": str(mark), "BENCHMARK_START": start}
        started, before = time.time(), time.perf_counter()
        # The supervisor is not this process's child: its CPU time and its tasks' are read from the kernel's account of them.
        words = [sys.executable, "-m", "benchmarks.submit_and_account", str(PROGRAM), "2", "FIRST_STEP_FILE"]
        with _children_peak() as peak:
            shown = subprocess.run(words, env=env, capture_output=True, text=True)
        if shown.returncode != 0:
            raise RuntimeError(shown.stderr[-2000:])
        cost = Cost(time.perf_counter() - before, float(shown.stdout.split()[-1]))
        return _found(mark, started, cost, peak)
