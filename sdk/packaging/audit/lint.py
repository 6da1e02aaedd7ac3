"""Whether the function that an entry names is there, can be called as it will be, and does its work when called."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import nearest
from ..entry import LocatedEntry

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_Function, ast.ClassDef, ast.Lambda)
# What reads a program's words, or may: a parser of arguments, or a context of podlift with its args.
_READS_ARGV = re.compile(
    r"arg(v|_?parse|ument)|parse_?args|flags|absl|click|typer|tyro|hydra|docopt|fire|cli\b|context|exec|eval", re.I
)
# A module that uses one of these may make names that no reader finds.
_HIDDEN = {"globals", "vars", "exec", "setattr", "__dict__", "modules"}


def check(tree: ast.Module, source: LocatedEntry, kwargs: Mapping[str, Any] | None) -> list[str]:
    """Return what is wrong with the entry's function.

    Args:
        tree: the module.
        source: the entry.
        kwargs: what it will be called with; None when that is not known.
    """
    name = source.function
    bound = list(_bound(tree))
    if name not in bound:
        words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if "*" in bound or "__getattr__" in bound or words & _HIDDEN:
            return []
        known = sorted({other for other in bound if not hasattr(builtins, other)}) or ["nothing"]
        return [f"{source.file} has no function {name!r}. {nearest(name, known)}"]
    found = [node for node in tree.body if isinstance(node, _Function) and node.name == name]
    # What a decorator or a second assignment makes of it is known when it runs.
    if bound.count(name) > 1 or not found or found[0].decorator_list:
        return []
    where = f"{source.file}:{found[0].lineno}"
    return [
        f"{where}: {sentence}"
        for sentence in [*_never_runs(found[0]), *([] if kwargs is None else _arguments(found[0], kwargs))]
    ]


def unread_words(
    tree: ast.Module, source: LocatedEntry, words: Sequence[Any], program: Iterable[ast.Module]
) -> list[str]:
    """Return what is wrong with a list of args: it is the program's argv, and sets no argument of a function.

    Args:
        tree: the entry's module.
        source: the entry.
        words: the list.
        program: every module that may run.
    """
    found = [node for node in tree.body if isinstance(node, _Function) and node.name == source.function]
    if not words or not found or found[-1].decorator_list:
        return []
    args = found[-1].args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    if not names or any(_READS_ARGV.search(word) for module in program for word in _words(module)):
        return []
    flags = any(isinstance(word, str) and word.startswith("-") for word in words)
    nearby = f'{{"{names[0]}": ...}}' if flags else json.dumps(dict(zip(names, words, strict=False)))
    return [
        f"{source.file}:{found[-1].lineno}: a list of args is the program's argv (sys.argv), which nothing in it reads, and "
        f"sets no argument of {source.function}({', '.join(names)}). Received: {list(words)!r}. Next: args={nearby} (--args)."
    ]


def _words(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module uses or imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (f"{getattr(node, 'module', '')}.{alias.name}" for alias in node.names)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module's own statements bind, "*" for a star import."""
    for node in _within(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (*_Function, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def _within(top: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `top`, the insides of functions and classes left out."""
    waiting = list(ast.iter_child_nodes(top))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _never_runs(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    if isinstance(node, ast.AsyncFunctionDef):
        return [
            f"{node.name} is an async function: calling it would run nothing. "
            "Name a plain function that calls asyncio.run() with it."
        ]
    body = ast.Module(body=node.body, type_ignores=[])
    if any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in _within(body)):
        return [f"{node.name} is a generator: calling it would run nothing. Name a function without `yield`."]
    return []


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef, kwargs: Mapping[str, Any]) -> list[str]:
    args = node.args
    if args.vararg or args.kwarg:
        return []
    positional = [*args.posonlyargs, *args.args]
    required = [arg.arg for arg in positional[: len(positional) - len(args.defaults)]]
    required += [arg.arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    known = [arg.arg for arg in (*args.args, *args.kwonlyargs)]
    problems = []
    for name in kwargs:
        if name not in known:
            hint = nearest(name, known) if known else "It takes none."
            problems.append(f"{node.name} has no argument {name!r}. {hint}")
    missing = [name for name in required if name not in kwargs]
    if missing:
        given = ", ".join(map(repr, kwargs)) or "no keyword arguments"
        names = ", ".join(map(repr, missing))
        problems.append(f"{node.name} needs {names}. Received: {given}. Give them in args={{...}} (--args).")
    return problems
