"""Reads the plan of a run: the plan of its submit, or of its latest resume."""

from __future__ import annotations

import os

from ..job.layout import RunPaths
from ..job.plan import Plan
from .recorder import read_events, read_file


def read_plan(paths: RunPaths, root: str = "") -> Plan:
    """Return the plan of a run; `root` may differ from the root of the submit. CorruptRunError if it is damaged."""
    file = paths.plan
    if os.path.isdir(os.path.dirname(paths.revision(""))):
        resumed = sorted(read_events(paths, ("resumed",)), key=lambda event: int(event.data["attempts"]))
        names = [str(event.data["plan"]) for event in resumed if "plan" in event.data]
        file = paths.revision(names[-1]) if names else file
    return Plan.from_json(read_file(file), file, root=root, folder=paths.root)
