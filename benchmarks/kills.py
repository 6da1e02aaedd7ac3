"""Kills a writer of checkpoints at random moments, and flips every bit of a small checkpoint: nothing may be lost or missed."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "programs"))

import checkpoint_flips
import checkpoint_kills

TITLE = "Kills while saving, and flipped bits"
TITLES = {"gcs": "Kills while saving to a bucket, among faults"}


def run(count: int, *, store: str = "posix", faults: float = 0.2) -> list[str]:
    """Return the section's lines.

    Args:
        count: how often a writer is killed.
        store: "posix" or "gcs".
        faults: the share of the requests to a bucket that go wrong.
    """
    return _on_gcs(count, faults) if store == "gcs" else _on_a_disk(count)


def _on_gcs(count: int, faults: float) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        started, seed = time.monotonic(), int(time.time())
        with checkpoint_kills.bucket(folder, seed=seed, faults=faults) as (store, calm):
            longest_s = checkpoint_kills.GCS_LONGEST_S
            report = checkpoint_kills.kill_many(folder, count, seed=seed, longest_s=longest_s, store=store, calm=calm)
        seconds = time.monotonic() - started
    return [
        "| kills with SIGKILL at random moments | faulty requests | acknowledged saves | violations | seconds |",
        "|---|---|---|---|---|",
        f"| {report.kills} | {faults:.0%} | {report.acks} | {len(report.violations)} | {seconds:.0f} |",
        "",
        "Violations are defined as on a disk, except that a commit older than everything that must be kept may lack its data "
        "(a create that takes effect after its own removal). Faults: errors and cut connections before and after the "
        "operation, truncated answers, stalls, slow transfers, and bytes that change in transit in either "
        "direction or in storage.",
        *(f"- {wrong}" for wrong in report.violations[:20]),
    ]


def _on_a_disk(count: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        report = checkpoint_kills.kill_many(folder, count, seed=int(time.time()))
        kills_s = time.monotonic() - started
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        count_of_flips, missed = checkpoint_flips.undetected(folder, checkpoint_flips.save_small(folder))
        flips_s = time.monotonic() - started
    lines = ["| | number | violations | seconds |", "|---|---|---|---|"]
    lines += [
        f"| kills with SIGKILL at random moments, {report.acks} acknowledged saves | {report.kills} | "
        f"{len(report.violations)} | {kills_s:.0f} |",
        f"| flipped bits, one at a time, in every object of a store | {count_of_flips} | {len(missed)} | {flips_s:.0f} |",
        "",
        "A violation is a restored state that is not bitwise that of one step or is older than the last acknowledged one, "
        "data left by a killed writer that does not verify, or a flipped bit that is not detected.",
    ]
    return [*lines, *(f"- {wrong}" for wrong in [*report.violations, *missed][:20])]
