"""Reads the program's own modules for mistakes that would stop it.

Syntax errors, imports of modules that no task finds, and an entry function that does not exist, does not accept its arguments,
or would not do its work when it is called.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ... import text
from ...checks import communication, strategies
from ...errors import Problems, nearest
from ...job.credentials import formats_in
from ...job.findings import Finding
from ..entry import LocatedEntry
from . import environment, estimators, keras2, shadowed
from .environment import Preload
from .import_sources import ImportProblem, ImportSources, Level, TaskEnvironment
from .keras2 import guarded, imported
from .program import Function, Import, Program, inside, names_bound, names_used

# A module that uses one of these can load modules that reading does not find.
_LOADS_MODULES = re.compile(
    r"sys\.(path|modules|meta_path|path_hooks)|(importlib(?!\.(metadata|resources))|imp|pkgutil|runpy|site|subprocess|"
    r"zipimport)(\..*)?|os\.system|__path__|__import__|exec|eval"
)
# With one of these it can also hide a module that is found elsewhere.
_CHANGES_PATH = re.compile(r"sys\.(path|modules|meta_path|path_hooks)|site(\..*)?|__path__")

_PODLIFT = Path(__file__).parents[2]

# A module that uses a name like these may read sys.argv: by a parser of arguments, or by podlift's context.
_READS_ARGV = re.compile(
    r"arg(v|_?parse|ument)|parse_?args|flags|absl|click|typer|tyro|hydra|docopt|fire|cli\b|context|exec|eval", re.I
)
# A module that uses one of these may bind names that its source does not show.
_BINDS_HIDDEN_NAMES = {"globals", "vars", "exec", "setattr", "__dict__", "modules"}


def check(
    entry: LocatedEntry,
    members: Iterable[str],
    tasks: TaskEnvironment,
    *,
    kwargs: Mapping[str, object] | None = None,
    args: Sequence[Any] = (),
    chief: bool = False,
    left_out: Sequence[str] = (),
    evaluate: str = "",
    allowed: Collection[str] = (),
) -> tuple[list[Finding], Preload]:
    """Read every module of the bundle (its paths are `members`) that the entry reaches; return findings, and the imports that
    tasks could share. An InputError names certain failures, such as syntax errors and imports of modules that no task finds.

    `tasks` are the packages that tasks find besides the bundle; `kwargs` None means that the function's arguments are unknown;
    `evaluate` is the function of a gate, "" for none; `allowed` are files that may contain a text like a credential.
    """
    program, problems = Program(entry, list(members)), Problems()
    sources = ImportSources(program, tasks, left_out)
    reader = _ProgramReader(program, sources, problems, entry.file)
    problems.messages += [*shadowed.name_conflict(program), *shadowed.mistakes_of_entry(program)]
    trees = reader.trees
    all_trees = {**trees, **reader.later}
    start = trees.get(entry.file)
    if start is not None and entry.function:
        wrong = functools.partial(_wrong_arguments, kwargs=kwargs)
        problems.messages += _function_mistakes(start, entry.file, entry.function, wrong)
        if args:
            problems.messages += _unread_args(start, entry, args, program.reachable(all_trees).values())
    findings = reader.judge_imports()
    if evaluate:
        mistakes, more = _gate(program, sources, evaluate)
        problems.messages += [mistake for mistake in mistakes if mistake not in problems.messages]
        findings += [finding for finding in more if finding not in findings]
    reachable = program.reachable(all_trees)
    problems.messages += _credentials(program, [file for file in all_trees if file not in allowed])
    mistakes, removed = estimators.find(program, trees, reachable, tasks)
    problems.messages += mistakes
    problems.raise_if_any()
    findings += removed
    findings += missing_packages(program, reachable, sources)
    findings += shadowed.hidden_by_standard_library(program, reachable)
    findings += shadowed.unknown_attributes(program, reachable)
    if chief:
        findings += environment.assumptions_without_chief(program, trees)
    findings += environment.set_too_late(program, trees)
    findings += environment.not_passed_on(program, all_trees, tasks.dropped)
    if not tasks.legacy:
        findings += keras2.rejected_by_keras_3(program, reachable)
    preload = environment.find_preload(program, reachable, legacy=tasks.legacy)
    return findings, _with_strategies(preload, program, reachable, certain=trees)


def _with_strategies(
    preload: Preload, program: Program, reachable: Mapping[str, ast.Module], certain: Collection[str]
) -> Preload:
    """Add the strategies and communications of a program; `certain` are the files that certainly run."""
    names = (name for tree in reachable.values() for name in strategies.strategies_of(tree))
    # In a checkout of podlift, its own modules are files of the project.
    own = [
        (file, tree) for file, tree in reachable.items() if not (program.entry.project / file).is_relative_to(_PODLIFT)
    ]
    communications = (
        replace(call, place=program.location(file, call.line), sure=call.sure and file in certain)
        for file, tree in own
        for call in communication.communications_of(tree)
    )
    return replace(
        preload,
        strategies=tuple(dict.fromkeys(names)),
        communications=tuple(communications),
        fits=tuple(program.location(file, line) for file, tree in own for line in strategies.fits_of(tree)),
        connects=any(strategies.CONNECTS.search(program.text(file)) for file, _ in own),
    )


def _credentials(program: Program, files: Iterable[str]) -> list[str]:
    mistakes = []
    for file in files:
        source = program.text(file).decode("utf-8", "replace")
        for kind, offset in formats_in(source):
            where = program.location(file, source.count("\n", 0, offset) + 1)
            mistakes.append(
                f"{where}: {kind} would be packaged. Next: let the program read it from a variable, which --env NAME or "
                f"--secret passes; or --allow-secret {file}, if it is not a secret."
            )
    return mistakes


class _ProgramReader:
    """Reads a module of the program and its imports; certain failures go to `problems`."""

    def __init__(self, program: Program, sources: ImportSources, problems: Problems, start: str) -> None:
        self._program = program
        self._sources = sources
        self._problems = problems
        self.trees: dict[str, ast.Module] = {}  # modules that certainly run
        self.later: dict[str, ast.Module] = {}  # modules that run if one of their functions is called
        self._import_problems: list[tuple[str, Import, ImportProblem]] = []
        self._later_problems: list[tuple[str, Import, ImportProblem]] = []
        self._unknown_later: list[str] = []
        self._read_certain(start)
        self._read_later()

    def _read_certain(self, start: str) -> None:
        program = self._program
        waiting, seen = [start], {start}
        while waiting:
            file, tree = waiting.pop(), None
            with self._problems.collect():
                tree = program.checked_tree(file)
            if tree is None:
                continue
            self.trees[file] = tree
            if file == program.entry.file and program.entry.kind == "script":
                self._problems.messages += program.relative_imports_of_script(tree)
            for statement in program.imports(tree, file):
                if shadowed.is_podlifts(statement.name):
                    self._problems.messages += shadowed.hidden_modules(program, file, statement)
                    self._problems.messages += shadowed.unknown_imports(program, file, statement)
                    continue
                paths = program.find_sources(statement)
                self._import_problems += [(file, statement, problem) for problem in self._sources.problems(statement)]
                waiting += [path for path in paths if path not in seen]
                seen.update(paths)

    def _read_later(self) -> None:
        """Read the imports in the functions of those modules."""
        program = self._program
        waiting: list[tuple[str, Iterator[Import]]] = [
            (file, program.later_imports(tree, file)) for file, tree in self.trees.items()
        ]
        while waiting:
            file, imports = waiting.pop()
            for statement in imports:
                if shadowed.is_podlifts(statement.name):
                    self._unknown_later += shadowed.unknown_imports(program, file, statement)
                    continue
                self._later_problems += [(file, statement, problem) for problem in self._sources.problems(statement)]
                for path in program.find_sources(statement):
                    is_read = path in self.trees or path in self.later
                    tree = None if is_read else program.tree(path)
                    if tree is not None:
                        self.later[path] = tree
                        waiting.append((path, chain(program.imports(tree, path), program.later_imports(tree, path))))

    def judge_imports(self) -> list[Finding]:
        """Return the warnings about imports; certain failures go to the problems."""
        locations: dict[tuple[str, Level, str], list[str]] = {}
        doubtful = any(
            problem.kind != "unrequired" for _, _, problem in (*self._import_problems, *self._later_problems)
        )
        reachable = self._program.reachable(self.trees) if doubtful else {}
        for file, statement, problem in self._import_problems:
            doubt = _doubt(self._program, problem, reachable)
            where = f"{self._program.location(file, statement.line)} imports {problem.name!r}"
            subject = problem.group or problem.name
            if doubt is not None:
                message = f"not found where the program starts; {doubt}"
                locations.setdefault((subject, "warning", message), []).append(where)
            elif problem.level == "error":
                self._problems.add(f"{where}: {problem.message}")
            else:
                locations.setdefault((subject, problem.level, problem.message), []).append(where)
        reported = {subject for subject, _, _ in locations}
        for file, statement, problem in self._later_problems:
            subject = problem.group or problem.name
            if subject not in reported and _doubt(self._program, problem, reachable) is None:
                # The function may never be called: this is not an error.
                level: Level = "note" if problem.level == "note" else "warning"
                where = f"{self._program.location(file, statement.line)} imports {problem.name!r} when it is called"
                locations.setdefault((subject, level, problem.message), []).append(where)
        findings = [Finding("warning", message) for message in self._unknown_later]
        for (_, level, message), lines in locations.items():
            more = len(set(lines)) - 1
            like_it = f" (and {text.counted(more, 'more line')} like it)" if more else ""
            findings.append(Finding(level, f"{lines[0]}{like_it}: {message}"))
        return findings


def _doubt(program: Program, problem: ImportProblem, reachable: Mapping[str, ast.Module]) -> str | None:
    """Return why a module that is not found may exist when the program runs, None if nothing indicates that."""
    if problem.kind in ("unrequired", "misnamed"):
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
        strings = (
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        if any(word.search(string) for string in strings):
            return f"{file} has its name in a string, and may write it."
    return _uses_any(_LOADS_MODULES, reachable)


def _uses_any(pattern: re.Pattern[str], reachable: Mapping[str, ast.Module]) -> str | None:
    for file, tree in reachable.items():
        if any(pattern.fullmatch(name) for name in names_used(tree)):
            return f"{file} changes where modules are loaded from, and may provide it."
    return None


# --- The functions of the entry and of a gate --------------------------------------------------------------------------


def _gate(program: Program, sources: ImportSources, evaluate: str) -> tuple[list[str], list[Finding]]:
    """Return the mistakes in the function of a gate and in its module's imports, and the findings about them."""
    name, _, function = evaluate.partition(":")
    files, about = program.find(Import(name, 0)), f"gate_evaluate: {evaluate!r}: "
    if files is None or not files:
        left_out = program.left_out(Import(name, 0))
        if left_out:
            return [f"{about}{left_out[1]} is not packaged. Next: code_project or code_include."], []
        modules = [path for path in sorted(program.files) if path.endswith(".py")]
        names = [_module_name(path, program.prefixes) for path in modules]
        return [f"{about}the packaged code has no such module. {nearest(name, names)}"], []
    if not files[-1].endswith(".py"):
        return [], []
    problems = Problems()
    reader = _ProgramReader(program, sources, problems, files[-1])
    findings, tree = reader.judge_imports(), reader.trees.get(files[-1])
    mistakes = [] if tree is None else _function_mistakes(tree, files[-1], function, _no_two_arguments)
    return [*problems.messages, *(f"{about}{mistake}" for mistake in mistakes)], findings


