"""What a plan has to say about itself: small pure functions (resources, code, facts) -> findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """One verdict: an error stops the submit, a warning is shown, a note is for the record."""

    level: Literal["error", "warning", "note"]
    message: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was asked of the world before a plan is made; everything else about a plan follows from its inputs.

    Args:
        python: version of the interpreter that runs the tasks.
        executable: its path.
        tensorflow: its version, None where it is not installed.
        keras: likewise.
        tf_keras: likewise.
        cpus: how many this machine has.
        isolation: None if tasks can be given a network namespace, else why not.
        disk: True if tasks see the disk of the machine that submits.
        dropped: names of the caller's environment variables that no task sees.
    """

    python: str
    executable: str
    tensorflow: str | None
    keras: str | None
    tf_keras: str | None
    cpus: int
    isolation: str | None
    disk: bool = True
    dropped: tuple[str, ...] = ()


# The releases that podlift was run against; see docs/compatibility.md.
TENSORFLOW_RANGE = ((2, 16), (2, 21))


def run_all(job: dict[str, Any], facts: Facts) -> list[Finding]:
    """Return the findings of every check, in a fixed order."""
    checks = (_tensorflow, _legacy_keras, _isolation, _open_ports, _crowding)
    return [finding for check in checks for finding in check(job, facts)]


def errors(findings: Sequence[Sequence[str]]) -> list[str]:
    """Return the sentences of those (level, message) pairs that stop a submit."""
    return [message for level, message in findings if level == "error"]


def _tensorflow(job: dict[str, Any], facts: Facts) -> list[Finding]:
    if job["code"].get("isolated"):
        return []
    if facts.tensorflow is None:
        return [
            Finding(
                "warning",
                f"TensorFlow is not installed for {facts.executable}: a program that imports it will fail. "
                "Next: pip install 'podlift[tf]'.",
            )
        ]
    release = tuple(int(part) for part in facts.tensorflow.split(".")[:2])
    low, high = TENSORFLOW_RANGE
    if low <= release <= high:
        return []
    return [
        Finding(
            "warning",
            f"TensorFlow {facts.tensorflow} is outside the range that podlift was tried with: "
            f"{low[0]}.{low[1]} to {high[0]}.{high[1]}.",
        )
    ]


def _legacy_keras(job: dict[str, Any], facts: Facts) -> list[Finding]:
    if job["code"]["keras"] != "legacy" or facts.tf_keras is not None:
        return []
    return [Finding("error", "keras='legacy' needs tf_keras, which is not installed. Next: pip install 'podlift[tf]'.")]


def _isolation(job: dict[str, Any], facts: Facts) -> list[Finding]:
    if job["resources"]["network"] != "isolated" or facts.isolation is None:
        return []
    return [Finding("error", f"network='isolated' cannot be had here: {facts.isolation} Use network='host'.")]


def _open_ports(job: dict[str, Any], facts: Facts) -> list[Finding]:
    if job["resources"]["workers"] == 1 or job["resources"]["network"] == "isolated":
        return []
    return [
        Finding(
            "note",
            "TensorFlow's servers listen on every network interface while this runs, without authentication. On an "
            "untrusted network use network='isolated' (docs/security.md).",
        )
    ]


def _crowding(job: dict[str, Any], facts: Facts) -> list[Finding]:
    workers = job["resources"]["workers"]
    if workers <= 4 * facts.cpus:
        return []
    return [
        Finding("warning", f"{workers} tasks share {facts.cpus} CPUs: expect about {workers}/{facts.cpus} of the time.")
    ]
