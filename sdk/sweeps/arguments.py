"""Finds parameters that a script does not take, by reading the options that it adds to an argparse parser. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import nearest
from ..job.plan import Plan


def unknown(plan: Plan, names: Iterable[str]) -> list[str]:
    """Return a sentence for each parameter that the program does not take; [] if its source does not show its arguments."""
    if plan.code.kind != "script":
        # Keywords of a function are checked with its signature, and a module may parse its arguments anywhere.
        return []
    text = plan.code.generated.get(plan.code.program, "")
    with suppress(OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        options = _options(ast.parse(text or Path(plan.code.project, plan.code.program).read_text(encoding="utf-8")))
        return [_sentence(plan, name, options) for name in names if options and not _is_taken(name, options)]
    return []


def _sentence(plan: Plan, name: str, options: set[str]) -> str:
    names = sorted(option.lstrip("-") for option in options if option.startswith("--"))
    return f"space: {plan.code.program} takes no argument --{name}. {nearest(name, names)}"


def _is_taken(name: str, options: set[str]) -> bool:
    # argparse accepts the beginning of an option's name.
    return any(option.startswith(f"--{name}") for option in options)


def _options(tree: ast.Module) -> set[str]:
    """Return the options of a script's parser; none if it also accepts options that its source does not list."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = {node.func.attr for node in calls if isinstance(node.func, ast.Attribute)}
    creations = [node for node in calls if _name(node.func) == "ArgumentParser"]
    if len(creations) != 1 or any(keyword.arg in (None, "parents") for keyword in creations[0].keywords):
        return set()
    if "parse_args" not in methods or methods & {"parse_known_args", "add_subparsers"}:
        return set()
    added = [node for node in calls if _name(node.func) == "add_argument"]
    texts = [[each.value if isinstance(each, ast.Constant) else None for each in node.args] for node in added]
    if any(not words or not all(isinstance(word, str) for word in words) for words in texts):
        return set()
    # Another function may add options to a parser that it receives.
    parsers = {node.targets[0].id for node in ast.walk(tree) if _makes_parser(node, creations[0])}  # type: ignore[attr-defined]
    handed = any(isinstance(each, ast.Name) and each.id in parsers for node in calls for each in node.args)
    return set() if handed or not parsers else {str(word) for words in texts for word in words}


def _makes_parser(node: ast.AST, call: ast.Call) -> bool:
    return isinstance(node, ast.Assign) and node.value is call and isinstance(node.targets[0], ast.Name)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
