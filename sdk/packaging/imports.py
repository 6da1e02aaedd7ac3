"""Reads the program's own modules for what would fail at once: syntax errors and imports of what is not there."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..checks import Finding
from ..errors import InputError, Problems
from . import functions, habits, shadows
from .entry import Source
from .program import Import, Program

# A module that uses one of these can bring modules from where reading does not see them.
_MACHINERY = re.compile(
    r"sys\.(path|modules|meta_path|path_hooks)|(importlib(?!\.(metadata|resources))|imp|pkgutil|runpy|site|subprocess|"
    r"zipimport)(\..*)?|os\.system|__path__|__import__|exec|eval"
)


def check(
    source: Source, members: Iterable[str], kwargs: Mapping[str, Any] | None = None, *, chief: bool = False
) -> list[Finding]:
    """Read every module that the entry reaches inside the bundle; return what may go wrong.

    Args:
        source: the entry.
        members: paths of the bundle, with "/".
        kwargs: what the entry's function will be called with; None when that is not known.
        chief: True when the cluster has a chief beside its workers.

    Raises:
        InputError: syntax errors, imports of local modules that are in no bundle, a function that cannot be called so.
    """
    program, problems = Program(source, list(members)), Problems()
    if source.file not in program.files:
        raise InputError(
            f"The entry is left out of the bundle. Received: {source.file!r}. It is a link that leaves the project, or it "
            "lies in a folder that is never packaged: name the file itself, or another project= (--project)."
        )
    problems.found += shadows.entry(source)
    trees, missing = _follow(program, problems)
    start = trees.get(source.file)
    if start is not None and source.function:
        problems.found += functions.check(start, source, kwargs)
    doubts = []
    reachable = _reachable(program, trees) if missing else {}
    for file, wanted in missing:
        said = f"{file}:{wanted.line} imports {wanted.name!r}"
        doubt = _doubt(program, wanted, reachable)
        if doubt is None:
            problems.found.append(
                f"{said}: in no bundle, not installed, not in the standard library. "
                "Next: install it, or put an import that may fail into try/except ImportError."
            )
        else:
            doubts.append(Finding("warning", f"{said}: not found where the program starts; {doubt}"))
    problems.raise_if_any()
    return [*doubts, *shadows.standard_library(program), *(habits.without_chief(trees) if chief else [])]


def _follow(program: Program, problems: Problems) -> tuple[dict[str, ast.Module], list[tuple[str, Import]]]:
    """Return the modules that run for certain, by file, and the imports in them that lead nowhere."""
    trees: dict[str, ast.Module] = {}
    missing: list[tuple[str, Import]] = []
    waiting, seen = [program.source.file], {program.source.file}
    while waiting:
        file, tree = waiting.pop(), None
        with problems.collect():
            tree = program.read(file)
        if tree is None:
            continue
        trees[file] = tree
        for wanted in program.imports(tree, file):
            if wanted.name.partition(".")[0] == "sdk":
                problems.found += shadows.sdk(program, file, wanted)
                continue
            found = program.find(wanted)
            if found is None and not _installed(wanted.name.partition(".")[0], program.source):
                missing.append((file, wanted))
            # An extension module has nothing to read.
            found = [path for path in found or [] if path.endswith(".py") and path not in seen]
            waiting += found
            seen.update(found)
    return trees, missing


def _doubt(program: Program, wanted: Import, reachable: Mapping[str, ast.Module]) -> str | None:
    """Return why a module that is not there may be there when the program runs, None if nothing speaks for it."""
    path = program.missing_part(wanted.name)
    part = path.rpartition("/")[2]
    place = program.elsewhere(part)
    if place is not None:
        return f"{place} has its name, and counts if the program puts its folder on the path."
    for prefix in program.prefixes:
        link = program.source.project / prefix / path
        if link.is_dir() and Path(os.path.realpath(link)).is_relative_to(program.source.project):
            return f"{prefix}{path} is a link to a folder, which is not packaged. Next: move the folder there."
    for file, tree in reachable.items():
        if any(_MACHINERY.fullmatch(name) for name in _used(tree)):
            return f"{file} changes where modules come from, and may provide it."
        if any(re.search(rf"\b{re.escape(part)}\b", text) for text in _texts(tree)):
            return f"{file} has its name in a text, and may write it."
    return None


def _reachable(program: Program, certain: Mapping[str, ast.Module]) -> dict[str, ast.Module]:
    """Return the modules that may run: those that run for certain, and what they import in functions and below guards."""
    found, waiting = dict(certain), list(certain)
    while waiting:
        file = waiting.pop()
        for wanted in program.imports(found[file], file, everywhere=True):
            for path in program.find(wanted) or []:
                tree = None
                if path.endswith(".py") and path not in found:
                    # What is wrong with a module that may never run is not said.
                    with Problems().collect():
                        tree = program.read(path)
                if tree is not None:
                    found[path] = tree
                    waiting.append(path)
    return found


def _used(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module uses, dotted as far as they are written so, and those that it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else node.attr
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _texts(tree: ast.Module) -> Iterator[str]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _installed(top: str, source: Source) -> bool:
    """True if a task finds the module outside the bundle, as this process does with its own folder left out."""
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return True
    inherited = {_real(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    ours = {_real("."), *(str(source.project / root) for root in ("", *source.roots))} - inherited
    search = [path for path in sys.path if path and _real(path) not in ours]
    for finder in sys.meta_path:
        path = search if finder is importlib.machinery.PathFinder else None
        if hasattr(finder, "find_spec") and finder.find_spec(top, path) is not None:
            return True
    return False


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:
        # The current folder was removed.
        return path
