"""Weights & Biases: a run with config, summary and history.

Its id is made from the run's id. Rows are numbered, and a continued run begins after its last row. Offline, where an
earlier export is unknown, the folder of the new export replaces the folder of the old one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..logs import logger
from ..status import State
from ..storage import own_folders
from .exported import ExportedRun

_log = logger("exports")
_STEP = "podlift/step"


def write(run: ExportedRun, into: str | None) -> str:
    import wandb

    project = into or os.environ.get("WANDB_PROJECT") or run.label
    # The programs of runs may log to runs with their own id. Offline, the project is known by the id only.
    ident = f"podlift-{run.id}-{hashlib.sha256(project.encode()).hexdigest()[:6]}"
    settings = wandb.Settings(
        silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True
    )
    there = wandb.init(
        project=project,
        id=ident,
        name=run.id,
        tags=[run.state.value],
        config={**run.params, **run.tags},
        resume="allow",
        allow_val_change=True,
        settings=settings,
    )
    if there.disabled:
        raise InputError("Weights & Biases is switched off: WANDB_MODE=disabled. Next: WANDB_MODE=online or offline.")
    code = 0 if run.state is State.SUCCEEDED or run.ended is None else 1
    try:
        there.config.update({**run.params, **run.tags}, allow_val_change=True)
        # A restarted attempt repeats steps, but W&B's steps only grow.
        there.define_metric(_STEP)
        there.define_metric("*", step_metric=_STEP)
        for point in run.points[there.step :]:
            there.log({**_named(point.metrics), _STEP: point.step, "_timestamp": point.time}, step=point.number)
        there.summary.update(_named(run.final))
    except BaseException:
        code = 1
        raise
    finally:
        there.finish(exit_code=code)
    return there.url or _offline(there, ident)


def _named(metrics: Mapping[str, float]) -> dict[str, float]:
    # Names with an underscore first belong to W&B itself.
    return {f"metric{name}" if name.startswith("_") else name: value for name, value in metrics.items()}


def _offline(there: Any, ident: str) -> str:
    """Remove the folders of earlier exports of this run beside a folder, and return the folder."""
    folder = Path(there.dir).parent
    for other in folder.parent.glob(f"offline-run-*-{ident}"):
        if other != folder and not other.is_symlink():
            own_folders.remove(str(other), private=False)
    _log.info(f"Offline: nothing was sent. Next: wandb sync {folder}")
    return str(folder)
