"""Reads the program's own modules for mistakes that would stop it: syntax errors, imports of what no task finds."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ... import text
from ...checks import strategies
from ...errors import Problems
from ...spec.findings import Finding
from ..entry import LocatedEntry
from . import entry_function, environment, shadowed
from .environment import Preload
from .import_sources import ImportProblem, ImportSources, Level, TaskEnvironment
from .program import Import, Program, names_used

# A module that uses one of these can load modules that reading does not find.
_LOADS_MODULES = re.compile(
    r"sys\.(path|modules|meta_path|path_hooks)|(importlib(?!\.(metadata|resources))|imp|pkgutil|runpy|site|subprocess|"
    r"zipimport)(\..*)?|os\.system|__path__|__import__|exec|eval"
)
# With one of these it can also hide a module that is found elsewhere.
_CHANGES_PATH = re.compile(r"sys\.(path|modules|meta_path|path_hooks)|site(\..*)?|__path__")


def check(
    entry: LocatedEntry,
    members: Iterable[str],
    tasks: TaskEnvironment,
    *,
    kwargs: Mapping[str, object] | None = None,
    args: Sequence[Any] = (),
    chief: bool = False,
    servers: bool = False,
    left_out: Sequence[str] = (),
) -> tuple[list[Finding], Preload]:
    """Read every module of the bundle that the entry reaches; return findings, and what tasks could share.

    Args:
        entry: the entry.
        members: paths of the bundle.
        tasks: what tasks find besides the bundle.
        kwargs: the arguments of the entry's function; None if they are not known.
        args: the list of args, if the program gets one.
        chief: True if the cluster has a chief beside its workers.
        servers: True if there are parameter servers.
        left_out: files of the project that the bundle leaves out, with reasons.

    Raises:
        InputError: what would certainly fail, such as syntax errors and imports of what no task will find.
    """
    program, problems = Program(entry, list(members)), Problems()
    reader = _ProgramReader(program, ImportSources(program, tasks, left_out), problems)
    trees = reader.trees
    all_trees = {**trees, **reader.later}
    start = trees.get(entry.file)
    if start is not None and entry.function:
        problems.found += entry_function.check(start, entry, kwargs)
        if args:
            problems.found += entry_function.unread_args(start, entry, args, program.reachable(all_trees).values())
    findings = reader.judge_imports()
    reachable = program.reachable(all_trees)
    for file, tree in reachable.items():
        reader.names.add_uses(file, tree, program.imports(tree, file, everywhere=True))
    problems.found += reader.names.conflicts()
    problems.raise_if_any()
    findings += shadowed.hidden_by_standard_library(program)
    if chief:
        findings += environment.assumptions_without_chief(program, trees)
    findings += environment.set_by_program(program, trees)
    findings += environment.not_passed_on(program, all_trees, tasks.dropped)
    preload = environment.find_preload(program, reachable, legacy=tasks.legacy)
    if servers:
        names = (name for tree in reachable.values() for name in strategies.strategies_of(tree))
        preload = replace(preload, strategies=tuple(dict.fromkeys(names)))
    return findings, replace(preload, own_names=reader.names.projects_names())


class _ProgramReader:
    """Reads the program's modules; what certainly cannot run goes to `problems`."""

    def __init__(self, program: Program, sources: ImportSources, problems: Problems) -> None:
        self._program = program
        self._sources = sources
        self._problems = problems
        self.names = shadowed.PodliftNames(program)
        self.trees: dict[str, ast.Module] = {}  # modules that certainly run
        self.later: dict[str, ast.Module] = {}  # modules that run if one of their functions is called
        self._found: list[tuple[str, Import, ImportProblem]] = []
        self._found_later: list[tuple[str, Import, ImportProblem]] = []
        problems.found += self.names.mistakes_of_entry()
        self._read_certain()
        self._read_later()

    def _read_certain(self) -> None:
        program = self._program
        waiting, seen = [program.entry.file], {program.entry.file}
        while waiting:
            file, tree = waiting.pop(), None
            with self._problems.collect():
                tree = program.checked_tree(file)
            if tree is None:
                continue
            self.trees[file] = tree
            if file == program.entry.file and program.entry.kind == "script":
                self._problems.found += program.relative_imports_of_script(tree)
            for wanted in program.imports(tree, file):
                if self.names.is_podlifts(wanted.name):
                    self._problems.found += self.names.hidden_modules(file, wanted)
                    continue
                found = program.find_sources(wanted)
                self._found += [(file, wanted, problem) for problem in self._sources.problems(wanted)]
                waiting += [path for path in found if path not in seen]
                seen.update(found)

    def _read_later(self) -> None:
        """Read what the functions of those modules import."""
        program = self._program
        waiting: list[tuple[str, Iterator[Import]]] = [
            (file, program.later_imports(tree, file)) for file, tree in self.trees.items()
        ]
        while waiting:
            file, imports = waiting.pop()
            for wanted in imports:
                if self.names.is_podlifts(wanted.name):
                    continue
                self._found_later += [(file, wanted, problem) for problem in self._sources.problems(wanted)]
                for path in program.find_sources(wanted):
                    known = path in self.trees or path in self.later
                    tree = None if known else program.tree(path)
                    if tree is not None:
                        self.later[path] = tree
                        waiting.append((path, chain(program.imports(tree, path), program.later_imports(tree, path))))

    def judge_imports(self) -> list[Finding]:
        """Return the warnings about imports; those that certainly fail go to the problems."""
        found: dict[tuple[str, Level, str], list[str]] = {}
        doubtful = any(problem.kind != "unrequired" for _, _, problem in (*self._found, *self._found_later))
        reachable = self._program.reachable(self.trees) if doubtful else {}
        for file, wanted, problem in self._found:
            doubt = _doubt(self._program, problem, reachable)
            where = f"{self._program.location(file, wanted.line)} imports {problem.name!r}"
            subject = problem.group or problem.name
            if doubt is not None:
                message = f"not found where the program starts; {doubt}"
                found.setdefault((subject, "warning", message), []).append(where)
            elif problem.level == "error":
                self._problems.found.append(f"{where}: {problem.message}")
            else:
                found.setdefault((subject, problem.level, problem.message), []).append(where)
        reported = {subject for subject, _, _ in found}
        for file, wanted, problem in self._found_later:
            subject = problem.group or problem.name
            if subject not in reported and _doubt(self._program, problem, reachable) is None:
                # The function may never be called: this is not an error.
                level: Level = "note" if problem.level == "note" else "warning"
                where = f"{self._program.location(file, wanted.line)} imports {problem.name!r} when it is called"
                found.setdefault((subject, level, problem.message), []).append(where)
        return [Finding(level, f"{_first(lines)}: {message}") for (_, level, message), lines in found.items()]


