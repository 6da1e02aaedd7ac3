"""Modules of a project with the name of another module: of podlift, or of Python's own that podlift has loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ... import __all__ as _PUBLIC
from ...names import NAMES, is_podlift
from ...spec.findings import Finding
from .program import Import, Program, names_bound

_HOME = Path(__file__).resolve().parent.parent.parent
_LIMIT_S = 30.0
# Prints the modules that podlift has loaded in a task before the program starts, those included that only a root in a bucket
# needs. Those that every Python loads itself have precedence over the project's in any case.
_LOADED = "import sys; bare = set(sys.modules); sys.path.insert(0, sys.argv[1]); " + (
    "import sdk.runtime.bootstrap, sdk.storage.gcs.download; "
    "print(*sorted((set(sys.modules) - bare) & sys.stdlib_module_names - set(sys.builtin_module_names)))"
)


class PodliftNames:
    """Which of podlift's import names (`podlift`, `sdk`) a program uses for modules of its own.

    A name belongs to the project if it has a module or a package with an `__init__.py` of that name, as without podlift;
    unless the program imports something by it that podlift has and the project's module does not.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._files = {name: file for name in NAMES if (file := _own_module(program, name))}
        self._podlifts_uses: dict[str, list[str]] = {name: [] for name in NAMES}
        self._projects_uses: dict[str, list[str]] = {name: [] for name in NAMES}
        if program.entry.kind != "script":
            self._add_use(program.entry.target, "The entry")

    def mistakes_of_entry(self) -> list[str]:
        entry = self._program.entry
        if entry.kind == "script" or not self.is_podlifts(entry.target):
            return []
        return self.hidden_modules(entry.file, Import(entry.target, 0))

    def is_podlifts(self, name: str) -> bool:
        """True if an import's name leads to podlift, as far as the project's files tell."""
        top = name.partition(".")[0]
        return top in NAMES and top not in self._files

    def hidden_modules(self, file: str, wanted: Import) -> list[str]:
        """Return what an import wants from a folder that podlift hides, because it has no `__init__.py`."""
        names = [wanted.name] if wanted.name != wanted.top else [f"{wanted.top}.{name}" for name in wanted.wanted]
        location = self._program.location(file, wanted.line) if wanted.line else "The entry"
        return [
            f"{location} imports {name!r} from the project, whose folder {wanted.top!r} has no __init__.py: Python prefers "
            f"podlift, which is a package. Next: put an empty {wanted.top}/__init__.py there."
            for name in names
            if self._program.has(name) and not _is_podlifts_module(name.partition(".")[2])
        ]

    def add_uses(self, file: str, tree: ast.Module, imports: Iterable[Import]) -> None:
        """Record what a module uses by names that both podlift and the project have."""
        if not self._files:
            return
        for wanted in imports:
            names = [wanted.name] if wanted.name != wanted.top else [f"{wanted.top}.{name}" for name in wanted.wanted]
            for name in names:
                self._add_use(name, self._program.location(file, wanted.line))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._files:
                self._add_use(f"{node.value.id}.{node.attr}", self._program.location(file, node))

    def _add_use(self, name: str, location: str) -> None:
        top, _, inner = name.partition(".")
        if top not in self._files:
            return
        if self._project_has(top, inner):
            self._projects_uses[top].append(location)
        elif inner.partition(".")[0] in _PUBLIC or _is_podlifts_module(inner):
            self._podlifts_uses[top].append(f"{location} uses {inner!r}")

    def _project_has(self, top: str, inner: str) -> bool:
        if not inner or self._program.has(f"{top}.{inner}"):
            return True
        tree = self._program.tree(self._files[top])
        names = {name for node in ast.walk(tree) for name in names_bound(node)} if tree else {"*"}
        return bool(names & {inner.partition(".")[0], "*", "__getattr__"})

    def conflicts(self) -> list[str]:
        """Return where a program means two packages by one name."""
        mistakes = []
        for name, file in self._files.items():
            if self._podlifts_uses[name] and self._projects_uses[name]:
                other = next(other for other in NAMES if other != name)
                mistakes.append(
                    f"{self._podlifts_uses[name][0]} of podlift by the name {name!r}, and {self._projects_uses[name][0]} means "
                    f"{file!r} by it: a process has one of them. Next: write `import {other}` for podlift's."
                )
        return mistakes

    def projects_names(self) -> tuple[str, ...]:
        """Return the names that belong to the project."""
        # A module in another folder counts too: the program may put that folder on the path.
        anywhere = {name for name in NAMES if name in self._files or _is_anywhere(self._program, name)}
        return tuple(name for name in NAMES if name in anywhere and not self._podlifts_uses[name])


def _own_module(program: Program, name: str) -> str:
    """Return the project's own regular module of a name, "" if there is none or it is podlift itself."""
    for prefix in program.prefixes:
        file = program.module(f"{prefix}{name}")
        if file is not None and file in program.files:
            return "" if is_podlift(str(program.entry.project / file)) else file
    return ""


def _is_anywhere(program: Program, name: str) -> bool:
    found = (path for path in program.files if path.endswith((f"/{name}.py", f"/{name}/__init__.py")))
    return any(not is_podlift(str(program.entry.project / path)) for path in found)


def _is_podlifts_module(name: str) -> bool:
    path = _HOME.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def hidden_by_standard_library(program: Program) -> list[Finding]:
    """Return a warning for modules of the project that Python's own hide, because podlift has loaded those before."""
    names = {
        name: path
        for name in sorted(sys.stdlib_module_names)
        for prefix in program.prefixes
        if (path := program.module(f"{prefix}{name}")) in program.files
    }
    if not names:
        return []
    # This process has loaded other modules than a new one.
    command = [sys.executable, "-I", "-c", _LOADED, str(_HOME.parent)]
    try:
        loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []
    hidden = [names[name] for name in loaded if name in names]
    if not hidden:
        return []
    message = (
        f"In a task Python's own modules hide {', '.join(hidden)}: podlift has loaded them before. Next: if the program "
        "imports these files, give them other names."
    )
    return [Finding("warning", message)]
