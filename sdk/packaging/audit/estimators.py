"""Finds uses of Estimators, which TensorFlow 2.16 removed, in programs with tasks that get that version or a newer one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from packaging.utils import canonicalize_name

from ...job.findings import Finding
from ..requirements.read import TENSORFLOWS
from .import_sources import TaskEnvironment
from .installed import Installed
from .program import SCOPES, Program, always_run, inside

# The first one without `tf.estimator`, and some of those after it.
_WITHOUT = ("2.16.1", "2.18.0", "2.21.0")
_FRAMEWORKS = ("tensorflow", "keras")
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Assert)
_NEXT = (
    "Next: `tensorflow==2.15.*` in the requirements and code_isolated=True (--code-isolated), which gives the run a "
    "separate environment (Python 3.9 to 3.11); or train with fit below sdk.context().strategy."
)


def find(
    program: Program, trees: Mapping[str, ast.Module], reachable: Mapping[str, ast.Module], tasks: TaskEnvironment
) -> tuple[list[str], list[Finding]]:
    """Return a mistake for the first use that certainly runs, otherwise a warning for the first that may run."""
    uses = {file: set(_uses(tree)) for file, tree in reachable.items()}
    files = [file for file in reachable if uses[file]]
    version = _version(tasks) if files else ""
    if not version:
        return [], []
    for file in files:
        certain = _certain(trees[file], program.runs_as_main(file)) if file in trees else iter(())
        node = next((node for node in certain if node in uses[file]), None)
        if node is not None:
            return [_sentence(program.location(file, node), version)], []
    first = min(uses[files[0]], key=lambda node: node.lineno)  # type: ignore[attr-defined]
    return [], [Finding("warning", _sentence(program.location(files[0], first), version))]


def _sentence(location: str, version: str) -> str:
    return f"{location} uses tf.estimator, which left TensorFlow with 2.16. The tasks get {version}. {_NEXT}"


def _version(tasks: TaskEnvironment) -> str:
    """Return the TensorFlow that tasks get, if it is known to have no Estimators; otherwise ""."""
    if not tasks.isolated and not tasks.in_image:
        installed = (Installed(pythonpath=tasks.pythonpath).versions.get(name) for name in sorted(TENSORFLOWS))
        version = next(filter(None, installed), "")
        parts = version.split(".")[:2]
        return f"TensorFlow {version}" if version and [int(part) for part in parts if part.isdigit()] >= [2, 16] else ""
    for requirement in tasks.requirements.here():
        if canonicalize_name(requirement.name) in TENSORFLOWS and any(map(requirement.specifier.contains, _WITHOUT)):
            return f"the newest that {str(requirement)!r} allows"
    return ""


def _uses(tree: ast.Module) -> Iterator[ast.AST]:
    roots = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in _FRAMEWORKS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "estimator" and _root(node) in roots:
            yield node
        elif isinstance(node, ast.ImportFrom) and "estimator" in _imported(node):
            yield node


def _imported(node: ast.ImportFrom) -> list[str]:
    """Return the names in `from tensorflow.a import b`; none for other packages."""
    package, *parts = (node.module or "").split(".")
    return [*parts, *(alias.name for alias in node.names)] if package in _FRAMEWORKS else []


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _certain(tree: ast.Module, as_main: bool) -> Iterator[ast.AST]:
    """Yield the nodes that run whenever the module does, also those in its functions that it calls by name."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    waiting = [list(always_run(tree.body, as_main))]
    while waiting:
        for statement in waiting.pop():
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                yield statement
            if not isinstance(statement, _SIMPLE):
                below = () if isinstance(statement, SCOPES) else (statement, *inside(statement))
                if any(isinstance(node, (ast.Return, ast.Raise)) for node in below):
                    break  # the rest may not run
                continue
            for node in ast.walk(statement):
                yield node
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    called = functions.pop(node.func.id, None)
                    waiting += [] if called is None else [list(always_run(called.body, False))]
