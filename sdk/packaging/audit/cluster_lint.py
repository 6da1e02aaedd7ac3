"""Habits of programs that were written for a cluster of workers without a chief, which is not what Vertex AI gives."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ...checks import Finding
from .program import Program

_ADVICE = (
    "Vertex AI's cluster, and the default here, is one chief and the rest workers. Count and ask for both, or give the "
    "program workers only with cluster='workers' (--cluster workers)."
)


def without_chief(program: Program, trees: Mapping[str, ast.Module]) -> list[Finding]:
    """Return a warning for each place that takes worker 0 for the chief, or the workers for all tasks.

    Args:
        program: the bundle.
        trees: the program's modules by file.
    """
    found = []
    for file, tree in sorted(trees.items()):
        for node in ast.walk(tree):
            said = _said(node)
            if said:
                found.append(Finding("warning", f"{program.place(file, getattr(node, 'lineno', 0))} {said}. {_ADVICE}"))
    return found


def _said(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
        (counted, *_) = node.args
        if isinstance(counted, ast.Subscript) and _key(counted) == "worker" and "cluster" in ast.dump(counted.value):
            return "takes the number of workers for the number of tasks, and leaves out the chief"
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        tests = [ast.unparse(value) for value in node.values]
        if any("task_type" in test and "worker" in test for test in tests) and any("task_id == 0" in t for t in tests):
            return "takes worker 0 for the chief"
    return ""


def _key(node: ast.Subscript) -> object:
    return node.slice.value if isinstance(node.slice, ast.Constant) else None
