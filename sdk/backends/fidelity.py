"""What a vendor's service does, and whether local runs and the emulator do the same: `podlift plan --fidelity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# What of a plan a behaviour concerns.
Concern = Literal["every job", "several tasks", "gpus", "tpus", "spot", "flex", "schedules"]
Where = Literal["local", "emulator"]


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """One behaviour of a service.

    Attributes:
        name: by which tests mark that they show it.
        text: one sentence.
        source: where it is documented or was observed.
        concern: the jobs to which it matters.
        attempt: the command that tries it on the real service, "" where every job does.
        shown_by: the tests that show it for local runs and for the emulator; neither if it is not reproduced.
    """

    name: str
    text: str
    source: str
    concern: Concern = "every job"
    attempt: str = ""
    shown_by: Mapping[Where, Sequence[str]]

    def reproduced(self, where: Where) -> bool:
        return bool(self.shown_by.get(where))
