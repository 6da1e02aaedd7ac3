"""The plan of 10,000 files and 200 MB: the first time, with everything to read, and again with nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .measure import Cost, command, median, ratio
from .regressions import Section

TITLE = "Plan of 10,000 files and 200 MB"
_FILES, _BYTES = 10_000, 200_000_000
_CODE = """
import sys, time, resource
import sdk
def cpu(): u = resource.getrusage(resource.RUSAGE_SELF); return u.ru_utime + u.ru_stime
for line in sys.stdin:
    wall, used = time.perf_counter(), cpu()
    plan = sdk.plan("train.py")
    print(time.perf_counter() - wall, cpu() - used, len(plan.code.files), flush=True)
"""


def _project(top: Path) -> None:
    block = os.urandom(_BYTES // _FILES)
    for number in range(_FILES - 2):
        folder = top / f"package{number // 1000}" / f"part{number // 100 % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file{number}.bin").write_bytes(number.to_bytes(4, "big") + block[4:])
    (top / "train.py").write_text("print(1)")
    (top / ".gitignore").write_text("*.log\nbuild/\n/dist\n**/tmp/*.x\n!keep.log\n" * 6)


def _plans(top: Path, cache: str) -> tuple[Cost, Cost]:
    """Return what a first and a second plan of one process cost; its start is not part of them."""
    env = {**os.environ, "XDG_CACHE_HOME": cache, "PODLIFT_ROOT": f"{cache}/root"}
    with subprocess.Popen(
        [sys.executable, "-c", _CODE], cwd=top, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        costs = []
        for _ in range(2):
            process.stdin.write("\n")
            process.stdin.flush()
            wall, cpu, count = process.stdout.readline().split()
            assert int(count) == _FILES
            costs.append(Cost(float(wall), float(cpu)))
        process.stdin.close()
    return costs[0], costs[1]


def run(count: int) -> Section:
    """Return the section."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "project"
        top.mkdir()
        _project(top)
        # What was written a moment ago is not remembered.
        time.sleep(3)
        first, second, tar = [], [], []
        for number in range(count):
            a, b = _plans(top, f"{folder}/cache{number}")
            first.append(a)
            second.append(b)
            tar.append(command(["bash", "-c", f"tar -c -C '{top}' . | sha256sum"]))
        _, again = _plans(top, f"{folder}/cache0")
    rows = [
        ("`tar -c .`, piped into `sha256sum`", tar),
        ("first plan", first),
        ("second plan, nothing changed", second),
        ("plan by a later process, nothing changed", [again]),
    ]
    lines = ["| | wall, s | CPU, s |", "|---|---|---|"]
    lines += [f"| {name} | {median(costs, 'wall_s'):.2f} | {median(costs, 'cpu_s'):.2f} |" for name, costs in rows]
    lines += [
        "",
        f"Medians of {count}, with the files in the page cache. Target: 0.8 s for the first plan, 0.15 s for the second.",
    ]
    plans = (("first plan", first), ("second plan", second))
    ratios = {f"{name}, CPU, relative to tar and sha256sum": ratio(costs, tar, "cpu_s") for name, costs in plans}
    return Section(lines, ratios)
