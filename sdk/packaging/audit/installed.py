"""The distributions that are installed here, the modules they bring, and the files from which modules would load.

Nothing is imported. Names and versions come from the names of the metadata folders; the lists of files are read only if they
are needed, because in an environment with TensorFlow they are megabytes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ..requirements.read import applies
from ..tree import names_in

_SUFFIXES = (".dist-info", ".egg-info")
_SITES = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class ModuleLocation:
    """Where a module would load from."""

    name: str
    # "standard": Python's own. "site": installed. "outside": another folder, which is on sys.path because of an editable
    # install, a .pth file or PYTHONPATH.
    kind: Literal["standard", "site", "outside", "missing"]
    path: str = ""  # its file, or a folder of it; "" for a built-in or missing module


class Installed:
    """The packages of this interpreter; with `pythonpath`, tasks get the caller's PYTHONPATH, which then counts too."""

    def __init__(self, *, pythonpath: bool = False) -> None:
        self._passed = pythonpath

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions of the distributions by normalised name, such as "tf-keras"."""
        return {name: version for name, (_, version) in reversed(self._distributions.items())}

    def locate(self, name: str, names: Iterable[str] = ()) -> list[ModuleLocation]:
        """Return where `import name` or `from name import names` would load from.

        Below a package with an `__init__.py` nothing is searched; names imported from a namespace package are modules.
        """
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in sys.builtin_module_names:
            return [ModuleLocation(name, "standard")]
        spec = self._find(name, self._sites) or self._find(name, None)
        if spec is None:
            return [ModuleLocation(name, "missing")]
        if spec.origin is not None or not spec.submodule_search_locations:
            return [self._location(name, spec)]
        below = [item for item in names if item != "*"]
        locations = [location for item in below for location in self.locate(f"{name}.{item}")]
        return locations or [self._location(name, spec)]

    def providers(self, module: ModuleLocation) -> set[str]:
        """Return the normalized names of the distributions with a record of installing a module."""
        above = next((folder for folder in self._sites if _below(module.path, folder)), None)
        if above is None:
            return set()
        file = os.path.relpath(module.path, above)
        return {name for name, files in self._files.items() if _holds(files, file)}

    def closure(self, requirements: Iterable[Requirement]) -> tuple[set[str], set[str]]:
        """Return the names of all distributions that requirements bring, directly or not, and of the ones missing here."""
        names: set[str] = set()
        unknown: set[str] = set()
        seen: set[tuple[str, str]] = set()
        waiting = [
            (canonicalize_name(item.name), extra) for item in requirements if applies(item) for extra in _extras(item)
        ]
        while waiting:
            name, extra = waiting.pop()
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            names.add(name)
            if name not in self._distributions:
                unknown.add(name)
                continue
            for item in self._requires(name):
                if applies(item, extra):
                    waiting += [(canonicalize_name(item.name), more) for more in _extras(item)]
        return names, unknown

    def _requires(self, name: str) -> list[Requirement]:
        requirements = []
        for text in importlib.metadata.Distribution.at(self._distributions[name][0]).requires or []:
            try:
                requirements.append(Requirement(text))
            except InvalidRequirement:
                continue
        return requirements

    @cached_property
    def _distributions(self) -> dict[str, tuple[Path, str]]:
        """The metadata folder and the version of each distribution: the first one on the path, as for modules."""
        distributions: dict[str, tuple[Path, str]] = {}
        for folder in (*self._sites, *(path for path in sys.path if path not in self._sites)):
            for entry in names_in(folder):
                if entry.endswith(_SUFFIXES):
                    name, version = _named(Path(folder, entry))
                    distributions.setdefault(canonicalize_name(name), (Path(folder, entry), version))
        return distributions

    @cached_property
    def _files(self) -> dict[str, bytes]:
        """The list of files of each distribution, one in a line, as its installer recorded it."""
        return {name: _recorded(info) for name, (info, _) in self._distributions.items()}

    @cached_property
    def _sites(self) -> list[str]:
        """The folders into which distributions are installed, in the order of the path."""
        python_path = {os.path.realpath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
        own = {
            *site.getsitepackages(),
            site.getusersitepackages(),
            sysconfig.get_path("purelib"),
            sysconfig.get_path("platlib"),
        }
        real = {os.path.realpath(path) for path in own} | (python_path if self._passed else set())
        return [
            os.path.abspath(path)
            for path in sys.path
            if os.path.realpath(path) in real
            or (os.path.basename(path) in _SITES and os.path.realpath(path) not in python_path)
        ]

    @cached_property
    def _standard(self) -> list[str]:
        folders = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
        return [os.path.realpath(folder) for folder in folders if folder]

    def _find(self, name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module, or of a regular package above it; None for `path` uses all finders."""
        parts = name.split(".")
        spec = _top(parts[0], path)
        for depth in range(1, len(parts)):
            if spec is None or spec.origin is not None or spec.submodule_search_locations is None:
                return spec
            # By its last part: a search for the whole name needs its parent packages imported.
            folders = list(spec.submodule_search_locations)
            spec = importlib.machinery.PathFinder.find_spec(parts[depth], folders)
        return spec

    def _location(self, name: str, spec: importlib.machinery.ModuleSpec) -> ModuleLocation:
        if spec.origin in ("built-in", "frozen"):
            return ModuleLocation(name, "standard")
        # An entry of the path may be relative, with "..".
        path = os.path.abspath(spec.origin or next(iter(spec.submodule_search_locations or []), ""))
        if any(_below(path, folder) for folder in self._sites):
            return ModuleLocation(name, "site", path)
        standard = any(_below(os.path.realpath(path), folder) for folder in self._standard)
        return ModuleLocation(name, "standard" if standard else "outside", path)


def _top(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    if path is not None:
        return importlib.machinery.PathFinder.find_spec(name, path)
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None


def _named(info: Path) -> tuple[str, str]:
    """Return a distribution's name and version; in current formats the folder's name has both."""
    name, _, version = info.stem.rpartition("-")
    if info.suffix == ".dist-info" and name and "-" not in name:
        return name, version
    metadata = importlib.metadata.Distribution.at(info).metadata
    return str(metadata["Name"] or info.stem), str(metadata["Version"] or "0")


def _recorded(info: Path) -> bytes:
    for name in ("RECORD", "top_level.txt"):
        with suppress(OSError):
            return b"\n" + (info / name).read_bytes()
    return b""


def _holds(files: bytes, file: str) -> bool:
    """True if a distribution installed a file, or something in a folder of that name."""
    path = Path(file)
    # top_level.txt has no suffixes and folders: "six" means six.py, or everything below six.
    starts = (f"\n{path.as_posix()}".encode(), f"\n{path.parts[0].partition('.')[0]}\n".encode())
    return starts[1] in files or any(starts[0] + end in files for end in (b",", b"\n", b"/"))


def _extras(requirement: Requirement) -> list[str]:
    return ["", *(canonicalize_name(extra) for extra in requirement.extras)]


def _below(path: str, folder: str) -> bool:
    prefixes = (os.path.join(folder, ""), os.path.join(os.path.realpath(folder), ""))
    return path.startswith(prefixes)
