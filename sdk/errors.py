"""Everything podlift raises on purpose, and the exit code of each.

    PodliftError                  3
    ├── InputError (ValueError)   2   invalid input; lists all mistakes at once
    │   ├── RunNotFoundError      2   (LookupError) no run of that name or URL
    │   ├── CorruptRunError       2   not a run directory of podlift, or a damaged one
    │   ├── InsideTaskError       2   submit or plan called by the running program itself
    │   ├── FutureFormatError     2   a checkpoint written by a newer podlift
    │   └── CheckpointMismatchError 2 a checkpoint of another model; lists every name and shape that differs
    ├── StoreError                3   an operation of a store failed; nothing is known to have changed
    │   ├── AlreadyExistsError    3   a write-once object that exists already
    │   ├── MissingError          3   (LookupError) no object of that name
    │   ├── ConflictError         3   the object has another generation than the expected one
    │   ├── AccessError           3   credentials or a permission are missing
    │   ├── CorruptObjectError    3   an object's bytes differ from the written ones
    │   └── StoreUnavailableError 3   (UnavailableError) it does not answer now, or has failed
    ├── UnavailableError          3   a service does not answer now, or has failed: the same request may succeed later
    ├── CheckpointError           3   a checkpoint could not be saved or read
    │   ├── CorruptCheckpointError 3  it does not verify; the message names the file
    │   ├── FencedError           3   a newer attempt has taken over the store: stop writing
    │   └── SaveFailedError       3   a save in the background failed
    ├── RunError                  3   the run did not succeed; see `.status`
    │   ├── RunFailedError        1   the user's program failed
    │   ├── RunCancelledError     4
    │   └── RunCheckpointedError 75   it saved its state and requests a restart
    └── WaitTimeoutError          3   (TimeoutError) still running after `timeout_s`

Exit codes are stable: 0 done, 1 user error in the job, 2 bad input, 3 infrastructure, 4 cancelled, 75 checkpointed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from .status import EXIT_CANCELLED, EXIT_CHECKPOINTED, EXIT_INFRASTRUCTURE, EXIT_INPUT, EXIT_USER, Status


class PodliftError(Exception):
    """The base class of all errors that podlift raises: `except sdk.PodliftError as error: sys.exit(error.exit_code)`."""

    exit_code = EXIT_INFRASTRUCTURE


class InputError(PodliftError, ValueError):
    """The input is invalid; nothing was written or started: `except sdk.InputError as error: print(error.problems)`.

    Args:
        problems: one message for each mistake.
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
    """There is no run of that name or URL: `except sdk.RunNotFoundError as error: print(error)`."""


class CorruptRunError(InputError):
    """The directory is not a run of podlift, or it is damaged: `[info.url for info in sdk.runs() if info.problem]`."""


class InsideTaskError(InputError, RuntimeError):
    """The running program called `submit` or `plan`. Guard it: `if __name__ == "__main__": sdk.submit("train.py")`."""


class FutureFormatError(InputError):
    """The checkpoint was written by a newer podlift than this one."""


class CheckpointMismatchError(InputError):
    """The checkpoint belongs to another model; `problems` lists each name, shape and dtype that differs.

    `missing` are the paths that only the checkpoint has, `extra` the paths that only the program has, and `different` has the
    differences by path.
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
    """An operation of a store failed: the disk is full, read-only, missing, or does not respond."""


class AlreadyExistsError(StoreError):
    """An object of that name exists already, and objects are written once."""


class MissingError(StoreError, LookupError):
    """No object of that name exists."""


class ConflictError(StoreError):
    """The object has another generation than the expected one: another process wrote it."""


class AccessError(StoreError):
    """Credentials or a permission are missing; the message says how to get them."""


class CorruptObjectError(StoreError):
    """The bytes of an object differ from the written ones."""


class UnavailableError(PodliftError):
    """A service does not answer now, or has failed: the same request may succeed later. It never ends a wait."""


def may_pass(error: PodliftError) -> bool:
    """True if waiting may mend it: a service that does not answer, or a store that failed for no known reason."""
    return isinstance(error, UnavailableError) or type(error) is StoreError


class StoreUnavailableError(StoreError, UnavailableError):
    """A store does not answer now, or has failed; retries did not help."""


class CheckpointError(PodliftError):
    """A checkpoint could not be saved or read."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint does not verify."""


class FencedError(CheckpointError):
    """A newer attempt has taken over the store: this one must stop writing."""


class SaveFailedError(CheckpointError):
    """A save in the background has failed; earlier checkpoints are intact."""


class RunError(PodliftError):
    """A run did not succeed: `except sdk.RunError as error: print(error.status.failure)`.

    The message holds the task, its traceback and the place of its logs; `status` is the last status.
    """

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class RunFailedError(RunError):
    """The user's program failed; the message holds its traceback: `except sdk.RunFailedError as error: print(error.status)`."""

    exit_code = EXIT_USER


class RunCancelledError(RunError):
    """The run was cancelled: `except sdk.RunCancelledError: run.resume()`."""

    exit_code = EXIT_CANCELLED


class RunCheckpointedError(RunError):
    """The program saved its state and exited with 75: `except sdk.RunCheckpointedError: run.resume()`."""

    exit_code = EXIT_CHECKPOINTED


class WaitTimeoutError(PodliftError, TimeoutError):
    """The run continues after the timeout of `wait` or `result`: `except sdk.WaitTimeoutError: run.cancel()`."""


class Problems:
    """Collects the mistakes of several independent checks into one error."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._cause: BaseException | None = None

    def add(self, message: str) -> None:
        self.messages.append(message)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Catch an InputError of the block and keep its messages for `raise_if_any`."""
        try:
            yield
        except InputError as error:
            self.messages += [problem for problem in error.problems if problem not in self.messages]
            self._cause = self._cause or error.__cause__

    @contextmanager
    def closing(self, written: Callable[[Iterable[str]], list[str]] = list) -> Iterator[None]:
        """Raise one InputError when the block ends, with the earlier messages and the block's; `written` rewords them."""
        with self.collect():
            yield
        self.messages = written(self.messages)
        self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raise one InputError with every message collected so far."""
        if self.messages:
            raise InputError(self.messages) from self._cause


def nearest(word: str, names: Sequence[str]) -> str:
    """Return "Did you mean 'x'?" or, if nothing is close, "Known: a, b."."""
    near = get_close_matches(word, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(names))}."
