"""What the operating system has to say about a path that a user gave, as a sentence instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import InputError

_SHOWN = 200


@contextmanager
def usable(what: str, received: object) -> Iterator[None]:
    """Turn what goes wrong with a path inside the block into an InputError.

    Args:
        what: what the path is for: "The project".
        received: what the user gave.

    Raises:
        InputError: too long, a loop of links, an unknown home, no permission, a current folder that was removed.
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        text = str(received)
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise InputError(f"{what} is no usable path: {_reason(error)}. Received: {text!r}.") from None


def _reason(error: OSError | RuntimeError | ValueError) -> str:
    # Only os.getcwd() fails without naming a file.
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "the current folder was removed"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    # "Symlink loop from '/x'", "Could not determine home directory.", "embedded null byte".
    return str(error).rstrip(".").lower()
