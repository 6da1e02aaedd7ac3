"""The keeper: an account that may create jobs, and settings that have no effect without one."""

from __future__ import annotations

from collections.abc import Iterator

from ..spec.findings import Finding, error, warning
from ..spec.policies import LONGEST_S, Vertex
from ..text import compact_duration


def run(target: Vertex) -> Iterator[Finding]:
    unused = {"vertex_keeper_service_account": target.keeper_service_account, "vertex_keep_for": target.keep_for_s}
    named = [name for name, value in unused.items() if value is not None]
    if not target.keeper:
        if named:
            yield warning(f"{', '.join(named)}: no effect without a keeper. Next: vertex_keeper=True (--vertex-keeper)")
        return
    if target.keeper_service_account is None and target.service_account is None:
        yield error(
            "The keeper needs a service account of yours: Vertex AI's default one cannot create jobs from inside a job. "
            "Received: vertex_keeper=True without vertex_keeper_service_account and vertex_service_account. Next: "
            "vertex_keeper_service_account=NAME@PROJECT.iam.gserviceaccount.com; the plan then lists its rights",
            {"vertex.keeper": False},
        )
    if target.keep_for_s is not None and target.keep_for_s > LONGEST_S:
        received = compact_duration(target.keep_for_s)
        yield error(
            f"Vertex AI documents no jobs of more than 7 days, and the keeper is one. Received: vertex_keep_for={received!r}",
            {"vertex.keep_for_s": LONGEST_S},
        )
