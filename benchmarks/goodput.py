"""What the account of a task costs in each step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

TITLE = "Goodput"
_PROGRAM = Path(__file__).parent / "programs" / "accounted_steps.py"
_REPO = Path(__file__).resolve().parent.parent


def run(count: int) -> list[str]:
    """Return the section's lines."""
    both = [(_measured("plain"), _measured("accounted")) for _ in range(count)]
    graph, writes = (median(after[i] - before[i] for before, after in both) for i in (0, 1))
    plain, whole = (median(each[i][0] for each in both) for i in (0, 1))
    write = median(after[1] for _, after in both)
    return [
        "| of a step, in CPU nanoseconds | |\n|---|---|",
        f"| take a batch in a compiled function | {plain:,.0f} |",
        f"| the same, timed and accounted | {whole:,.0f} |",
        f"| difference, by pair | {graph:,.0f} |",
        f"| count the step in the progress file, with its account | {write:,.0f} |",
        f"| difference, by pair | {writes:,.0f} |",
        "",
        f"Medians of {count} pairs of 20,000 steps without any work. The account costs both differences in each step of `fit`.",
    ]


def _measured(mode: str) -> tuple[float, float]:
    env = {**os.environ, "PYTHONPATH": str(_REPO), "TF_CPP_MIN_LOG_LEVEL": "3"}
    text = subprocess.run([sys.executable, str(_PROGRAM), mode], env=env, capture_output=True, text=True, check=True)
    graph, writes = map(float, text.stdout.split())
    return graph, writes
