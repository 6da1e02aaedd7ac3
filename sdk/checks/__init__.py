"""The checks of a plan that several backends share: small pure functions (job, target, facts) -> findings."""

from __future__ import annotations

from collections.abc import Sequence

from ..job.findings import TENSORFLOW_RANGE, Facts, Finding
from .strategies import strategies_in

__all__ = ["TENSORFLOW_RANGE", "Facts", "Finding", "errors", "strategies_in"]


def errors(findings: Sequence[Finding]) -> list[str]:
    return [finding.message for finding in findings if finding.level == "error"]
