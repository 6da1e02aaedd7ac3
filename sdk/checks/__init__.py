"""What a plan has to say about itself: small pure functions (resources, code, facts) -> findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..spec.findings import TENSORFLOW_RANGE, Facts, Finding
from . import local, vertex
from .strategies import strategies_in

__all__ = ["TENSORFLOW_RANGE", "Facts", "Finding", "errors", "run_all", "strategies_in"]


def run_all(
    job: Mapping[str, Any],
    facts: Facts,
    *,
    backend: str = "local",
    target: Mapping[str, Any] | None = None,
    root: str = "",
    run_id: str = "",
    strategies: Sequence[str] = (),
) -> list[Finding]:
    """Return the findings of every check of a backend, in a fixed order and each once.

    Args:
        job: the Job as JSON.
        facts: what was asked of the world.
        backend: who runs it.
        target: the backend's own value as JSON, such as a Vertex.
        root: where the run will live; "" where that is not decided.
        run_id: its id, likewise.
        strategies: names of the classes of tf.distribute that the program mentions (`strategies_in`).
    """
    if backend == "vertex":
        found = vertex.run(job, target or {}, facts, root=root, run_id=run_id, strategies=strategies)
    else:
        found = local.run(job, facts)
    # Several checks may come to one verdict.
    return list({(finding.level, finding.message): finding for finding in found}.values())


def errors(findings: Sequence[Sequence[str]]) -> list[str]:
    """Return the sentences of those (level, message) pairs that stop a submit."""
    return [message for level, message in findings if level == "error"]
