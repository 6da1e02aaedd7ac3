"""Reads the program's own modules for what would fail at once: syntax errors and imports of what is not there."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ...checks import Finding, strategies
from ...errors import Problems
from ..entry import LocatedEntry
from ..requirements.read import Requirements
from . import cluster_lint, lint, preload, shadowed, variables
from .import_sources import Level, Origins, Trouble
from .preload import Preload
from .program import Import, Program

# A module that uses one of these can bring modules from where reading does not see them.
_MACHINERY = re.compile(
    r"sys\.(path|modules|meta_path|path_hooks)|(importlib(?!\.(metadata|resources))|imp|pkgutil|runpy|site|subprocess|"
    r"zipimport)(\..*)?|os\.system|__path__|__import__|exec|eval"
)
# With one of these it can also prefer its own to one that is found elsewhere.
_PATHS = re.compile(r"sys\.(path|modules|meta_path|path_hooks)|site(\..*)?|__path__")


def check(
    source: LocatedEntry,
    members: Iterable[str],
    kwargs: Mapping[str, Any] | None = None,
    *,
    chief: bool = False,
    requirements: Requirements | None = None,
    isolated: bool = False,
    legacy: bool = False,
    pythonpath: bool = False,
    dropped: Collection[str] = (),
    servers: bool = False,
    elsewhere: bool = False,
    left_out: Sequence[str] = (),
    words: Sequence[Any] = (),
) -> tuple[list[Finding], Preload]:
    """Read every module that the entry reaches inside the bundle; return what may go wrong, and what tasks could share.

    Args:
        source: the entry.
        members: paths of the bundle, with "/".
        kwargs: what the entry's function will be called with; None when that is not known.
        chief: True when the cluster has a chief beside its workers.
        requirements: what the project needs installed; None for nothing.
        isolated: True where tasks find exactly that, and not what is installed here.
        legacy: True where tasks have tf_keras.
        pythonpath: True where tasks get the caller's PYTHONPATH.
        dropped: names of the caller's environment variables that no task sees.
        elsewhere: True where tasks run in an image, that installs what is required and may hold more.
        servers: True where there are parameter servers: then the strategies of the program matter.
        left_out: what of the project the bundle leaves out, each with the reason.
        words: the list of args.

    Raises:
        InputError: syntax errors, imports of what no task will find, a function that cannot be called so.
    """
    program, problems = Program(source, list(members)), Problems()
    origins = Origins(
        program,
        requirements or Requirements(),
        isolated=isolated,
        legacy=legacy,
        pythonpath=pythonpath,
        elsewhere=elsewhere,
        left_out=left_out,
    )
    reading = _Reading(program, origins, problems)
    start = reading.trees.get(source.file)
    if start is not None and source.function:
        problems.found += lint.check(start, source, kwargs)
        if words:
            modules = _reachable(program, {**reading.trees, **reading.later}).values()
            problems.found += lint.unread_words(start, source, words, modules)
    doubts = reading.judge()
    trees = reading.trees
    reachable = _reachable(program, {**trees, **reading.later})
    for file, tree in reachable.items():
        reading.own.look(file, tree, program.imports(tree, file, everywhere=True))
    problems.found += reading.own.problems()
    problems.raise_if_any()
    found = [
        *doubts,
        *shadowed.standard_library(program),
        *(cluster_lint.without_chief(program, trees) if chief else []),
        *variables.presets(program, trees),
        *variables.lost(program, {**trees, **reading.later}, dropped),
    ]
    shared = replace(preload.look(program, reachable, legacy=legacy), own_names=reading.own.names())
    if servers:
        named = (name for tree in reachable.values() for name in strategies.strategies_of(tree))
        shared = replace(shared, strategies=tuple(dict.fromkeys(named)))
    return found, shared


class _Reading:
    """The program's modules, and what is wrong with their imports.

    Args:
        program: the bundle.
        origins: says where other modules come from.
        problems: takes what cannot be run.
    """

    def __init__(self, program: Program, origins: Origins, problems: Problems) -> None:
        self._program = program
        self._origins = origins
        self._problems = problems
        self.own = shadowed.OwnNames(program)
        self._troubles: list[tuple[str, Import, Trouble]] = []
        self._later_troubles: list[tuple[str, Import, Trouble]] = []
        self.trees: dict[str, ast.Module] = {}
        self.later: dict[str, ast.Module] = {}
        problems.found += self.own.of_entry()
        self._read_certain()
        self._read_later()

    def _read_certain(self) -> None:
        """Read the modules that run for certain."""
        program = self._program
        waiting, seen = [program.source.file], {program.source.file}
        while waiting:
            file, tree = waiting.pop(), None
            with self._problems.collect():
                tree = program.read(file)
            if tree is None:
                continue
            self.trees[file] = tree
            if file == program.source.file and program.source.kind == "script":
                self._problems.found += program.outside_packages(tree)
            for wanted in program.imports(tree, file):
                if self.own.is_podlifts(wanted.name):
                    self._problems.found += self.own.hidden(file, wanted)
                    continue
                found = self._sources(wanted)
                self._troubles += [(file, wanted, trouble) for trouble in self._origins.troubles(wanted)]
                waiting += [path for path in found if path not in seen]
                seen.update(found)

    def _read_later(self) -> None:
        """Read what the functions of those modules import, and the modules that run only then."""
        waiting = [(file, self._program.later_imports(tree, file)) for file, tree in self.trees.items()]
        while waiting:
            file, found = waiting.pop()
            for wanted in found:
                if self.own.is_podlifts(wanted.name):
                    continue
                self._later_troubles += [(file, wanted, trouble) for trouble in self._origins.troubles(wanted)]
                for path in self._sources(wanted):
                    if path in self.trees or path in self.later:
                        continue
                    tree = self._program.glance(path)
                    if tree is not None:
                        self.later[path] = tree
                        both = (self._program.imports(tree, path), self._program.later_imports(tree, path))
                        waiting.append((path, chain(*both)))

    def _sources(self, wanted: Import) -> list[str]:
        # An extension module has nothing to read.
        return [path for path in self._program.find(wanted) or [] if path.endswith(".py")]

    def judge(self) -> list[Finding]:
        """Return the warnings; what is certain to fail goes to the problems."""
        found: dict[tuple[str, Level, str], list[str]] = {}
        doubtful = any(trouble.kind != "unrequired" for _, _, trouble in (*self._troubles, *self._later_troubles))
        reachable = _reachable(self._program, self.trees) if doubtful else {}
        for file, wanted, trouble in self._troubles:
            doubt = _doubt(self._program, trouble, reachable)
            where = f"{self._program.place(file, wanted.line)} imports {trouble.name!r}"
            about = trouble.group or trouble.name
            if doubt is not None:
                key: tuple[str, Level, str] = about, "warning", f"not found where the program starts; {doubt}"
                found.setdefault(key, []).append(where)
            elif trouble.level == "error":
                self._problems.found.append(f"{where}: {trouble.said}")
            else:
                found.setdefault((about, trouble.level, trouble.said), []).append(where)
        said_before = {about for about, _, _ in found}
        for file, wanted, trouble in self._later_troubles:
            about = trouble.group or trouble.name
            if about not in said_before and _doubt(self._program, trouble, reachable) is None:
                # Nothing says that the function is called: no error.
                key = about, "note" if trouble.level == "note" else "warning", trouble.said
                where = f"{self._program.place(file, wanted.line)} imports {trouble.name!r} when it is called"
                found.setdefault(key, []).append(where)
        return [Finding(level, f"{_first(places)}: {said}") for (_, level, said), places in found.items()]


def _first(places: list[str]) -> str:
    more = len(set(places)) - 1
    return places[0] + (f" (and {more} more line{'s' if more > 1 else ''} like it)" if more else "")


def _doubt(program: Program, trouble: Trouble, reachable: Mapping[str, ast.Module]) -> str | None:
    """Return why a module that is not there may be there when the program runs, None if nothing speaks for it."""
    if trouble.kind == "unrequired":
        return None
    if trouble.kind == "outside":
        return _changes(_PATHS, reachable)
    if trouble.kind == "uninstalled":
        return _changes(_MACHINERY, reachable)
    path = program.missing_part(trouble.name)
    part = path.rpartition("/")[2]
    place = program.elsewhere(part)
    if place is not None:
        return f"{place} has its name, and counts if the program puts its folder on the path."
    for prefix in program.prefixes:
        link = program.source.project / prefix / path
        if link.is_symlink() and link.is_dir() and Path(os.path.realpath(link)).is_relative_to(program.source.project):
            return f"{prefix}{path} is a link to a folder, which is not packaged. Next: move the folder there."
    for file, tree in reachable.items():
        if any(re.search(rf"\b{re.escape(part)}\b", text) for text in _texts(tree)):
            return f"{file} has its name in a text, and may write it."
    return _changes(_MACHINERY, reachable)


def _changes(pattern: re.Pattern[str], reachable: Mapping[str, ast.Module]) -> str | None:
    for file, tree in reachable.items():
        if any(pattern.fullmatch(name) for name in _used(tree)):
            return f"{file} changes where modules come from, and may provide it."
    return None


def _reachable(program: Program, certain: Mapping[str, ast.Module]) -> dict[str, ast.Module]:
    """Return the modules that may run: those that run for certain, and what they import in functions and below guards."""
    found, waiting = dict(certain), list(certain)
    while waiting:
        file = waiting.pop()
        for wanted in program.imports(found[file], file, everywhere=True):
            for path in program.find(wanted) or []:
                tree = program.glance(path) if path.endswith(".py") and path not in found else None
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
