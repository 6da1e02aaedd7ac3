"""`python -m benchmarks [NAME ...] [--count N]`: measures and writes docs/explanation/benchmarks.md."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
from pathlib import Path

from . import checkpoints, gcs, imports, kills, listing, packaging, recovery, start, vertex, workers

BENCHMARKS = {
    "imports": imports,
    "start": start,
    "recovery": recovery,
    "workers": workers,
    "packaging": packaging,
    "listing": listing,
    "kills": kills,
    "saving": checkpoints,
    "gcs": gcs,
    "vertex": vertex,
}
# Of those that know several stores.
_TITLES = {"kills": kills.TITLES, "saving": checkpoints.TITLES}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "benchmarks.md"
HEAD = """# Measurements

Written by `scripts/bench`: podlift beside what a user would do instead, in one run, in pairs. These are small shared machines
whose speed drifts: trust ratios and CPU seconds more than wall seconds.
"""


def machine() -> str:
    """Return the date and the machine in one line."""
    model = (
        re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    )
    name = model[1] if model else platform.processor()
    from importlib.metadata import version

    versions = f"Python {platform.python_version()}, TensorFlow {version('tensorflow')}, Keras {version('keras')}"
    return f"{datetime.date.today().isoformat()}, {os.cpu_count()} cores, {name}, {versions}"


def sections() -> dict[str, str]:
    """Return the sections that the page has, by title."""
    if not PAGE.exists():
        return {}
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="which; all by default")
    parser.add_argument("--count", type=int, default=5, help="pairs of each")
    parser.add_argument("--size-mb", type=float, help="the state that `saving` and `gcs` save; 1000 by default")
    parser.add_argument("--store", choices=["posix", "gcs"], default="posix", help="where `kills` and `saving` write")
    parser.add_argument(
        "--faults", type=float, default=0.2, help="the share of faulty requests, for `kills --store gcs`"
    )
    parser.add_argument("--only-print", action="store_true", help="leave docs/explanation/benchmarks.md as it is")
    options = parser.parse_args()
    page = sections()
    for name in options.names or BENCHMARKS:
        module = BENCHMARKS[name]
        given = {"size_mb": options.size_mb} if options.size_mb is not None and name in ("saving", "gcs") else {}
        given |= {"store": options.store} if name in _TITLES else {}
        given |= {"faults": options.faults} if name == "kills" else {}
        title = _TITLES.get(name, {}).get(options.store, module.TITLE)
        page[title] = "\n".join([f"{machine()}.", "", *module.run(options.count, **given)])
        print(f"## {title}\n\n{page[title]}\n")
        if not options.only_print:
            PAGE.write_text(HEAD + "".join(f"\n## {title}\n{body}\n" for title, body in page.items()))


if __name__ == "__main__":
    main()
