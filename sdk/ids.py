"""Names and ids of runs."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from pathlib import PurePosixPath

from .errors import InputError

# Cloud labels allow lowercase letters, digits and dashes, 63 characters; the id adds 7 to the name.
MAX_NAME = 40
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_RUN_ID = re.compile(r"[a-z][a-z0-9-]*-[a-z2-7]{6}")
# The end of the name of a run that a schedule has started: its slot.
SLOT_FORMAT = "%Y%m%dt%H%M%S"
_OF_SLOT = re.compile(r"(.+)-[0-9]{8}t[0-9]{6}")
_OF_TRIAL = re.compile(r"(.+)-([0-9]{3,5})")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
# File names that say nothing about the training: the folder's name is better.
_GENERIC = {"train", "trainer", "main", "__main__", "run", "task", "model", "script"}


def check_name(name: str, most: int = MAX_NAME) -> str:
    """Return `name` if it is valid as a label in every cloud, else raise InputError with the nearest valid name."""
    if len(name) > most and is_name(name):
        raise InputError(f"The name is too long. Received: {name!r}. Allowed: {most} characters.")
    if is_name(name):
        return name
    raise InputError(
        f"The name cannot be a label. Received: {name!r}. Allowed: lowercase letters, digits and dashes, starting with a "
        f"letter, at most {MAX_NAME} characters. Nearest: {slug(name)!r}."
    )


def slug(text: str) -> str:
    """Return the valid name that is nearest to `text`."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    cleaned = re.sub(r"^[^a-z]+", "", cleaned)[:MAX_NAME].rstrip("-")
    return cleaned or "run"


def default_name(entry: str, folder: str = "") -> str:
    """Name a run after its script or module, or after the folder if that name is generic."""
    target = entry.partition(":")[0]
    if target.endswith(".py"):
        parts = [*PurePosixPath(folder).parts[-1:], PurePosixPath(target).stem]
    else:
        parts = target.split(".")
    meaningful = [part for part in parts if part not in _GENERIC]
    return slug(meaningful[-1] if meaningful else parts[-1])


def new_run_id(name: str, choose: Callable[[str], str] = secrets.choice) -> str:
    """Return `name` with a random suffix of six characters (a billion for each name)."""
    return f"{name}-{''.join(choose(_ALPHABET) for _ in range(6))}"


def suffix_of(text: str) -> str:
    """Return the six characters that always end the id of the run with this identity."""
    digest = hashlib.sha256(text.encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:6])


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and len(text) <= MAX_NAME


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


def name_of(run_id: str) -> str:
    """Return the name of a run: its id without the random suffix."""
    return run_id.rpartition("-")[0] if is_run_id(run_id) else run_id


def schedule_of(run_id: str) -> str:
    """Return the name of the schedule that has started a run: its name without the slot; "" for another run."""
    match = _OF_SLOT.fullmatch(name_of(run_id))
    return match[1] if match else ""


def trial_of(run_id: str) -> tuple[str, int]:
    """Return the sweep and the number of a trial, as far as the form of its run's id tells; ("", 0) for another form."""
    match = _OF_TRIAL.fullmatch(name_of(run_id))
    return (match[1], int(match[2])) if match else ("", 0)
