"""A sweep of small trials, beside the same trainings one after the other in one process: their steps and one start.

As a program, `python -m benchmarks.sweeps ROOT TRIALS`, it is the sweep, and prints its CPU seconds and the parameters as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sdk

from .measure import Cost, command, median, pairs, ratio
from .regressions import Section
from .submit_and_account import adopt_orphans, cpu_of_all

TITLE = "A sweep of small trials"
TARGET = 1.3
_PROGRAM = Path(__file__).parent / "programs" / "swept.py"
_SPACE = {"lr": sdk.LogUniform(1e-4, 1e-1), "units": sdk.Choice(16, 32, 64)}


def run(count: int, *, trials: int = 20) -> Section:
    """Return the section."""
    params: list[dict[str, float]] = []

    def swept() -> Cost:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", __name__, folder, str(trials)]
            env = {**os.environ, "XDG_CACHE_HOME": os.path.join(folder, "cache")}
            before = time.perf_counter()
            shown = subprocess.run(words, env=env, capture_output=True, text=True)
            wall_s = time.perf_counter() - before
        if shown.returncode != 0:
            raise RuntimeError(shown.stderr[-2000:])
        cpu_s, params[:] = json.loads(shown.stdout.splitlines()[-1])
        return Cost(wall_s, cpu_s)

    ours, alone = pairs(count, swept, lambda: command([sys.executable, str(_PROGRAM), "--each", json.dumps(params)]))
    relative = ratio(ours, alone, "cpu_s")
    lines = ["| | wall, s | CPU, s |", "|---|---|---|"]
    for name, costs in (("`sdk.sweep`, two trials at a time", ours), ("one process, one after the other", alone)):
        lines.append(f"| {name} | {median(costs, 'wall_s'):.1f} | {median(costs, 'cpu_s'):.1f} |")
    setting = f"{trials} trainings of 9 epochs of a small network on scikit-learn's digits"
    lines += ["", f"Medians of {count} pairs of {setting}. CPU, relative: {relative:.2f}; target: at most {TARGET}."]
    return Section(lines, {"CPU, relative to one process": relative})


def _main(root: str, trials: str) -> None:
    adopt_orphans()
    job = sdk.Job(_PROGRAM, code=sdk.Code(project=_PROGRAM.parent))
    about = {"metric": "val_accuracy", "parallel": 2, "sampler": "random", "root": root, "name": "small"}
    sweep = sdk.sweep(job, _SPACE, trials=int(trials), **about)
    sweep.wait()
    cpu_s = cpu_of_all()
    found = sweep.trials()
    if {trial.state for trial in found} != {"COMPLETE"}:
        raise RuntimeError(str(found))
    print(json.dumps([cpu_s, [trial.params for trial in found]]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
