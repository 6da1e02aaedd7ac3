"""`import sdk` beside bare Python."""

from __future__ import annotations

import sys

from .measure import command, median, pairs, ratio
from .regressions import Section

TITLE = "Import"


def run(count: int) -> Section:
    """Return the section."""
    bare, ours = pairs(
        max(count, 15),
        lambda: command([sys.executable, "-c", "pass"]),
        lambda: command([sys.executable, "-c", "import sdk"]),
    )
    wall, cpu = (median(ours, field) - median(bare, field) for field in ("wall_s", "cpu_s"))
    lines = [
        f"| | wall, s | CPU, s |\n|---|---|---|\n| bare Python | {median(bare, 'wall_s'):.3f} | {median(bare, 'cpu_s'):.3f} |",
        f"| `import sdk` | {median(ours, 'wall_s'):.3f} | {median(ours, 'cpu_s'):.3f} |",
        f"| difference | {wall:.3f} | {cpu:.3f} |",
        "",
        f"Medians of {len(ours)} pairs. Target: at most 0.15 s above bare Python.",
    ]
    return Section(lines, {"CPU, relative to bare Python": ratio(ours, bare, "cpu_s")})
