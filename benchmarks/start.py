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
from pathlib import Path

from .measure import Cost, command, median, ratio

TITLE = "Start of a two-worker job"
# A Python in which Ray is installed beside this TensorFlow (`pip install "ray[train]"`); without it Ray is left out. The
# CPU time of its daemons is not its command's, and is not counted.
RAY_PYTHON = os.environ.get("RAY_PYTHON")
PROGRAM = Path(__file__).parent / "programs" / "cnn_loop.py"


def run(count: int) -> list[str]:
    """Return the section's lines."""
    ways = [_by_hand, lambda: _ours("auto"), lambda: _ours("spawn"), *([_by_ray] if RAY_PYTHON else [])]
    # The first round warms up.
    rounds = [[way() for way in ways] for _ in range(count + 1)][1:]
    by_hand, ours, spawned, *by_ray = (list(results) for results in zip(*rounds, strict=True))
    lines = ["| | to the first step, s | whole job, s | CPU, s |", "|---|---|---|---|"]
    names = ["two processes by hand", "`podlift submit --workers 2`", "the same with `--local-start spawn`"]
    names += ["Ray Train's `TensorflowTrainer`, two workers"] if by_ray else []
    for name, results in zip(names, (by_hand, ours, spawned, *by_ray), strict=True):
        first = statistics.median(first for first, _ in results)
        costs = [cost for _, cost in results]
        lines.append(f"| {name} | {first:.1f} | {median(costs, 'wall_s'):.1f} | {median(costs, 'cpu_s'):.1f} |")
    hand, own = [cost for _, cost in by_hand], [cost for _, cost in ours]
    firsts = statistics.median(a / b for (a, _), (b, _) in zip(ours, by_hand, strict=True))
    ratios = (firsts, ratio(own, hand, "wall_s"), ratio(own, hand, "cpu_s"))
    lines.append(f"| `submit` relative to by hand, by pair | {' | '.join(f'{value:.2f}' for value in ratios)} |")
    if by_ray:
        theirs = [cost for _, cost in by_ray[0]]
        firsts = statistics.median(a / b for (a, _), (b, _) in zip(ours, by_ray[0], strict=True))
        ratios = (firsts, ratio(own, theirs, "wall_s"), ratio(own, theirs, "cpu_s"))
        lines.append(f"| `submit` relative to Ray, by pair | {' | '.join(f'{value:.2f}' for value in ratios)} |")
    return [
        *lines,
        "",
        f"Medians of {count} pairs; 60 steps of a small CNN in a custom training loop, with generated data.",
    ]


def _by_ray() -> tuple[float, Cost]:
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "first"
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        words = [str(RAY_PYTHON), str(PROGRAM.with_name("by_ray.py")), str(mark), folder]
        started = time.time()
        cost = command(words, env=env)
        return float(mark.read_text()) - started, cost


def _free_ports() -> list[int]:
    held = [socket.socket() for _ in range(2)]
    for one in held:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _by_hand() -> tuple[float, Cost]:
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
        for child in children:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            cpu_s += usage.ru_utime + usage.ru_stime
            if child.returncode != 0:
                raise RuntimeError(f"a process by hand ended with {child.returncode}")
        return float(mark.read_text()) - started, Cost(time.perf_counter() - before, cpu_s)


def _ours(start: str) -> tuple[float, Cost]:
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "first"
        env = {**os.environ, "PODLIFT_ROOT": folder, "FIRST_STEP_FILE": str(mark), "BENCHMARK_START": start}
        started, before = time.time(), time.perf_counter()
        # The supervisor is not this process's child: its CPU time and its tasks' are read from the kernel's account of them.
        words = [sys.executable, "-m", "benchmarks.submit_and_account", str(PROGRAM), "2", "FIRST_STEP_FILE"]
        shown = subprocess.run(words, env=env, capture_output=True, text=True)
        if shown.returncode != 0:
            raise RuntimeError(shown.stderr[-2000:])
        return float(mark.read_text()) - started, Cost(time.perf_counter() - before, float(shown.stdout.split()[-1]))
