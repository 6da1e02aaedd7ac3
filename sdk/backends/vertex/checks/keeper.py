"""The keeper: an account that may create jobs, and settings that have no effect without one."""

from __future__ import annotations

from collections.abc import Iterator

from ....job.findings import Finding, error, note, warning
from ....job.targets import LONGEST_S
from ....text import and_more, compact_duration
from ..options import Vertex
from .online import Answer

_MAX_RIGHTS = 12


def run(target: Vertex, answer: Answer | None) -> Iterator[Finding]:
    """`answer` is the answer about the rights of its account, None without a request."""
    if not target.keeper:
        if target.keeper_service_account is not None:
            unused = "vertex_keeper_service_account: no effect without a keeper"
            yield warning(f"{unused}. Next: vertex_keeper=True (--vertex-keeper true)")
        return
    if target.keeper_service_account is None and target.service_account is None:
        yield error(
            "The keeper needs a service account of yours: Vertex AI's default one cannot create jobs from inside a job. "
            f"Received: vertex_keeper={target.keeper!r} without vertex_keeper_service_account and vertex_service_account. "
            "Next: vertex_keeper_service_account=NAME@PROJECT.iam.gserviceaccount.com; the plan then lists its rights",
            {"vertex.keeper": False},
        )
    if target.keep_for_s is not None and target.keep_for_s > LONGEST_S:
        received = compact_duration(target.keep_for_s)
        yield error(
            f"Vertex AI documents no jobs of more than 7 days, and the keeper is one. Received: vertex_keeper={received!r}",
            {"vertex.keeper": "7d"},
        )
    if answer is not None:
        yield from _rights(target.keeper_service_account or str(target.service_account), answer)


def _rights(account: str, answer: Answer) -> Iterator[Finding]:
    if answer["missing"]:
        yield error(
            f"The keeper could not submit jobs: {account} lacks {and_more(answer['missing'], _MAX_RIGHTS)}. Next: grant it, or "
            "plan without vertex_keeper",
            {"vertex.keeper": False},
        )
    if answer["unknown"]:
        why = str(answer["why"]).rstrip(".")
        yield note(
            f"It is not known whether the keeper's account {account} has {and_more(answer['unknown'], _MAX_RIGHTS)}: {why}. "
            "The keeper tests its rights when it starts, and podlift status reports the missing ones"
        )
    if not answer["missing"] and not answer["unknown"]:
        yield note(f"The keeper's account {account} has the rights that it needs")