def _module_name(path: str, prefixes: Sequence[str]) -> str:
    prefix = max((prefix for prefix in prefixes if path.startswith(prefix)), key=len, default="")
    return path.removeprefix(prefix).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _no_two_arguments(function: Function) -> list[str]:
    """Return why a function cannot be called with a model and its data."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    needed = len(positional) - len(args.defaults)
    keywords = [arg.arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    if needed <= 2 and (len(positional) >= 2 or args.vararg) and not keywords:
        return []
    return [
        f"a gate calls {function.name} with the folder of a model and the place of the data. It is "
        f"{function.name}({ast.unparse(args)}). Next: def {function.name}(model: str, data: str) -> dict[str, float]."
    ]


def _function_mistakes(
    tree: ast.Module, file: str, name: str, wrong_arguments: Callable[[Function], list[str]]
) -> list[str]:
    """Return the mistakes in a function of a module, and in its arguments."""
    bound = [word for node in inside(tree) for word in names_bound(node)]
    bound += [word for node in ast.walk(tree) if isinstance(node, ast.Global) for word in node.names]
    if name not in bound:
        used = {word.rpartition(".")[2] for word in names_used(tree)}
        if "*" in bound or "__getattr__" in bound or used & _BINDS_HIDDEN_NAMES:
            return []
        names = sorted({other for other in bound if not hasattr(builtins, other)}) or ["nothing"]
        return [f"{file} has no function {name!r}. {nearest(name, names)}"]
    function = _definition(tree, name)
    # The result of a second assignment is only known when it runs.
    if bound.count(name) > 1 or function is None:
        return []
    mistakes = [*_why_it_does_not_run(function), *wrong_arguments(function)]
    return [f"{file}:{function.lineno}: {mistake}" for mistake in mistakes]


def _unread_args(
    tree: ast.Module, entry: LocatedEntry, args: Sequence[Any], program: Iterable[ast.Module]
) -> list[str]:
    """Return the mistake of a list of args for a function, if no module of the program reads sys.argv."""
    function = _definition(tree, entry.function)
    if function is None:
        return []
    arguments = function.args
    names = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if not names or any(_READS_ARGV.search(word) for module in program for word in names_used(module)):
        return []
    has_flags = any(isinstance(word, str) and word.startswith("-") for word in args)
    advice = f'{{"{names[0]}": ...}}' if has_flags else json.dumps(dict(zip(names, args, strict=False)))
    return [
        f"{entry.file}:{function.lineno}: a list of args becomes sys.argv, which the program does not read, and sets no "
        f"argument of {entry.function}({', '.join(names)}). Received: {list(args)!r}. Next: args={advice} (--args)."
    ]


def _definition(tree: ast.Module, name: str) -> Function | None:
    """Return the undecorated function that a module defines last under a name."""
    definitions = [node for node in tree.body if isinstance(node, Function) and node.name == name]
    return None if not definitions or definitions[-1].decorator_list else definitions[-1]


def _why_it_does_not_run(function: Function) -> list[str]:
    if isinstance(function, ast.AsyncFunctionDef):
        return [
            f"{function.name} is an async function: calling it would run nothing. "
            "Next: name a plain function that calls asyncio.run() with it."
        ]
    body = ast.Module(body=function.body, type_ignores=[])
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in inside(body)):
        return [f"{function.name} is a generator: calling it would run nothing. Next: name a function without `yield`."]
    return []


def _wrong_arguments(function: Function, kwargs: Mapping[str, object] | None) -> list[str]:
    args = function.args
    if kwargs is None or args.vararg or args.kwarg:
        return []
    positional = [*args.posonlyargs, *args.args]
    required = [arg.arg for arg in positional[: len(positional) - len(args.defaults)]]
    required += [arg.arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    accepted = [arg.arg for arg in (*args.args, *args.kwonlyargs)]
    mistakes = []
    for name in kwargs:
        if name not in accepted:
            hint = nearest(name, accepted) if accepted else "It accepts none."
            mistakes.append(f"{function.name} has no argument {name!r}. {hint}")
    missing = [name for name in required if name not in kwargs]
    if missing:
        received = ", ".join(map(repr, kwargs)) or "no keyword arguments"
        names = ", ".join(map(repr, missing))
        mistakes.append(f"{function.name} needs {names}. Received: {received}. Next: args={{...}} (--args).")
    return mistakes


_KERAS = r"(?:tensorflow\.)?keras\."
# Import names by the full names of functions and classes.
_NEEDS = {
    re.compile(_KERAS + pattern if pattern[0] != "^" else pattern): module
    for pattern, module in (
        # TensorFlow installed it up to 2.20.
        (r"callbacks\.TensorBoard", "tensorboard"),
        (r"^tensorflow\.summary\.(?:audio|histogram|image|scalar|text)", "tensorboard"),
        (r"utils\.(?:plot_model|model_to_dot)", "pydot"),
        (r"callbacks\.RemoteMonitor", "requests"),
        (r"(?:preprocessing\.image|utils)\.(?:load_img|save_img|array_to_img)", "PIL"),
    )
}
_DOT = "dot"


def missing_packages(program: Program, trees: Mapping[str, ast.Module], sources: ImportSources) -> list[Finding]:
    """Return a warning for each package that calls need and a task may not find: they fail once training has begun.

    These are calls of TensorFlow and Keras for which neither of them installs the package.
    """
    calls: dict[tuple[str, str], list[str]] = {}
    for file, tree in sorted(trees.items(), key=lambda item: (item[0] != program.entry.file, item[0])):
        for line, name, module in _needing_calls(tree):
            places = [f"{program.location(file, line)} calls {name}"]
            for problem in sources.problems(Import(module, line)):
                calls.setdefault((module, problem.message), []).extend(places)
            if module == "pydot" and sources.uses_this_machine and shutil.which(_DOT) is None:
                message = "it is not installed here. Next: install Graphviz (apt-get install graphviz)."
                calls.setdefault((f"the program {_DOT!r}", message), []).extend(places)
    return [_missing_finding(needed, message, places) for (needed, message), places in calls.items()]


def _missing_finding(needed: str, message: str, places: list[str]) -> Finding:
    more = len(places) - 1
    like_it = f" (and {text.counted(more, 'more call')} like it)" if more else ""
    package = needed if " " in needed else f"the package {needed!r}, which TensorFlow does not install"
    return Finding("warning", f"{places[0]}{like_it}, which needs {package}: {message}")


def _needing_calls(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line and the full name of each call, and the module that it imports."""
    names, skipped = imported(tree), guarded(tree)
    for node in ast.walk(tree) if names else ():
        if isinstance(node, ast.Call) and id(node) not in skipped:
            first, *rest = ast.unparse(node.func).split(".")
            full = ".".join([names.get(first, ""), *rest])
            for pattern, module in _NEEDS.items():
                if pattern.fullmatch(full):
                    yield node.lineno, full, module
