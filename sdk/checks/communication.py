"""The exchange of gradients between replicas: the CommunicationOptions of a program, and their effect.

Read from the source; nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..hardware import accelerators
from ..job.findings import Finding, error, note, warning
from ..job.job import Job

_ENUMS = ("CommunicationImplementation", "CollectiveCommunication")
_OPTIONS = ("CommunicationOptions", "CollectiveHints")
_NAMES = ("AUTO", "RING", "NCCL")
# Code inside these nodes runs under a condition.
_BRANCHES = (ast.If, ast.IfExp, ast.Match, ast.Try, ast.Dict, ast.Compare, ast.BoolOp)


@dataclass(frozen=True, kw_only=True)
class Communication:
    name: str  # "AUTO", "RING" or "NCCL"
    line: int
    sure: bool  # False if it depends on a condition
    place: str = ""  # its line with its file


def communications_of(tree: ast.AST) -> Iterator[Communication]:
    """Yield the requested communications of a module, in its order."""
    # Without recursion: a sum of a thousand texts is a tree of that depth.
    waiting = [(tree, True)]
    while waiting:
        node, sure = waiting.pop()
        name = _name(node)
        if name:
            yield Communication(name=name, line=node.lineno, sure=sure)  # type: ignore[attr-defined]
        inner = [(child, sure and not isinstance(node, _BRANCHES)) for child in ast.iter_child_nodes(node)]
        waiting += inner[::-1]


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute) and node.attr in _NAMES and _last(node.value) in _ENUMS:
        return node.attr
    if not isinstance(node, ast.Call):
        return ""
    if _last(node.func) == "NcclAllReduce":
        return "NCCL"
    choice = next((word.value for word in node.keywords if word.arg == "implementation"), None)
    if _last(node.func) in _OPTIONS and isinstance(choice, ast.Constant) and str(choice.value).upper() in _NAMES:
        return str(choice.value).upper()
    return ""


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def run(job: Job, uses: Sequence[Communication], *, stands_in: bool) -> Iterator[Finding]:
    """Yield a finding for each; `stands_in` if logical CPU devices stand in for the accelerator."""
    family = accelerators.lookup(job.resources.accelerator).family
    for use in uses:
        if use.name != "NCCL" or family == "gpu":
            yield note(f"{use.place} asks for {use.name}: {_explained(use.name, family, stands_in=stands_in)}")
        elif use.sure:
            yield error(
                f"{use.place} asks for NCCL, which exchanges data among GPUs, and this job has none. Received: "
                f"accelerator={job.resources.accelerator!r}. Use CommunicationImplementation.AUTO there, or ask for GPUs",
                {"resources.accelerator": "l4:2"},
            )
        else:
            yield warning(
                f"{use.place} may ask for NCCL, which needs GPUs, and this job has none: choose AUTO or RING without GPUs"
            )


def _explained(name: str, family: str, *, stands_in: bool) -> str:
    real = family == "gpu" and not stands_in
    if name == "RING":
        return "TensorFlow's own exchange over gRPC, on CPUs and GPUs"
    if name == "AUTO":
        return "TensorFlow chooses NCCL among GPUs, and RING among CPUs" + ("" if real else ", as here")
    if real:
        return "it exchanges data among the GPUs of all tasks"
    return "it needs GPUs. Among the logical CPU devices that stand in for them it runs as RING, with the same sums"
