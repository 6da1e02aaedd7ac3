"""The candidate for a version: the model in the outputs of a run, and its origin."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError, StoreError
from ..job.plan import Plan
from ..storage import fingerprints, trees
from ..text import and_more
from .records import Lineage, VersionData

_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The model of a run: its files in a folder of this machine, and its lineage."""

    folder: str  # or a file
    lineage: Lineage


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The outputs of a run in a folder, and the skipped files with the reasons; None if its end was not recorded."""

    folder: str
    skipped: Sequence[tuple[str, str]] | None
    saved_step: int | None = None  # of the last checkpoint, None without one


def checked_source(path: str) -> str:
    """Return the path of a model in the outputs of a run; InputError if it cannot be one."""
    source = posixpath.normpath(path)
    if source == "." or source.split("/")[0] in ("", ".."):
        raise InputError(f"--path must be a file or folder in the outputs of the run. Received: {path!r}.")
    return source


def candidate(
    plan: Plan,
    outputs: Outputs,
    source: str,
    *,
    run_url: str,
    state: str,
    metrics: dict[str, float | None],
    findings: Sequence[str],
) -> Candidate:
    """Return the model of a run; InputError unless its outputs contain all of it. `findings` are its notes."""
    _check(plan.run_id, outputs, source)
    code, initial = plan.code, plan.initial
    about = Lineage(
        run=plan.run_id,
        run_url=run_url,
        state=state,
        bundle=code.digest,
        program=":".join(filter(None, (code.program, code.function))),
        args=(*code.argv, *(f"{name}={value!r}" for name, value in code.kwargs.items())),
        source=source,
        metrics=metrics,
        data={name: data_of(location) for name, location in plan.inputs.items()},
        warm_start=None if initial is None or initial.unused in findings else initial,
    )
    return Candidate(folder=f"{outputs.folder}/{source}", lineage=about)


def _check(run_id: str, outputs: Outputs, source: str) -> None:
    """Raise InputError unless the outputs contain a complete model."""
    files = sorted(trees.walk(outputs.folder).files) if os.path.isdir(outputs.folder) else []
    offered = [path for path in files if not posixpath.basename(path).startswith(".podlift-")]
    below = [path for path in offered if path == source or path.startswith(f"{source}/")]
    if outputs.skipped is None:
        raise InputError(
            f"The outputs of the run {run_id} may be incomplete: its end was not recorded. Nothing was registered. Next: "
            f"podlift resume {run_id}."
        )
    missing = [
        f"{name} ({why})"
        for name, why in outputs.skipped
        if name == "/"
        or f"{name.rstrip('/')}/".startswith(f"{source}/")
        or f"{source}/".startswith(f"{name.rstrip('/')}/")
    ]
    if missing:
        raise InputError(
            f"The model of the run {run_id} is incomplete. Not collected: {and_more(missing, _NAMED)}. Nothing was registered."
        )
    if not below:
        where = "ctx.dirs.model" if source == "model" else repr(source)
        has = f"It has {and_more(offered, _NAMED)}." if offered else "It has no outputs."
        following = ""
        if outputs.saved_step is not None:
            has += f" Its last checkpoint, at step {outputs.saved_step}, is the state of its training, and no model."
            following = f", and submit it with --checkpoint-resume-from {run_id}, which continues from that state"
        example = next((path for path in offered if path.startswith("work/")), "work/model.keras")
        raise InputError(
            f"The run {run_id} has no model: its program wrote no file to {where}. {has} Next: podlift models add {run_id} "
            f"--path {shlex.quote(example)}, or let the program save its model in ctx.dirs.model{following}."
        )


def data_of(location: str) -> VersionData:
    """Return the present state of the data at a location; "" is no data."""
    if not location:
        return VersionData(location="", digest="")
    try:
        state = fingerprints.state_of(location, count=False)
    except StoreError as error:
        return VersionData(location=location, digest="", problem=str(error))
    return VersionData(location=location, digest=state.digest)