def _first(lines: list[str]) -> str:
    more = len(set(lines)) - 1
    return f"{lines[0]} (and {text.counted(more, 'more line')} like it)" if more else lines[0]


def _doubt(program: Program, problem: ImportProblem, reachable: Mapping[str, ast.Module]) -> str | None:
    """Return why a module that is not found may exist when the program runs, None if nothing indicates that."""
    if problem.kind == "unrequired":
        return None
    if problem.kind == "outside":
        return _uses_any(_CHANGES_PATH, reachable)
    if problem.kind == "uninstalled":
        return _uses_any(_LOADS_MODULES, reachable)
    path = program.missing_part(problem.name)
    part = path.rpartition("/")[2]
    namesake = program.find_anywhere(part)
    if namesake is not None:
        return f"{namesake} has its name, and counts if the program puts its folder on the path."
    top = program.entry.project
    for prefix in program.prefixes:
        link = top / prefix / path
        if link.is_symlink() and link.is_dir() and Path(os.path.realpath(link)).is_relative_to(top):
            return f"{prefix}{path} is a link to a folder, which is not packaged. Next: move the folder there."
    word = re.compile(rf"\b{re.escape(part)}\b")
    for file, tree in reachable.items():
        if any(word.search(string) for string in _strings(tree)):
            return f"{file} has its name in a string, and may write it."
    return _uses_any(_LOADS_MODULES, reachable)


def _uses_any(pattern: re.Pattern[str], reachable: Mapping[str, ast.Module]) -> str | None:
    for file, tree in reachable.items():
        if any(pattern.fullmatch(name) for name in names_used(tree)):
            return f"{file} changes where modules are loaded from, and may provide it."
    return None


def _strings(tree: ast.Module) -> Iterator[str]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
