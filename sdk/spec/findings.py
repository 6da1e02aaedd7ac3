"""What checks take and give: facts about the world, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# The releases of TensorFlow that podlift was run against; see docs/reference/compatibility.md.
TENSORFLOW_RANGE = ((2, 16), (2, 21))


@dataclass(frozen=True)
class Finding:
    """One verdict: an error stops the submit, a warning is shown, a note is for the record.

    Args:
        level: how bad it is.
        message: the sentence.
        nearest: what to change, by setting (`resources.accelerator`, `target.regions`), and to what: the plan that is
            nearest to the refused one and is not refused for this. The sentence says the same in words.
    """

    level: Literal["error", "warning", "note"]
    message: str
    nearest: tuple[tuple[str, Any], ...] = ()


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
        online: what the cloud said when it was asked, as JSON: of its "bucket", "image" and "quotas"; {} where nobody asked.
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
    online: Mapping[str, Any] = field(default_factory=dict)


def error(message: str, nearest: dict[str, Any] | None = None) -> Finding:
    """Return a refusal; its sentence ends with the nearest choice, as it is written in Python.

    Args:
        message: what is wrong, what was received, why; without a full stop.
        nearest: the settings to change.
    """
    message = message if message.endswith("?") else f"{message}."
    if not nearest:
        return Finding("error", message)
    words = ", ".join(f"{name.rpartition('.')[2]}={value!r}" for name, value in nearest.items())
    return Finding("error", f"{message} Nearest: {words}.", tuple(nearest.items()))


def warning(message: str) -> Finding:
    """Return a warning; `message` without a full stop."""
    return Finding("warning", message if message.endswith("?") else f"{message}.")


def note(message: str) -> Finding:
    """Return a note; `message` without a full stop."""
    return Finding("note", f"{message}.")
