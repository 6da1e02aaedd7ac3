"""Finds code that was written for a cluster of workers without a chief, unlike the cluster of Vertex AI."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ...spec.findings import Finding
from .program import Program

_ADVICE = (
    "Vertex AI's cluster, and the default here, is one chief and the rest workers. Next: count and check both, or give the "
    "program workers only with local_cluster='workers' (--local-cluster workers)."
)


def assumptions_without_chief(program: Program, trees: Mapping[str, ast.Module]) -> list[Finding]:
    """Return a warning for each line that mistakes worker 0 for the chief, or the workers for all tasks."""
    return [
        Finding("warning", f"{program.location(file, node)} {assumption}. {_ADVICE}")
        for file, tree in sorted(trees.items())
        for node in ast.walk(tree)
        if (assumption := _assumption(node))
    ]


def _assumption(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
        counted = node.args[0]
        if (
            isinstance(counted, ast.Subscript)
            and isinstance(counted.slice, ast.Constant)
            and counted.slice.value == "worker"
            and "cluster" in ast.dump(counted.value)
        ):
            return "uses the number of workers as the number of tasks, which omits the chief"
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        tests = [ast.unparse(value) for value in node.values]
        compares_type = any("task_type" in test and "worker" in test for test in tests)
        if compares_type and any("task_id == 0" in test for test in tests):
            return "treats worker 0 as the chief"
    return ""
