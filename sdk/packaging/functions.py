"""Whether the function that an entry names is there, can be called as it will be, and does its work when called."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import nearest
from .entry import Source

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_Function, ast.ClassDef, ast.Lambda)
# A module that uses one of these may make names that no reader finds.
_HIDDEN = {"globals", "vars", "exec", "setattr", "__dict__", "modules"}


def check(tree: ast.Module, source: Source, kwargs: Mapping[str, Any] | None) -> list[str]:
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
