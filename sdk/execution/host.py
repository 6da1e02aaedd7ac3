"""The calls of an agent to the machine or container on which it runs tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..clock import Clock
from ..job.layout import RunPaths
from ..process.template import TaskStart
from ..records.recorder import Recorder
from ..records.verdicts import AttemptEnd
from .agreement import Membership
from .ending import Scope
from .output import Output
from .task import TaskProcess


@dataclass(frozen=True, kw_only=True)
class AttemptSetup:
    """An attempt before the start of its tasks."""

    recorder: Recorder  # writes the agent's records
    output: Output
    restarts: int = 0  # how often the host's task was restarted alone before, in other containers


# The state of a host for the time of an attempt.
B = TypeVar("B", bound=AttemptSetup)


class Host(Protocol[B]):
    """A machine or a container.

    Attributes:
        paths: the run's folder here.
        tasks: the names of its tasks.
        scope: the view of the agent.
        folders: the folders of the tasks; their disk may be full.
    """

    paths: RunPaths
    clock: Clock
    tasks: Sequence[str]
    scope: Scope
    folders: Sequence[str]

    @property
    def stop_requested(self) -> bool:
        """Whether the host is to end, and its tasks with it."""
        ...

    def begin(self, membership: Membership) -> B:
        """Prepare the folders and the output of an attempt."""
        ...

    def start(self, membership: Membership, setup: B) -> Mapping[str, TaskProcess]:
        """Start the tasks, and record that the attempt has begun; none if it was ended before they could start."""
        ...

    def start_again(self, start: TaskStart) -> TaskProcess:
        """Start a process in the place of one of the tasks, which is gone."""
        ...

    def clear(self, attempt: int, task: str) -> None:
        """Remove the working and temporary files of a task that has ended."""

    def keep_standby(self) -> None:
        """Called once a second while the tasks train: the host may import modules for the next attempt now."""

    def exit_code(self, own_end: AttemptEnd, code: int) -> int:
        """Return the code with which the host ends if no attempt follows; `code` is the exit code of its task."""
        ...

    def tidy(self, attempt: int, setup: B, *, more: bool) -> None:
        """Collect the files of an ended attempt; with `more`, another one follows, which need not wait for this."""
