"""A run whose records, logs and outputs are in a folder that this machine sees."""

from __future__ import annotations

from collections.abc import Iterator

from ..clock import Clock
from ..errors import PodliftError
from ..process import log_lines, supervision
from ..process.log_lines import LogLine
from ..records.recorder import position
from ..spec.plan import Plan
from ..status import Progress, Status
from ..storage import posix


class FolderRun:
    """The handle of such a run: the records and the supervisor's process tell everything about it."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock

    def refresh(self, *, logs: bool = False) -> None:
        """Do nothing: the folder is current."""

    def supervised(self) -> bool:
        """Return whether the supervisor is alive."""
        return supervision.is_supervised(self._plan.paths, self._clock)

    def merge(self, status: Status) -> Status:
        """Return the status unchanged: the records hold everything."""
        return status

    def progress(self) -> Progress | None:
        """Return the current training progress."""
        return position(self._plan.paths, self._plan.tasks[0])

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines of the tasks' log files."""

        def supervised() -> bool:
            supervised = self.supervised()
            self.refresh(logs=True)
            return supervised

        return log_lines.read(self._plan, task=task, attempt=attempt, follow=follow, supervised=supervised)

    def cancel(self, grace_s: float) -> None:
        """Write a cancel request to the run's directory, which the supervisor polls several times a second."""
        paths = self._plan.paths
        requests = len(posix.list_names(paths.control))
        try:
            posix.put_new(paths.cancel_request(requests + 1), f'{{"grace_s": {float(grace_s)}}}\n'.encode())
        except FileExistsError:
            pass  # another client made a request at the same moment
        except OSError as error:
            raise PodliftError(f"The run cannot be cancelled: {error}.") from error

    def fetch_outputs(self) -> None:
        """Do nothing: they are in the folder."""

    def settle(self, until: float | None) -> None:
        """Do nothing: there is no other copy."""
