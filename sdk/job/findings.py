"""The input and the output of checks: facts about the world, and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..hardware.catalog import PriceTable
from ..text import compact_duration
from .setting_names import setting_name

# The releases of TensorFlow that podlift is tested with; see docs/reference/compatibility.md.
TENSORFLOW_RANGE = ((2, 16), (2, 21))


@dataclass(frozen=True)
class Finding:
    """The result of a check: an error stops the submit, a warning is shown, a note is recorded.

    `nearest` holds the fields to change (`resources.accelerator`, `vertex.regions`) and their new values: the closest plan
    that passes this check. The message has the same in words.
    """

    level: Literal["error", "warning", "note"]
    message: str
    nearest: tuple[tuple[str, object], ...] = field(default=(), compare=False)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that were probed before a plan is made; everything else about a plan follows from its inputs."""

    python: str  # version of the interpreter that runs the tasks
    executable: str
    cpus: int
    tensorflow: str | None = None  # version; None if not installed
    keras: str | None = None
    tf_keras: str | None = None
    isolation: str | None = None  # None if tasks can get a network namespace, else why not
    disk: bool = True  # tasks see the disk of the submitting machine
    dropped: tuple[str, ...] = ()  # names of the caller's environment variables that no task sees
    gpus: int = 0  # of this machine
    memory_gib: float | None = None  # of this machine; None if unknown
    online: Mapping[str, Any] = field(default_factory=dict)  # answers of the cloud: "bucket", "image", "quotas"
    prices: PriceTable | None = None  # as read by `podlift accelerators --refresh`; None for this package's prices


def error(message: str, nearest: Mapping[str, object] | None = None) -> Finding:
    """Return an error; its message (given without a full stop) ends with the nearest valid choice, written as keywords."""
    message = message if message.endswith("?") else f"{message}."
    if not nearest:
        return Finding("error", message)
    words = ", ".join(f"{setting_name(path)}={_written(path, value)!r}" for path, value in nearest.items())
    return Finding("error", f"{message} Nearest: {words}.", tuple(nearest.items()))


def _written(path: str, value: object) -> object:
    """Return a value as it is written in a keyword argument."""
    return compact_duration(value) if path.endswith("_s") and isinstance(value, float) else value


def warning(message: str) -> Finding:
    return Finding("warning", message if message.endswith("?") else f"{message}.")


def note(message: str) -> Finding:
    return Finding("note", f"{message}.")
