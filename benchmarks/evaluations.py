"""What `evaluate` and `predict` cost on two workers, relative to one, beside what `fit` costs."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

import sdk

from .regressions import Section

TITLE = "evaluate and predict on two workers"
_PROGRAM = Path(__file__).parent / "programs" / "evaluations.py"
_LIMIT_S = 600


def run(count: int) -> Section:
    """Return the section."""
    rounds = [(_measured(1), _measured(2)) for _ in range(count)]
    lines = ["| | one, s | two, s | ratio | one, CPU s | two, CPU s | ratio |", "|---|---|---|---|---|---|---|"]
    ratios: dict[str, float] = {}
    for name in rounds[0][0]:
        cells = []
        for part in (0, 1):
            one, two = (statistics.median(found[which][name][part] for found in rounds) for which in (0, 1))
            ratio = statistics.median(found[1][name][part] / found[0][name][part] for found in rounds)
            cells += [f"{one:.3f}", f"{two:.3f}", f"{ratio:.1f}"]
        method, batches = name.split()
        lines.append(f"| `{method}`, {batches} batches | {' | '.join(cells)} |")
        if method != "fit":
            ratios[f"{method} of {batches} batches, CPU, relative to fit"] = statistics.median(
                (two[name][1] / one[name][1]) / (two[f"fit {batches}"][1] / one[f"fit {batches}"][1])
                for one, two in rounds
            )
    lines += ["", *(f"- {name}: {ratio:.2f}" for name, ratio in ratios.items()), ""]
    text = "warm calls on batches of 64 rows of 32 numbers; CPU seconds of the first worker. The last batch is smaller."
    return Section([*lines, f"Medians of {count} rounds of five {text}"], ratios)


def _measured(workers: int) -> dict[str, tuple[float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        job = sdk.Job(
            _PROGRAM,
            args=[str(found)],
            resources=sdk.Resources(workers=workers),
            code=sdk.Code(project=_PROGRAM.parent),
            checkpoints=sdk.Checkpoints(auto=False),
        )
        sdk.submit(job, root=Path(folder, "root")).result(_LIMIT_S)
        measured: dict[str, tuple[float, float]] = json.loads(found.read_text())
        return measured
