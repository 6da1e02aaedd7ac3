"""Trackio: a run in a local project, with its config and its metrics.

Trackio cannot continue a run at a known row: the whole run is written again, and then the earlier export is deleted.
"""

from __future__ import annotations

import os
from typing import Any

from ..errors import InputError, PodliftError
from .exported import ExportedRun

_REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
# It dates each row itself, by the time of the export.
_ELAPSED = "podlift/elapsed_s"


def write(run: ExportedRun, into: str | None) -> str:
    if remote := [name for name in _REMOTE if os.environ.get(name)]:
        raise InputError(
            f"Runs are exported to Trackio's projects on this machine. {' and '.join(remote)} would send them elsewhere. "
            "Next: unset it, export, then trackio sync."
        )
    import trackio

    project = into or os.environ.get("TRACKIO_PROJECT") or run.label
    final = {f"final/{name}": value for name, value in run.final.items()}
    there = trackio.init(
        project=project,
        name=run.id,
        config={**run.params, **run.tags, **final},
        resume="never",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    try:
        for point in run.points:
            there.log({**point.metrics, _ELAPSED: point.time - run.created}, step=point.step)
        if not run.points:
            # Without a row there is no run.
            there.log({_ELAPSED: (run.ended or run.created) - run.created}, step=0)
    finally:
        trackio.finish()
    _replace(trackio.Api().runs(project), there.id, run)
    return f"trackio show --project {project}"


def _replace(runs: Any, new: str, run: ExportedRun) -> None:
    """Delete the earlier exports of a run, once the new one is there."""
    own = [export for export in runs if export.name == run.id and (export.config or {}).get("podlift.url") == run.url]
    if new not in [export.id for export in own]:
        raise PodliftError(f"Trackio has not stored {run.id}. Earlier exports of it are unchanged.")
    for export in own:
        if export.id != new:
            export.delete()
