"""Write docs/reference/tensorflow-tutorials.md again from measured.json, without running anything.

`--digests` prints the digests of the cells.

Usage: `python -m tests.e2e.tutorials.write`. Measuring is `pytest tests/e2e/tutorials`, the tests marked `full` included.
"""

from __future__ import annotations

import json
import sys

from . import report, seeds
from .cells import CELLS


def main() -> None:
    if "--digests" in sys.argv[1:]:
        print("\n".join(f'    "{cell.id}": "{seeds.digest(cell)}",' for cell in CELLS.values()))
        return
    report.DOCUMENT.write_text(report.render(json.loads(report.MEASURED.read_text())["versions"]))


if __name__ == "__main__":
    main()
