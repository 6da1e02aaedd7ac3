"""A worker of two is killed by SIGKILL: how long until the next step, beside a cold start, and beside Ray Train."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .regressions import Section
from .start import PROGRAM, RAY_PYTHON

TITLE = "A killed worker"
_LIMIT_S = 300.0
_STEPS = 10


@dataclass(frozen=True)
class Found:
    """Seconds from the command to the first step, and from the kill to the next one."""

    cold_s: float
    kill_s: float


def run(count: int) -> Section:
    """Return the section."""
    # The first round warms up.
    return section([measure() for _ in range(count + 1)][1:])


def measure() -> list[Found]:
    """Return one round: the figures of each way, in the order of the table."""
    return [way() for way in _ways().values()]


def _ways() -> dict[str, Callable[[], Found]]:
    ours = {
        "`podlift submit --workers 2`": lambda: _ours("auto"),
        "the same with `--local-start anew`": lambda: _ours("anew"),
    }
    return {**ours, **({"Ray Train, two workers": _by_ray} if RAY_PYTHON else {})}


def section(rounds: Sequence[Sequence[Found]]) -> Section:
    """Return the table of these rounds, and its ratios."""
    lines = ["| | cold start to the first step, s | kill to the next step, s | ratio |", "|---|---|---|---|"]
    for name, results in zip(_ways(), zip(*rounds, strict=True), strict=True):
        cold, kill = (statistics.median(getattr(found, field) for found in results) for field in ("cold_s", "kill_s"))
        own = statistics.median(found.kill_s / found.cold_s for found in results)
        lines.append(f"| {name} | {cold:.1f} | {kill:.1f} | {own:.2f} |")
    ours = [found[0] for found in rounds]
    ratios = {"kill to the next step, relative to a cold start": statistics.median(f.kill_s / f.cold_s for f in ours)}
    if RAY_PYTHON:
        for name, index in (("podlift", 0), ("without a standby", 1)):
            ratio = statistics.median(found[index].kill_s / found[-1].kill_s for found in rounds)
            lines.append(f"| {name} relative to Ray, by pair | | {ratio:.2f} | |")
            ratios.setdefault("kill to the next step, relative to Ray", ratio)
    lines += [
        "",
        f"Medians of {len(rounds)} rounds, each way in turn; SIGKILL is sent to the second worker once both workers have "
        f"completed {_STEPS} steps.",
    ]
    return Section(lines, ratios)


def _ours(start: str) -> Found:
    words = [sys.executable, "-m", "benchmarks.submit_and_account", str(PROGRAM), "2", "STEPS_FOLDER"]
    return measured(lambda folder: words, lambda folder: {"PODLIFT_ROOT": folder, "BENCHMARK_START": start})


def _by_ray() -> Found:
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    program = str(PROGRAM.with_name("by_ray.py"))
    return measured(lambda folder: [str(RAY_PYTHON), program, f"{folder}/steps", folder, "steps"], lambda folder: quiet)


def measured(words: Callable[[str], Sequence[str]], env: Callable[[str], dict[str, str]]) -> Found:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        steps = Path(folder) / "steps"
        steps.mkdir()
        started = time.time()
        command = [*words(folder)]
        given = {**os.environ, "STEPS_FOLDER": str(steps), **env(folder)}
        process = subprocess.Popen(command, env=given, stdout=said, stderr=subprocess.STDOUT)
        try:
            first = _until(lambda: [s for s in _steps(steps) if len(s[1]) >= _STEPS], 2, process)
            # The pids count up: the first worker to start is the chief by hand, and neither is special to Ray.
            victim = max(pid for pid, _ in first)
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            old = {pid for pid, _ in first}
            again = _until(lambda: [s for s in _steps(steps) if s[0] not in old and s[1]], 2, process)
            process.wait(_LIMIT_S)
        except BaseException:
            said.seek(0)
            sys.stderr.write(said.read()[-3000:].decode(errors="replace"))
            process.kill()
            raise
        return Found(max(s[0] for _, s in first) - started, max(s[0] for _, s in again) - killed)


def _steps(folder: Path) -> list[tuple[int, list[float]]]:
    files = [path for path in folder.iterdir() if path.name.isdigit()]
    return [(int(path.name), [float(line) for line in path.read_text().splitlines() if line]) for path in files]


def _until(
    find: Callable[[], list[tuple[int, list[float]]]], number: int, process: subprocess.Popen[bytes]
) -> list[tuple[int, list[float]]]:
    deadline = time.monotonic() + _LIMIT_S
    while len(found := find()) < number:
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(f"the steps never came; the command's exit code: {process.returncode}")
        time.sleep(0.02)
    return found
