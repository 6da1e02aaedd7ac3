"""The checks of a plan: small pure functions (job, target, facts) -> findings."""

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
    """Return the findings of every check of a backend, in a fixed order and without duplicates.

    `job` and `target` (such as a Vertex) are JSON; `root` and `run_id` are "" if not decided yet; `strategies` are the names
    that `strategies_in` found in the program.
    """
    if backend == "vertex":
        found = vertex.run(job, target or {}, facts, root=root, run_id=run_id, strategies=strategies)
    else:
        found = local.run(job, target or {}, facts)
    return list({(finding.level, finding.message): finding for finding in found}.values())


def errors(findings: Sequence[Sequence[str]]) -> list[str]:
    return [message for level, message in findings if level == "error"]
