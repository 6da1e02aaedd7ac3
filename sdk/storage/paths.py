"""Turns errors of the operating system about a path that a user gave into an InputError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from ..errors import InputError

_MAX_CHARACTERS = 200


@contextmanager
def usable(what: str, received: object) -> Iterator[None]:
    """Raise an InputError for an error with a path in the block: too long, a loop of links, no permission, ...

    Usage: `with usable("The project", folder): ...`
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        text = str(received)
        if len(text) > _MAX_CHARACTERS:
            text = f"{text[:_MAX_CHARACTERS]}..."
        raise InputError(f"{what} is not a usable path: {_reason(error)}. Received: {text!r}.") from None


def _reason(error: OSError | RuntimeError | ValueError) -> str:
    # Only os.getcwd() fails without naming a file.
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "the current folder was removed"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    # "Symlink loop from '/x'", "Could not determine home directory.", "embedded null byte".
    return str(error).rstrip(".").lower()


def destination(dest: str | Path, run_dir: Path) -> str:
    """Return the absolute path of a folder in which outputs may be written, whether it exists or not."""
    if not isinstance(dest, (str, PurePath)) or not str(dest) or "://" in str(dest):
        raise InputError(f"The destination is not a folder of this machine. Received: {dest!r}.")
    with usable("The destination", dest):
        target = Path(dest).expanduser().resolve()
        # Everything in that folder is listed as a run.
        if target.is_relative_to(run_dir.resolve().parent):
            raise InputError(
                f"The destination is in the folder of runs. Received: {str(dest)!r}. Next: name a folder elsewhere."
            )
        if target.exists() and not target.is_dir():
            raise InputError(f"The destination is a file. Received: {str(dest)!r}. Next: name a folder.")
    return str(target)
