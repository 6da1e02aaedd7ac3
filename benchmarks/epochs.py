"""What waits at the end of each epoch over finite data, and what tuning the input is worth."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from .regressions import Section

TITLE = "Ends of epochs over finite data"
_PROGRAM = Path(__file__).parent / "programs" / "epochs.py"
_WAYS = {"as it is": "TensorFlow as it is", "autotune off": "`options.autotune.enabled = False`", "patched": "podlift"}


def run(count: int) -> Section:
    """Return the section."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
    for _ in range(count):
        for way in _WAYS:
            done = subprocess.run([sys.executable, str(_PROGRAM), way], capture_output=True, text=True, check=True)
            found[way].append(json.loads(done.stdout.splitlines()[-1]))
    lines = [
        "| | `fit`, s | of it outside the steps, s | the longest, s | waits over 0.3 s | 150 calls of a slow map, s |",
        "|---|---|---|---|---|---|",
    ]
    for way, name in _WAYS.items():
        fit, outside, slow = ([one[key] for one in found[way]] for key in ("fit_s", "outside_s", "map_s"))
        lines.append(
            f"| {name} | {statistics.median(fit):.1f} | {statistics.median(outside):.2f} | {max(outside):.2f} | "
            f"{sum(one['waits'] for one in found[way]):.0f} of {6 * count} | {statistics.median(slow):.2f} |"
        )
    ratio = statistics.median(b["fit_s"] / a["fit_s"] for a, b in zip(found["as it is"], found["patched"], strict=True))
    setting = "6 epochs of 60 steps of 15 ms on one core; the map sleeps 20 ms and may run in parallel."
    return Section(
        [*lines, "", f"Medians of {count} rounds. {setting}"], {"`fit`, relative to TensorFlow as it is": ratio}
    )
