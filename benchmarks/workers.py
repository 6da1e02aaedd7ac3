"""What each further worker costs: time, CPU and memory of 1 to 32 tasks, forked from one that has imported, and not."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TITLE = "Start of many workers"
PROGRAM = Path(__file__).parent / "programs" / "one_step.py"
WORKERS = (1, 2, 4, 8, 32)
WAYS = ("fork", "spawn")


@dataclass(frozen=True)
class Found:
    """Seconds from the command to the last task's first line, end of imports and end of its step; CPU; memory of all tasks."""

    first_line_s: float
    imported_s: float
    stepped_s: float
    cpu_s: float
    memory_mb: float


COLUMNS = {
    "first_line_s": "first line, s",
    "imported_s": "imported, s",
    "stepped_s": "first step, s",
    "cpu_s": "CPU, s",
    "memory_mb": "memory of the tasks, MB",
}


def run(count: int) -> list[str]:
    """Return the section's lines."""
    lines = [f"| workers | start | {' | '.join(COLUMNS.values())} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    for way in WAYS:
        _measure(1, way)  # warms up
    for workers in WORKERS:
        rounds = [{way: _measure(workers, way) for way in WAYS} for _ in range(count)]
        for way in WAYS:
            values = [statistics.median(getattr(each[way], name) for each in rounds) for name in COLUMNS]
            lines.append(f"| {workers} | `{way}` | {' | '.join(_shown(value) for value in values)} |")
        ratios = [
            statistics.median(getattr(each["fork"], name) / getattr(each["spawn"], name) for each in rounds)
            for name in COLUMNS
        ]
        lines.append(f"| {workers} | ratio, by pair | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    said = [
        f"Medians of {count} pairs, one step of a small model. Times run from the command until the last task gets there.",
        "Memory is the tasks' proportional share (PSS) after the step. A single task is forked only on request.",
    ]
    return [*lines, "", *said]


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _measure(workers: int, way: str) -> Found:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as measured:
        variables = {"PODLIFT_ROOT": folder, "MEASURED": measured, "WORKERS": str(workers), "BENCHMARK_START": way}
        words = [
            sys.executable,
            "-m",
            "benchmarks.submit_and_account",
            str(PROGRAM),
            str(workers),
            "MEASURED",
            "WORKERS",
        ]
        started = time.time()
        shown = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True)
        if shown.returncode != 0:
            raise RuntimeError(shown.stderr[-2000:])
        found = [json.loads(file.read_text()) for file in Path(measured).glob("*.json")]
        return Found(
            first_line_s=max(each["first_line"] for each in found) - started,
            imported_s=max(each["imported"] for each in found) - started,
            stepped_s=max(each["stepped"] for each in found) - started,
            cpu_s=float(shown.stdout.split()[-1]),
            memory_mb=sum(each["memory_mb"] for each in found),
        )
