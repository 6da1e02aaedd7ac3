"""The rows and columns of the kill table, and its page, which `--pages` writes from what the cells gave."""

from __future__ import annotations

from collections.abc import Mapping

from support import REPO

_PAGE = REPO / "docs" / "reference" / "checkpoints-table.md"
_HEAD = """# Training after a kill, beside the same training without one

Written by `scripts/test --full`. "equal": every variable of model, optimizer and metrics is the same bit for bit, and so is
the History of `fit`. One task, two tasks under MultiWorkerMirroredStrategy, or one task with MirroredStrategy on four logical
devices; SIGKILL at the moment that the column says; a checkpoint every three of 24 steps; CPU, deterministic operations, seeds.

"""
FEATURES = ("dropout", "batchnorm", "schedule", "lossscale", "earlystopping", "shuffle", "generator", "arrays")
WORLDS = {"one": 1, "two": 2, "mirrored": 1}
# Eight steps an epoch, three epochs.
KILLS = {
    "first step": "step:1",
    "mid-epoch": "step:12",
    "validation": "validation:2",
    "epoch end": "epoch:2",
    "save": "save:4",
}
ROWS = [
    (feature, style, world)
    for feature in FEATURES
    for style in ("fit", "loop")
    for world in WORLDS
    # EarlyStopping and arrays are things of fit.
    if style == "fit" or feature not in ("earlystopping", "arrays")
]
CELLS = [
    (row, moment)
    for row in ROWS
    for moment in KILLS
    if row[1] == "fit" or moment in ("first step", "mid-epoch", "save")
]


def write(cells: Mapping[str, str]) -> None:
    """Write the page if there is a text for each cell, by `name`."""
    if {name(*cell) for cell in CELLS} - set(cells):
        return
    lines = [f"| state | style | tasks | {' | '.join(KILLS)} |", f"|---|---|---|{'---|' * len(KILLS)}"]
    for row in ROWS:
        lines.append(f"| {' | '.join((*row, *(cells.get(name(row, moment), '') for moment in KILLS)))} |")
    _PAGE.write_text(_HEAD + "\n".join(lines) + "\n")


def name(row: tuple[str, str, str], moment: str) -> str:
    return "-".join((*row, moment))
