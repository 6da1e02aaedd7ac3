"""Refuses to import the project's modules from outside the bundle: they would be missing on any other machine.

An editable install, a .pth file, `PYTHONPATH` or the program itself may put the original project on a task's path.
Modules that the bundle lacks would be found there, on this machine only.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

_INSTALLED = {"site-packages", "dist-packages"}


def install(folders: Sequence[str], work: Path) -> None:
    """Refuse to import from below `folders`, except from `work`, the task's copy of the bundle."""
    if folders:
        sys.meta_path.insert(0, _OutsideImports(folders, work))


class _OutsideImports:
    """Calls the other finders, and checks the path of the module that they found."""

    def __init__(self, folders: Sequence[str], work: Path) -> None:
        podlift = os.path.dirname(os.path.dirname(__file__))
        environment = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__))
        self._refused = {os.path.realpath(folder) for folder in folders}
        self._allowed = {os.path.realpath(folder) for folder in (str(work), podlift, *environment)}
        self._decisions: dict[str, bool] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # A module of a package is in the package's folder, or in one of several.
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
            path = spec.origin
            bad = self._is_refused(path if spec.submodule_search_locations is None else os.path.dirname(path))
        else:  # a namespace package is in the bundle if one of its folders is
            folders = list(spec.submodule_search_locations or ())
            path = folders[0] if folders else ""
            bad = bool(folders) and all(self._is_refused(folder) for folder in folders)
        if bad:
            raise ModuleNotFoundError(self._sentence(name, path), name=name, path=path)

    def _is_refused(self, path: str) -> bool:
        if path not in self._decisions:
            self._decisions[path] = self._decide(_real(os.path.abspath(path)))
        return self._decisions[path]

    def _decide(self, path: str) -> bool:
        """Return whether the innermost known folder that contains `path` is refused."""
        inside = _innermost(path, self._refused)
        if inside is None:
            return False
        exempt = _innermost(path, self._allowed)
        if exempt is not None and len(exempt) >= len(inside):
            return False
        return _INSTALLED.isdisjoint(Path(path[len(inside) :]).parts)

    def _sentence(self, name: str, path: str) -> str:
        missing = os.path.realpath(path)
        if os.path.basename(missing) == "__init__.py":
            missing = os.path.dirname(missing)
        if (
            len(self._refused) == 1
        ):  # relative to the project, as --code-include expects; an absolute path works as well
            missing = os.path.relpath(missing, next(iter(self._refused)))
        return (
            f"The module {name!r} is not in the bundle. It was found at {path!r}, in the original project, which no other "
            f"machine has. Next: package it with --code-include {missing}, or check whether .gitignore, .podliftignore or "
            "--code-exclude excludes it."
        )


@functools.cache
def _real(path: str) -> str:
    """Resolve links, examining each folder once; os.path.realpath examines all of them for every module."""
    parent, name = os.path.split(path)
    if not name or os.path.islink(path):
        return os.path.realpath(path)
    return os.path.join(_real(parent), name)


def _innermost(path: str, folders: Iterable[str]) -> str | None:
    around = [folder for folder in folders if path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)]
    return max(around, key=len, default=None)
