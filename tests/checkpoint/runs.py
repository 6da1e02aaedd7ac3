"""Trainings on this machine that are killed, and the values to compare."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import LIMIT_S

import sdk
from sdk.checkpoint import restore
from sdk.job.payload import Drill, Kill
from sdk.storage.registry import open_store

RESULTS = ("between", "histories", "history", "scores")


def trained(text: str, *kills: str, root: Path | None = None, **job: Any) -> sdk.Run:
    """Run a program in the current folder; a kill is "MOMENT:NUMBER" of the first task, "MOMENT:NUMBER:last" of the last."""
    Path("train.py").write_text(text)
    plan = sdk.plan(sdk.Job("train.py", **job), root=root)
    wanted = []
    for point, number, *last in (kill.split(":") for kill in kills):
        wanted.append(Kill(task=plan.tasks[-1 if last else 0], point=point, number=int(number)))
    run = sdk.submit(replace(plan, drill=Drill(seed=1, kills=tuple(wanted))))
    run.wait(LIMIT_S)
    return run


def succeeded(run: sdk.Run, attempts: int = 1) -> sdk.Run:
    assert (run.status().state, run.status().attempts) == (sdk.State.SUCCEEDED, attempts), run.why() + texts(run)
    return run


def texts(run: sdk.Run) -> str:
    return "\n".join(line.text for line in run.logs())


def sums(run: sdk.Run) -> dict[str, str]:
    """Return a digest of each array of the newest checkpoint."""
    found = restore.newest(open_store(run.plan.paths.store))
    assert found is not None
    return {path: hashlib.sha256(array.data).hexdigest() for path, array in found.arrays.items()}


def said(run: sdk.Run) -> dict[str, str]:
    """Return the last line of each kind of result that the program has printed."""
    return {line.text.partition(" ")[0]: line.text for line in run.logs() if line.text.startswith(RESULTS)}
