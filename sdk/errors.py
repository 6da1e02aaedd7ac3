"""Everything podlift raises on purpose, and the exit code of each.

    PodliftError                  3
    ├── InputError (ValueError)   2   something you gave us is wrong; all mistakes at once
    │   ├── RunNotFoundError      2   (LookupError) no run of that name or URL
    │   ├── CorruptRunError       2   a run directory that we did not write, or that is damaged
    │   ├── InsideTaskError       2   submit or plan called by the program that is being run
    │   ├── FutureFormatError     2   a checkpoint that a newer podlift wrote
    │   └── CheckpointMismatchError 2 a checkpoint of another model; every name and shape that differs
    ├── StoreError                3   a store could not do what it was asked; nothing is known to have changed
    │   ├── AlreadyExistsError    3   write-once, and somebody wrote it before
    │   ├── MissingError          3   (LookupError) no object of that name
    │   ├── ConflictError         3   another generation than the expected one is there
    │   ├── AccessError           3   it does not let us in: credentials or a permission are missing
    │   └── CorruptObjectError    3   an object's bytes are not those that were written
    ├── CheckpointError           3   a checkpoint could not be saved or read
    │   ├── CorruptCheckpointError 3  it does not verify; the sentence names the file
    │   ├── FencedError           3   a newer attempt has taken the store over: stop writing
    │   └── SaveFailedError       3   a save in the background failed
    ├── RunError                  3   the run ended badly; .status says how
    │   ├── RunFailedError        1   the user's program failed
    │   ├── RunCancelledError     4
    │   └── RunCheckpointedError 75   it saved its state and asks to be started again
    └── WaitTimeoutError          3   (TimeoutError) still going after `timeout_s`

Exit codes are stable: 0 done, 1 user error in the job, 2 bad input, 3 infrastructure, 4 cancelled, 75 checkpointed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .status import Status

EXIT_DONE = 0
EXIT_USER = 1
EXIT_INPUT = 2
EXIT_INFRASTRUCTURE = 3
EXIT_CANCELLED = 4
EXIT_CHECKPOINTED = 75


class PodliftError(Exception):
    """The root of the tree."""

    exit_code = EXIT_INFRASTRUCTURE


class InputError(PodliftError, ValueError):
    """What you gave is wrong. `problems` holds one sentence for each mistake; nothing was written or started.

    Args:
        problems: a sentence, or several.
    """

    exit_code = EXIT_INPUT

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        return f"{len(self.problems)} problems:" + "".join(f"\n  - {problem}" for problem in self.problems)


class RunNotFoundError(InputError, LookupError):
    """No run directory is where the name or URL points."""


class CorruptRunError(InputError):
    """A run directory holds something that podlift did not write, or no longer holds what it wrote."""


class InsideTaskError(InputError, RuntimeError):
    """`submit` or `plan` was called by the very program that is being run."""


class FutureFormatError(InputError):
    """A checkpoint was written by a newer podlift than this one."""


class CheckpointMismatchError(InputError):
    """A checkpoint is of another model: each name, shape and dtype that differs is a problem of the list.

    Args:
        problems: a sentence for each.
        missing: paths that only the checkpoint has.
        extra: paths that only the program has.
        different: what differs, by path.
    """

    def __init__(
        self,
        problems: Sequence[str],
        *,
        missing: Sequence[str] = (),
        extra: Sequence[str] = (),
        different: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(problems)
        self.missing, self.extra, self.different = list(missing), list(extra), dict(different or {})


class StoreError(PodliftError):
    """A store could not do what it was asked: the disk is full, read-only, not there, or does not answer."""


class AlreadyExistsError(StoreError):
    """An object of that name exists, and objects are written once."""


class MissingError(StoreError, LookupError):
    """No object of that name exists."""


class ConflictError(StoreError):
    """The object has another generation than the expected one: somebody else wrote it."""


class AccessError(StoreError):
    """The store does not let us in: credentials or a permission are missing, and the sentence says how to get them."""


class CorruptObjectError(StoreError):
    """The bytes of an object are not the ones that were written."""


class CheckpointError(PodliftError):
    """A checkpoint could not be saved or read."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint does not verify."""


class FencedError(CheckpointError):
    """A newer attempt has taken over: this one may write no more."""


class SaveFailedError(CheckpointError):
    """A save that went on in the background has failed; what was committed before it is untouched."""


class RunError(PodliftError):
    """A run ended otherwise than by success.

    Args:
        message: what happened, with the task, its traceback and where the logs are.
        status: the run's last status.
    """

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class RunFailedError(RunError):
    """The user's program failed; the message holds its traceback."""

    exit_code = EXIT_USER


class RunCancelledError(RunError):
    """Somebody cancelled the run."""

    exit_code = EXIT_CANCELLED


class RunCheckpointedError(RunError):
    """The program saved its state and left with 75: start it again."""

    exit_code = EXIT_CHECKPOINTED


class WaitTimeoutError(PodliftError, TimeoutError):
    """The run was still going when the time given to `wait` or `result` was over. The run goes on."""


class Problems:
    """Collects the mistakes of several independent checks, so that the user sees all of them at once."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._cause: BaseException | None = None

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Swallow an InputError of the block and keep its sentences for `raise_if_any`."""
        try:
            yield
        except InputError as error:
            self.found += [problem for problem in error.problems if problem not in self.found]
            self._cause = self._cause or error.__cause__

    def raise_if_any(self) -> None:
        """Raise one InputError with every sentence collected so far."""
        if self.found:
            raise InputError(self.found) from self._cause


def nearest(word: str, known: Sequence[str]) -> str:
    """Return "Did you mean 'x'?" or, with nothing near, "Known: a, b."."""
    near = get_close_matches(word, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(known))}."
