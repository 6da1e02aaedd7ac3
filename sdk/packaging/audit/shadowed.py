"""Modules of a project that have the name of another: of podlift, or of one of Python's own that podlift has loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ... import __all__ as _PUBLIC
from ...checks import Finding
from ...names import NAMES, is_podlift
from .program import Import, Program

_HOME = Path(__file__).resolve().parents[2]
_LIMIT_S = 30.0
# What a task has loaded when the program starts, less what every Python has loaded: there the project loses anyway.
_LOADED = "import sys; bare = set(sys.modules); sys.path.insert(0, sys.argv[1]); import sdk.runtime.bootstrap; " + (
    "print(*sorted((set(sys.modules) - bare) & sys.stdlib_module_names - set(sys.builtin_module_names)))"
)


class OwnNames:
    """Which of podlift's import names a program means its own modules by.

    A name is the project's where it has a module or a package with an `__init__.py` of that name, as it would be if podlift
    were not there; but for a program that takes from it what podlift has and the project's has not.

    Args:
        program: the bundle.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._files = {name: file for name in NAMES if (file := _own(program, name))}
        self._ours: dict[str, list[str]] = {name: [] for name in NAMES}
        self._theirs: dict[str, list[str]] = {name: [] for name in NAMES}
        if program.source.kind != "script":
            self._take(program.source.target, "The entry")

    def of_entry(self) -> list[str]:
        """Return why the entry is no module of the project."""
        wanted = Import(self._program.source.target, 0)
        is_module = self._program.source.kind != "script" and self.is_podlifts(wanted.name)
        return self.hidden(self._program.source.file, wanted) if is_module else []

    def is_podlifts(self, name: str) -> bool:
        """Return whether an import's name leads to podlift, as far as the project's files say."""
        top = name.partition(".")[0]
        return top in NAMES and top not in self._files

    def hidden(self, file: str, wanted: Import) -> list[str]:
        """Return what an import takes from a folder that loses against podlift: it has no `__init__.py`."""
        top = wanted.name.partition(".")[0]
        names = [wanted.name] if wanted.name != top else [f"{top}.{name}" for name in wanted.wanted]
        place = self._program.place(file, wanted.line) if wanted.line else "The entry"
        return [
            f"{place} imports {name!r} from the project, whose folder {top!r} has no "
            f"__init__.py: then Python takes podlift, which is a package. Next: put an empty {top}/__init__.py there."
            for name in names
            if self._program.find(Import(name, 0)) is not None and not _ours(name.partition(".")[2])
        ]

    def look(self, file: str, tree: ast.Module, imports: Iterable[Import]) -> None:
        """Note what a module takes by the names that both have."""
        for wanted in imports:
            top, place = wanted.name.partition(".")[0], self._program.place(file, wanted.line)
            if top in self._files and wanted.name != top:
                self._take(wanted.name, place)
            for name in wanted.wanted if wanted.name == top else ():
                self._take(f"{top}.{name}", place)
        for node in ast.walk(tree) if self._files else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._files:
                self._take(f"{node.value.id}.{node.attr}", self._program.place(file, node.lineno))

    def _take(self, name: str, place: str) -> None:
        top, _, inner = name.partition(".")
        if top not in self._files:
            return
        if self._has(top, inner):
            self._theirs[top].append(place)
        elif inner.partition(".")[0] in _PUBLIC or _ours(inner):
            self._ours[top].append(f"{place} takes {inner!r}")

    def _has(self, top: str, inner: str) -> bool:
        if not inner or self._program.find(Import(f"{top}.{inner}", 0)) is not None:
            return True
        tree = self._program.glance(self._files[top])
        names = {name for node in ast.walk(tree) for name in _bound(node)} if tree else {"*"}
        return bool(names & {inner.partition(".")[0], "*", "__getattr__"})

    def problems(self) -> list[str]:
        """Return where a program wants two packages of one name, which one process cannot have."""
        return [
            f"{self._ours[name][0]} of podlift by the name {name!r}, and {self._theirs[name][0]} means {file!r} by it: a "
            f"process has one of them. Next: write `import {next(other for other in NAMES if other != name)}` for podlift's."
            for name, file in self._files.items()
            if self._ours[name] and self._theirs[name]
        ]

    def names(self) -> tuple[str, ...]:
        """Return the names that stay the project's."""
        # One in another folder is the program's where it puts that on the path.
        anywhere = {name for name in NAMES if name in self._files or _deep(self._program, name)}
        return tuple(name for name in NAMES if name in anywhere and not self._ours[name])


def _own(program: Program, name: str) -> str:
    """Return the project's own regular module of a name, "" where there is none or it is podlift itself."""
    for prefix in program.prefixes:
        file = program.module(f"{prefix}{name}")
        if file in program.files:
            return "" if file is None or is_podlift(str(program.source.project / file)) else file
    return ""


def _deep(program: Program, name: str) -> bool:
    ends = (f"/{name}.py", f"/{name}/__init__.py")
    found = (path for path in program.files if path.endswith(ends))
    return any(not is_podlift(str(program.source.project / path)) for path in found)


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


def _ours(name: str) -> bool:
    place = _HOME.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def standard_library(program: Program) -> list[Finding]:
    """Return a warning for modules of the project that lose against Python's own, which podlift loaded before them."""
    names = {
        name: path
        for name in sorted(sys.stdlib_module_names)
        for prefix in program.prefixes
        if (path := program.module(f"{prefix}{name}")) in program.files
    }
    if not names:
        return []
    # Asked of a fresh Python: this one has loaded other things.
    command = [sys.executable, "-I", "-c", _LOADED, str(_HOME.parent)]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lost = [names[name] for name in shown.split() if name in names]
    if not lost:
        return []
    return [
        Finding(
            "warning",
            f"In a task Python's own modules win over {', '.join(lost)}: podlift has loaded them before. "
            "If the program imports these files, give them other names.",
        )
    ]
