"""Where a task that is not the chief keeps its copies of the files that all tasks of a gang would write."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any

from ...logs import logger
from ...storage import own_folders

_log = logger("runtime")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
# The folder that TensorFlow's multi-worker tutorial gives each task; its maker also deletes it.
_TUTORIAL_FOLDER = re.compile(r"workertemp_\d+")
# Only this folder is deleted: the temporary folder may be the one that `tempfile` uses too.
_FOLDER = "instead-of-shared"
_MEMORY_SCHEMES = frozenset({"ram"})


def copy_path(path: str, temp_dir: str, cwd: str) -> str:
    """Return the path of the copy of `path` below `temp_dir`; different paths never share a copy."""
    url = _URL.fullmatch(path)
    if url is None or url[1].lower() == "file":
        scheme, rest = "file", local_path(url[2] if url else path, cwd).lstrip("/")
    else:
        scheme, rest = url[1].lower(), url[2].rstrip("/")
    return str(Path(temp_dir, scheme, *map(_component, rest.split("/"))))


def local_path(path: str, cwd: str) -> str:
    """Return `path` absolute and without '..'. Links are kept, the file need not exist."""
    return os.path.normpath(Path(cwd, path))


def _component(name: str) -> str:
    """Escape the parts of an object name that a folder tree cannot hold: empty, '.' and '..'."""
    return f"%{name}" if name in ("", ".", "..") or name.startswith("%") else name


def is_own_already(path: str, own: Collection[str], cwd: str) -> bool:
    """Return whether `path` is private to this task, so that it needs no redirection."""
    url = _URL.fullmatch(path)
    if url is not None and url[1].lower() in _MEMORY_SCHEMES:
        return True
    if any(_TUTORIAL_FOLDER.fullmatch(part) for part in path.split("/")):
        return True
    local = PurePosixPath(local_path(path, cwd))
    return url is None and any(str(folder) in own for folder in (local, *local.parents))


def as_text(path: object) -> str | None:
    """Return a path given as text or `os.PathLike`; None for open files."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        return None
    return text if isinstance(text, str) else None


class ChiefFiles:
    """The paths of the chief: the shared ones, even if the program does not recognize its task as the chief.

    The test of the Keras tutorial, `worker and task_id == 0`, is false on a chief and true on worker 0. The chief would
    save to a folder that it then deletes, while podlift redirects the saves of worker 0: no task would write the file.
    """

    def __init__(self) -> None:
        self._announced = False

    def target(self, path: Any) -> Any:
        """Return the shared path for one in the tutorial's folder for workers, and every other path unchanged."""
        text = as_text(path)
        parts = text.split("/") if text else []
        shared = "/".join(part for part in parts if not _TUTORIAL_FOLDER.fullmatch(part))
        if not text or shared == text:
            return path
        if not self._announced:
            self._announced = True
            _log.info(
                f"This task is the chief, although the program treats it as a worker: it saves {text} to {shared}."
            )
        return shared

    def saved(self, target: Any) -> None:
        pass


class TaskFiles:
    """The copies that one task writes instead of the shared files. They are deleted when the process exits."""

    def __init__(self, temp_dir: str) -> None:
        own = local_path(temp_dir, str(Path.cwd()))
        self._root = str(Path(own, _FOLDER))
        self._own = {own}
        self._complete: set[str] = set()
        self._owner: int | None = None

    def target(self, path: Any) -> Any:
        """Return where to write `path`, and create its folder."""
        copy = self._copy(path)
        if copy is None:
            return path
        if self._owner is None:
            self._announce(str(path))
        Path(copy).parent.mkdir(parents=True, exist_ok=True)
        return copy

    def source(self, path: Any) -> Any:
        """Return where to read `path`: from this task's copy if it saved one, since the chief may still be writing."""
        copy = self._copy(path)
        return copy if copy in self._complete else path

    def saved(self, target: Any) -> None:
        """Read from the copy at `target`, which is complete, from now on."""
        text = as_text(target)
        if text is not None:
            self._complete.add(os.path.normpath(text))

    def forget(self, target: Any) -> None:
        """Delete the copy at `target`: a file, a folder or the prefix of a TensorFlow checkpoint."""
        text = as_text(target)
        if text is None or Path(self._root) not in Path(text).parents or not Path(text).parent.is_dir():
            return
        self._complete.discard(text)
        copy = Path(text)
        checkpoint = (f"{copy.name}.data-", f"{copy.name}.index")
        parts = [part for part in copy.parent.iterdir() if part.name.startswith(checkpoint)]
        for path in (copy, *parts):
            own_folders.discard(self._root, os.path.relpath(path, self._root), private=False)

    def leave_alone(self, own: str) -> None:
        """Do not redirect below `own`: this process created it under a name that no other task knows."""
        self._own.add(local_path(own, str(Path.cwd())))

    def _copy(self, path: Any) -> str | None:
        text = as_text(path)
        if text is None or is_own_already(text, self._own, str(Path.cwd())):
            return None
        return copy_path(text, self._root, str(Path.cwd()))

    def _announce(self, path: str) -> None:
        self._owner = os.getpid()
        atexit.register(self._remove)
        _log.info(
            f"This task is not the chief: its saves to {path} and to other shared paths go to a temporary "
            'folder, and the chief writes the shared files. To write from all tasks: Code(writes="all") or --code-writes all.'
        )

    def _remove(self) -> None:
        # A forked child inherits the exit handler but does not own the folder.
        if os.getpid() == self._owner:
            own_folders.discard(self._root, private=False)
            with contextlib.suppress(OSError):  # not empty
                Path(self._root).parent.rmdir()
