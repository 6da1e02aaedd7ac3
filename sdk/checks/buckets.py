"""Bucket settings that waste money or remove needed objects, in words: for a plan's checks and `podlift doctor`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..text import duration
from .check import Check, fine, mended_by

# A bucket's resource in Cloud Storage.
Resource = Mapping[str, Any]
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*[a-z0-9]")
_ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
# Look-alikes of "google", too.
_GOOGLE = re.compile(r"^goog|g[o0]{2}g[l1]e")
RESERVED = "does not begin with 'goog', and does not contain 'google' or a look-alike"
_LONGEST, _LONGEST_WITH_DOTS, _SHORTEST = 63, 222, 3


def name_problem(name: str) -> str:
    """Return the rule of Cloud Storage that a bucket's name breaks, as a predicate of the name; "" for none.

    Source: docs/storage/docs/buckets#naming (read 2026-11).
    """
    longest = _LONGEST_WITH_DOTS if "." in name else _LONGEST
    if not _SHORTEST <= len(name) <= longest or any(len(part) > _LONGEST for part in name.split(".")):
        return f"has {_SHORTEST} to {_LONGEST} characters; one with dots has as many in each part, {_LONGEST_WITH_DOTS} in all"
    if not _NAME.fullmatch(name) or ".." in name:
        return (
            "has lowercase letters, digits, dashes, dots and underscores, and starts and ends with a letter or a digit"
        )
    if _ADDRESS.fullmatch(name):
        return "is no IP address"
    if _GOOGLE.search(name):
        return RESERVED
    return ""


def new_name(base: str, suffix: str) -> str:
    """Return a name for a new bucket, which Cloud Storage accepts, whatever project or bucket it is named after."""
    # A name with a dot belongs to the owner of that domain.
    text = _GOOGLE.sub("g", re.sub(r"[^a-z0-9_-]", "-", base))
    return f"{text[: _LONGEST - len(suffix) - 1].strip('-_')}-{suffix}"


def retention_checks(name: str, about: Resource) -> Iterator[Check]:
    """Check whether a bucket keeps removed objects, which are billed; `about` is its resource in Cloud Storage."""
    kept_s = int(about.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    soft = f"soft delete is on: replaced checkpoints are billed for another {duration(kept_s)}" if kept_s else ""
    versions = about.get("versioning", {}).get("enabled")
    versioned = "object versioning is on: removed checkpoints are kept and billed forever" if versions else ""
    for check, cost, option in (
        ("soft-delete", soft, "--clear-soft-delete"),
        ("versioning", versioned, "--no-versioning"),
    ):
        command = f"gcloud storage buckets update gs://{name} {option}"
        off = fine(check, "off: removed objects cost nothing")
        yield mended_by(check, "warning", cost, command) if cost else off


def deletes(about: Resource, prefix: str) -> list[str]:
    """Return the lifecycle rules of the bucket that delete objects below a root; `prefix` is its path in the bucket."""
    inside = f"{prefix.strip('/')}/".lstrip("/")
    rules = []
    for rule in about.get("lifecycle", {}).get("rule") or ():
        condition = rule.get("condition") or {}
        # Other rules change the storage class, or remove parts of uploads or old versions.
        if rule.get("action", {}).get("type") != "Delete" or _OF_OLD_VERSIONS & set(condition):
            continue
        starts = condition.get("matchesPrefix") or [""]
        if any(inside.startswith(start) or start.startswith(inside) for start in starts):
            rules.append(", ".join(f"{name}={value}" for name, value in condition.items()) or "always")
    return rules


# Conditions that no current version of an object fulfils.
_OF_OLD_VERSIONS = {"daysSinceNoncurrentTime", "noncurrentTimeBefore", "numNewerVersions"}
