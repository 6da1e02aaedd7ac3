"""Checks the function that an entry names: that it exists, accepts its arguments, and does its work when it is called."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import nearest
from ..entry import LocatedEntry
from .program import names_bound, names_used

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# A module that uses a name like these may read sys.argv: by a parser of arguments, or by podlift's context.
_READS_ARGV = re.compile(
    r"arg(v|_?parse|ument)|parse_?args|flags|absl|click|typer|tyro|hydra|docopt|fire|cli\b|context|exec|eval", re.I
)
# A module that uses one of these may bind names that its source does not show.
_BINDS_HIDDEN_NAMES = {"globals", "vars", "exec", "setattr", "__dict__", "modules"}


def check(tree: ast.Module, entry: LocatedEntry, kwargs: Mapping[str, object] | None) -> list[str]:
    """Return what is wrong with the entry's function and its arguments; `kwargs` is None if they are not known."""
    name = entry.function
    bound = [word for node in _module_level(tree) for word in names_bound(node)]
    bound += [word for node in ast.walk(tree) if isinstance(node, ast.Global) for word in node.names]
    if name not in bound:
        used = {word.rpartition(".")[2] for word in names_used(tree)}
        if "*" in bound or "__getattr__" in bound or used & _BINDS_HIDDEN_NAMES:
            return []
        known = sorted({other for other in bound if not hasattr(builtins, other)}) or ["nothing"]
        return [f"{entry.file} has no function {name!r}. {nearest(name, known)}"]
    function = _definition(tree, name)
    # The result of a second assignment is only known when it runs.
    if bound.count(name) > 1 or function is None:
        return []
    mistakes = _why_it_does_not_run(function)
    if kwargs is not None:
        mistakes += _wrong_arguments(function, kwargs)
    return [f"{entry.file}:{function.lineno}: {mistake}" for mistake in mistakes]


def unread_args(tree: ast.Module, entry: LocatedEntry, args: Sequence[Any], program: Iterable[ast.Module]) -> list[str]:
    """Return what is wrong with a list of args for a function, if no module of the program reads sys.argv."""
    function = _definition(tree, entry.function)
    if not args or function is None:
        return []
    given = function.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    if not names or any(_READS_ARGV.search(word) for module in program for word in names_used(module)):
        return []
    has_flags = any(isinstance(word, str) and word.startswith("-") for word in args)
    advice = f'{{"{names[0]}": ...}}' if has_flags else json.dumps(dict(zip(names, args, strict=False)))
    return [
        f"{entry.file}:{function.lineno}: a list of args becomes sys.argv, which the program does not read, and sets no "
        f"argument of {entry.function}({', '.join(names)}). Received: {list(args)!r}. Next: args={advice} (--args)."
    ]


def _definition(tree: ast.Module, name: str) -> _Function | None:
    """Return the undecorated function that a module defines last under a name."""
    found = [node for node in tree.body if isinstance(node, _Function) and node.name == name]
    return None if not found or found[-1].decorator_list else found[-1]


def _module_level(top: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `top`, without those inside functions and classes."""
    waiting = list(ast.iter_child_nodes(top))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _why_it_does_not_run(function: _Function) -> list[str]:
    if isinstance(function, ast.AsyncFunctionDef):
        return [
            f"{function.name} is an async function: calling it would run nothing. "
            "Next: name a plain function that calls asyncio.run() with it."
        ]
    body = ast.Module(body=function.body, type_ignores=[])
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _module_level(body)):
        return [f"{function.name} is a generator: calling it would run nothing. Next: name a function without `yield`."]
    return []


def _wrong_arguments(function: _Function, kwargs: Mapping[str, object]) -> list[str]:
    args = function.args
    if args.vararg or args.kwarg:
        return []
    positional = [*args.posonlyargs, *args.args]
    required = [arg.arg for arg in positional[: len(positional) - len(args.defaults)]]
    required += [arg.arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    known = [arg.arg for arg in (*args.args, *args.kwonlyargs)]
    mistakes = []
    for name in kwargs:
        if name not in known:
            hint = nearest(name, known) if known else "It accepts none."
            mistakes.append(f"{function.name} has no argument {name!r}. {hint}")
    missing = [name for name in required if name not in kwargs]
    if missing:
        given = ", ".join(map(repr, kwargs)) or "no keyword arguments"
        names = ", ".join(map(repr, missing))
        mistakes.append(f"{function.name} needs {names}. Received: {given}. Next: args={{...}} (--args).")
    return mistakes
