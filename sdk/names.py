"""podlift's two names: `podlift` and `sdk` are one package, and each of its modules is loaded once, as `podlift.X`.

A project may have a top-level `sdk` or `podlift` of its own. Its own comes first, as it does without podlift; then podlift goes
by the other name, or by a third one that is for nothing else. See docs/explanation/decisions/import-name.md. Nothing here may
import another module of podlift: this file is run by its path, before any name is known.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NAMES = ("podlift", "sdk")
_SPARE = "_podlift"
_FIRST_WORD = b'"""podlift:'


def load(folder: str, real: str = "") -> ModuleType:
    """Return the package whose files lie in a folder; it is loaded once, whatever it is asked for by.

    Args:
        folder: of this file.
        real: the name that its modules get; by default `podlift`, where that is free.
    """
    before = next((finder.podlift_name for finder in sys.meta_path if hasattr(finder, "podlift_name")), "")
    if before in sys.modules:
        return sys.modules[before]
    real = real or (NAMES[0] if _is_free(NAMES[0]) else _SPARE)
    sys.meta_path.insert(0, Names(folder, real))
    # What a file of that name has begun.
    sys.modules.pop(real, None)
    return importlib.import_module(real)


def settle(own: Iterable[str], real: str = "") -> None:
    """Leave those of podlift's names to the project that it has modules of, and take the others, whatever the path holds.

    Args:
        own: the project's.
        real: the name that podlift was loaded by.
    """
    package = sys.modules[real or str(__package__)]
    for name in set(NAMES) - {package.__name__}:
        if name not in own:
            sys.modules[name] = package
            continue
        for module in [key for key in sys.modules if key.partition(".")[0] == name]:
            if sys.modules[module].__name__.partition(".")[0] == package.__name__:
                del sys.modules[module]


def real_name(own: Iterable[str]) -> str:
    """Return the name that podlift goes by in a task of a project which has those of its names."""
    return _SPARE if NAMES[0] in own else NAMES[0]


def is_podlift(file: str) -> bool:
    """Return whether an `__init__.py` is podlift's, of any version."""
    try:
        with open(file, "rb") as text:
            return text.read(len(_FIRST_WORD)) == _FIRST_WORD
    except OSError:
        return False


class Names:
    """Finds the package by its real name, and by the others where nothing else has them.

    Args:
        folder: of the package.
        real: the name of its modules.
    """

    def __init__(self, folder: str, real: str) -> None:
        self._folder = folder
        self.podlift_name = real

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, inner = fullname.partition(".")
        real = self.podlift_name
        if fullname == real:
            file = f"{self._folder}/__init__.py"
            return importlib.util.spec_from_file_location(real, file, submodule_search_locations=[self._folder])
        if top not in NAMES or top == real:
            return None
        if inner:
            same = sys.modules.get(top) is sys.modules.get(real)
            found = importlib.util.find_spec(f"{real}.{inner}") if same else None
            return None if found is None else _other_name(fullname, found)
        found = self._of_others(fullname, path, target)
        if found is not None and not is_podlift(found.origin or ""):
            return found
        return _other_name(fullname, importlib.import_module(real).__spec__)

    def _of_others(self, *asked: Any) -> ModuleSpec | None:
        place = next((place for place, finder in enumerate(sys.meta_path) if finder is self), -1)
        for finder in sys.meta_path[place + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(*asked)
            if spec is not None:
                return spec
        return None


def _other_name(name: str, found: ModuleSpec | None) -> ModuleSpec:
    if found is None:
        raise ImportError(f"podlift was loaded without its import system: {name!r} cannot be found.", name=name)
    loader: Any = _OtherName(found)
    spec = ModuleSpec(name, loader, origin=found.origin)
    spec.submodule_search_locations = found.submodule_search_locations
    return spec


class _OtherName:
    """Loads a module by another name: it is the same module.

    Args:
        found: where it is, by its real name.
    """

    def __init__(self, found: ModuleSpec) -> None:
        self._found = found
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._found.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has given it the other name's.
        module.__spec__ = self._spec

    def get_code(self, name: str) -> Any:
        """Return what `python -m` runs."""
        loader: Any = self._found.loader
        return loader.get_code(self._found.name)

    def get_source(self, name: str) -> Any:
        """Return the text, for tracebacks of `python -m`."""
        loader: Any = self._found.loader
        return loader.get_source(self._found.name)

    def get_filename(self, name: str) -> Any:
        """Return the file."""
        return self._found.origin

    def is_package(self, name: str) -> bool:
        """Return whether it is one."""
        return self._found.submodule_search_locations is not None


def _is_free(name: str) -> bool:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return is_podlift(getattr(loaded, "__file__", None) or "")
    found = PathFinder.find_spec(name)
    # A folder without an `__init__.py` counts only where nothing else has its name.
    return found is None or found.origin is None or is_podlift(found.origin)
