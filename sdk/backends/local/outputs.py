"""What the program has left, brought to where it outlives the attempt's folders: see records/outputs.py."""

from __future__ import annotations

from ...records import outputs
from ...records.recorder import Recorder
from ...spec.plan import Plan


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
