"""Modules of a project with the name of another module, of podlift or of Python, and names that podlift does not have."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from ...errors import nearest
from ...job.findings import Finding
from ...text import joined
from .keras2 import guarded, imported
from .program import Import, Program

NAME = "sdk"
_RENAME = "rename it, or move it below another package"
_FIRST_WORD = b'"""podlift:'
_HOME = Path(__file__).resolve().parent.parent.parent


def name_conflict(program: Program) -> list[str]:
    """Return the refusal of a project with a module that has podlift's import name."""
    files = [program.module(f"{prefix}{NAME}") for prefix in program.prefixes]
    own = [file for file in files if file in program.files and not _is_podlift(program.entry.project / str(file))]
    return [
        f"The project has a module named {NAME!r}, {file!r}: this is podlift's import name, and a process can import only one "
        f"of the two. Next: {_RENAME}."
        for file in own[:1]
    ]


def is_podlifts(name: str) -> bool:
    """Return whether an import's name leads to podlift."""
    return name.partition(".")[0] == NAME


def mistakes_of_entry(program: Program) -> list[str]:
    entry = program.entry
    if entry.kind == "script" or not is_podlifts(entry.target):
        return []
    return hidden_modules(program, entry.file, Import(entry.target, 0))


def hidden_modules(program: Program, file: str, statement: Import) -> list[str]:
    """Return the modules that an import needs from a folder without `__init__.py`, which podlift hides."""
    if program.is_regular(NAME):
        return []
    names = (
        [statement.name] if statement.name != statement.top else [f"{statement.top}.{name}" for name in statement.names]
    )
    location = program.location(file, statement.line) if statement.line else "The entry"
    return [
        f"{location} imports {name!r} from the project's folder {NAME!r}: that is podlift's import name. Next: {_RENAME}."
        for name in names
        if program.has(name) and not _is_podlifts_module(name.partition(".")[2])
    ]


def unknown_imports(program: Program, file: str, statement: Import) -> list[str]:
    """Return a sentence for each name that an import wants from podlift, and that podlift does not have."""
    if program.is_regular(NAME):
        return []
    names = (
        [f"{NAME}.{name}" for name in statement.names if name != "*"] if statement.name == NAME else [statement.name]
    )
    unknown = [name for name in names if not _is_podlifts_name(name) and not program.has(name)]
    return [f"{program.location(file, statement.line)} imports {_unknown(name)}" for name in unknown]


def unknown_attributes(program: Program, trees: Mapping[str, ast.Module]) -> list[Finding]:
    """Return a warning for each `sdk.name` that podlift does not have: it fails only once it is read."""
    if program.is_regular(NAME):
        return []
    findings = []
    for file, tree in trees.items():
        names, skipped = imported(tree, (NAME,)), guarded(tree)
        attributes = [
            node
            for node in (ast.walk(tree) if NAME in names.values() else ())
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and names.get(node.value.id) == NAME
        ]
        assigned = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
        read = [node for node in attributes if node.attr not in assigned and id(node) not in skipped]
        unknown = [(node, name) for node in read if not _is_podlifts_name(name := f"{NAME}.{node.attr}")]
        findings += [
            Finding("warning", f"{program.location(file, node)} uses {_unknown(name)}") for node, name in unknown
        ]
    return findings


def hidden_by_standard_library(program: Program, reachable: Collection[str]) -> list[Finding]:
    """Return a warning for modules that the program imports and Python's own may hide, which podlift has loaded before."""
    # In any Python, the modules that every Python loads itself have precedence over the project's.
    names = sorted(sys.stdlib_module_names - set(sys.builtin_module_names) - {"os"})
    files = {program.module(f"{prefix}{name}") for name in names for prefix in program.prefixes}
    hidden = sorted(file for file in files if file is not None and file in reachable)
    if not hidden:
        return []
    message = (
        f"The program imports {joined(hidden, 'and')}, named like a module of Python's own, which a task may have loaded "
        "before: the program then gets Python's. Next: give the file another name."
    )
    return [Finding("warning", message)]


def _is_podlifts_name(name: str) -> bool:
    below = name.partition(".")[2]
    return not below or below in dir(sys.modules[NAME]) or _is_podlifts_module(below)


def _unknown(name: str) -> str:
    public = [f"{NAME}.{attribute}" for attribute in dir(sys.modules[NAME]) if not attribute.startswith("_")]
    return f"{name!r}, which podlift does not have. {nearest(name, public)}"


def _is_podlift(file: Path) -> bool:
    """Return whether an `__init__.py` belongs to podlift, of any commit, as in a checkout of it."""
    try:
        with file.open("rb") as text:
            return text.read(len(_FIRST_WORD)) == _FIRST_WORD
    except OSError:
        return False


def _is_podlifts_module(name: str) -> bool:
    path = _HOME.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
