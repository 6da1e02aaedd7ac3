"""What the program has left, brought to where it outlives the attempt's folders: see storage/outputs.py."""

from __future__ import annotations

from ...planner import Plan
from ...storage import outputs
from ...storage.records import Recorder


def collect(plan: Plan, attempt: int, recorder: Recorder) -> None:
    """Bring what the first task has left to the run's outputs, and record it; raises for nothing that it meets there.

    Args:
        plan: the run, whose tasks are gone.
        attempt: which try of it is over.
        recorder: the supervisor's, for that attempt.
    """

    def planned() -> dict[str, tuple[int, str]]:
        return {path: (size, digest) for path, size, digest, *_ in plan.files}

    outputs.collect(plan.paths, attempt, plan.tasks[0], planned, recorder)
