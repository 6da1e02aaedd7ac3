"""podlift's two import names: `podlift` and `sdk` are one package, and each module is loaded once, as `podlift.X`.

A project may have a top-level `sdk` or `podlift` of its own. The project's module wins, as it does without podlift; then
podlift uses the other name, or a third, reserved one. See docs/explanation/decisions/import-name.md. Nothing here may import
another module of podlift: this file is executed by its path, before the package has a name.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports much more
import os
import sys


def _is_command() -> bool:
    """Return whether this process is the command `podlift`, whose first import of podlift this is."""
    first, words = os.path.basename((getattr(sys, "argv", None) or [""])[0]), list(sys.orig_argv)
    if first == "-m":
        return words[words.index("-m") + 1 :][:1] in (["podlift"], ["sdk"])
    return first in ("podlift", "podlift.exe")


def leave(*_: object) -> None:
    """End the command as Ctrl-C does: it has not begun, or is over."""
    try:
        os.write(2, b"podlift: interrupted.\n")
    except OSError:
        pass
    os._exit(130)


# Before anything else is imported, which takes a while. The command's own `main` decides what happens later.
if _is_command() and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, leave)

import importlib  # noqa: E402
import importlib.util  # noqa: E402
from collections.abc import Iterable, Sequence  # noqa: E402
from importlib.machinery import ModuleSpec, PathFinder  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

NAMES = ("podlift", "sdk")
_SPARE = "_podlift"
_FIRST_WORD = b'"""podlift:'


def load(folder: str, real: str = "") -> ModuleType:
    """Return the package in a folder, loaded once under whatever name; `real` defaults to `podlift` if that is free."""
    before = next((finder.podlift_name for finder in sys.meta_path if hasattr(finder, "podlift_name")), "")
    if before in sys.modules:
        return sys.modules[before]
    real = real or (NAMES[0] if _is_free(NAMES[0]) else _SPARE)
    sys.meta_path.insert(0, PackageFinder(folder, real))
    # A partial import under that name.
    sys.modules.pop(real, None)
    return importlib.import_module(real)


def settle(own: Iterable[str], real: str = "") -> None:
    """Release the names in `own`, which the project has modules of, and claim the others, whatever sys.path holds."""
    package = sys.modules[real or str(__package__)]
    for name in set(NAMES) - {package.__name__}:
        if name not in own:
            sys.modules[name] = package
            continue
        for module in [key for key in sys.modules if key.partition(".")[0] == name]:
            if sys.modules[module].__name__.partition(".")[0] == package.__name__:
                del sys.modules[module]


def real_name(own: Iterable[str]) -> str:
    """Return podlift's own name in a task, given the names that the project uses for modules of its own."""
    return _SPARE if NAMES[0] in own else NAMES[0]


def is_podlift(file: str) -> bool:
    """Return whether an `__init__.py` belongs to podlift, of any version."""
    try:
        with open(file, "rb") as text:
            return text.read(len(_FIRST_WORD)) == _FIRST_WORD
    except OSError:
        return False


class PackageFinder:
    """Finds the package by its real name, and by the other names unless something else has them."""

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
            return None if found is None else _alias_spec(fullname, found)
        found = self._find_elsewhere(fullname, path, target)
        if found is not None and not is_podlift(found.origin or ""):
            return found
        return _alias_spec(fullname, importlib.import_module(real).__spec__)

    def _find_elsewhere(self, *arguments: Any) -> ModuleSpec | None:
        position = next((index for index, finder in enumerate(sys.meta_path) if finder is self), -1)
        for finder in sys.meta_path[position + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(*arguments)
            if spec is not None:
                return spec
        return None


def _alias_spec(name: str, found: ModuleSpec | None) -> ModuleSpec:
    if found is None:
        raise ImportError(f"podlift was loaded without its import system: {name!r} cannot be found.", name=name)
    loader: Any = _AliasLoader(found)
    spec = ModuleSpec(name, loader, origin=found.origin)
    spec.submodule_search_locations = found.submodule_search_locations
    return spec


class _AliasLoader:
    """Loads a module under another name: the same module object."""

    def __init__(self, found: ModuleSpec) -> None:
        self._found = found
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._found.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has set the alias's spec.
        module.__spec__ = self._spec

    def get_code(self, name: str) -> Any:
        loader: Any = self._found.loader
        return loader.get_code(self._found.name)

    def get_source(self, name: str) -> Any:
        loader: Any = self._found.loader
        return loader.get_source(self._found.name)

    def get_filename(self, name: str) -> Any:
        return self._found.origin

    def is_package(self, name: str) -> bool:
        return self._found.submodule_search_locations is not None


def _is_free(name: str) -> bool:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return is_podlift(getattr(loaded, "__file__", None) or "")
    found = PathFinder.find_spec(name)
    # A folder without an `__init__.py` counts only if nothing else has its name.
    return found is None or found.origin is None or is_podlift(found.origin)
