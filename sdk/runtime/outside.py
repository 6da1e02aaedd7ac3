"""A module of the project that loads from outside the bundle is an error: elsewhere it would be missing.

An editable install, a .pth file, `PYTHONPATH` or the program itself may put the original project on the path of a task.
What the bundle lacks would then be found there, on this machine only.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

_INSTALLED = {"site-packages", "dist-packages"}


def install(folders: Sequence[str], work: Path) -> None:
    """Refuse modules from below `folders`, in every import of this process from now on.

    Args:
        folders: the project's, and what else is packaged from beside it.
        work: the task's copy of the bundle, which may lie in one of them.
    """
    if folders:
        sys.meta_path.insert(0, _Border(folders, work))


class _Border(importlib.abc.MetaPathFinder):
    """Lets the other finders answer, and looks at where a module that they have found would load from."""

    def __init__(self, folders: Sequence[str], work: Path) -> None:
        ours = os.path.dirname(os.path.dirname(__file__))
        environment = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__))
        self._refused = {os.path.realpath(folder) for folder in folders}
        self._allowed = {os.path.realpath(folder) for folder in (str(work), ours, *environment)}
        self._known: dict[str, bool] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # A module of a package lies where its package does, unless the package has several folders.
        if path is not None and not any(self._is_refused(entry) for entry in path):
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                self._check(fullname, spec)
                return spec
        return None

    def _check(self, name: str, spec: importlib.machinery.ModuleSpec) -> None:
        if spec.has_location and spec.origin is not None:
            place = spec.origin
            bad = self._is_refused(place if spec.submodule_search_locations is None else os.path.dirname(place))
        else:  # a namespace package is in the bundle if any of its folders is
            folders = list(spec.submodule_search_locations or ())
            place = folders[0] if folders else ""
            bad = bool(folders) and all(self._is_refused(folder) for folder in folders)
        if bad:
            raise ModuleNotFoundError(self._sentence(name, place), name=name, path=place)

    def _is_refused(self, path: str) -> bool:
        if path not in self._known:
            self._known[path] = self._look(_real(os.path.abspath(path)))
        return self._known[path]

    def _look(self, path: str) -> bool:
        """Say whether the innermost folder around `path` that we know something about is a refused one."""
        inside = _innermost(path, self._refused)
        if inside is None:
            return False
        exempt = _innermost(path, self._allowed)
        if exempt is not None and len(exempt) >= len(inside):
            return False
        return _INSTALLED.isdisjoint(Path(path[len(inside) :]).parts)

    def _sentence(self, name: str, place: str) -> str:
        missing = os.path.realpath(place)
        if os.path.basename(missing) == "__init__.py":
            missing = os.path.dirname(missing)
        if len(self._refused) == 1:  # an include is relative to the project; an absolute one is right from anywhere
            missing = os.path.relpath(missing, next(iter(self._refused)))
        return (
            f"The module {name!r} is not in the bundle. It was found at {place!r}, in the original project, where no other "
            f"machine would find it. Next: package it with --include {missing}, or look whether .gitignore, .podliftignore "
            "or --exclude leaves it out."
        )


@functools.cache
def _real(path: str) -> str:
    """Resolve links with one look at each folder ever: os.path.realpath looks at all of them for every module."""
    parent, name = os.path.split(path)
    if not name or os.path.islink(path):
        return os.path.realpath(path)
    return os.path.join(_real(parent), name)


def _innermost(path: str, folders: Iterable[str]) -> str | None:
    around = [folder for folder in folders if path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)]
    return max(around, key=len, default=None)
