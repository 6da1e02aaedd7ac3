"""Killed training continues to exactly the weights of undisturbed training: a table of all forgettable state.

Every row is a feature that has state, `fit` or a loop, on one task, two tasks, or one task with four logical
devices; every column is the moment of a SIGKILL. A cell is bitwise equal, or its checkpoint names why it may not be.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from support import LIMIT_S, PROGRAMS

import sdk

from .runs import succeeded, sums, texts, trained

pytestmark = [pytest.mark.tensorflow, pytest.mark.full, pytest.mark.usefixtures("here")]

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
    # A loop has no validation and no end of an epoch. Other worlds differ where a batch is under way, or a save.
    if (row[1] == "fit" or moment in ("first step", "mid-epoch", "save"))
    and (row[2] == "one" or moment in ("mid-epoch", "save"))
]


def ended(folder: Path, row: tuple[str, str, str], kill: str | None) -> tuple[dict[str, str], list[str], sdk.Run]:
    feature, style, world = row
    victim = ":last" if kill and kill.startswith("step") else ""
    run = trained(
        (PROGRAMS / "checkpoint_table.py").read_text(),
        *([kill + victim] if kill else []),
        root=folder / "root",
        args=[world, style, feature],
        resources=sdk.Resources(workers=WORLDS[world]),
        checkpoints=sdk.Checkpoints(every_steps=3, on_busy="block"),
        retry=sdk.Retry(infrastructure=3),
        limits=sdk.Limits(timeout_s=LIMIT_S),
    )
    succeeded(run, 2 if kill else 1)
    assert run.checkpoints()[-1].reason == "final"
    history = [line.text for line in run.logs(task=run.plan.tasks[0]) if line.text.startswith("history")]
    return sums(run), [*run.checkpoints()[-1].downgrades, *history], run


@cache
def undisturbed(folder: Path, row: tuple[str, str, str]) -> tuple[dict[str, str], list[str], sdk.Run]:
    (folder / "-".join(row)).mkdir()
    return ended(folder / "-".join(row), row, None)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table")


def cases() -> list[object]:
    """Return the cells; those of a row share a training, and go to one worker."""
    return [
        pytest.param(row, moment, id="-".join((*row, moment)), marks=pytest.mark.xdist_group(f"kill table {row}"))
        for row, moment in CELLS
    ]


@pytest.mark.parametrize(("row", "moment"), cases())
def test_a_training_that_was_killed_ends_with_the_same_weights(
    shared: Path, tmp_path: Path, row: tuple[str, str, str], moment: str
) -> None:
    wanted, said, _ = undisturbed(shared, row)
    found, said_again, run = ended(tmp_path, row, KILLS[moment])
    different = {path for path in wanted if wanted[path] != found.get(path)}
    downgrades = [text for text in said_again if not text.startswith("history")]
    assert not different or downgrades, (different, texts(run))
    # What Python makes is taken again, and a strategy may take more of it in advance than was trained with.
    assert not downgrades or (row[0] == "generator" and row[2] != "one"), downgrades
    assert said == said_again or downgrades
