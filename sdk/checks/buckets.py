"""Bucket settings that cost money for nothing or remove what is needed, in words: for a plan's checks and `podlift doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..text import duration

# A bucket's resource in Cloud Storage.
Resource = Mapping[str, Any]


def soft_delete(about: Resource) -> str:
    """Return what the bucket's soft delete costs, "" if it is off; `about` is the bucket's resource in Cloud Storage."""
    kept_s = int(about.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    if not kept_s:
        return ""
    return f"soft delete is on: replaced checkpoints are billed for another {duration(kept_s)}"


def versioning(about: Resource) -> str:
    """Return what the bucket's object versioning costs, "" if it is off."""
    if not about.get("versioning", {}).get("enabled"):
        return ""
    return "object versioning is on: removed checkpoints are kept and billed forever"


def deletes(about: Resource, prefix: str) -> list[str]:
    """Return the lifecycle rules of the bucket that delete objects below a root; `prefix` is its path in the bucket."""
    inside = f"{prefix.strip('/')}/".lstrip("/")
    found = []
    for rule in about.get("lifecycle", {}).get("rule") or ():
        condition = rule.get("condition") or {}
        # The others change the storage class, or remove parts of uploads or what versioning keeps.
        if rule.get("action", {}).get("type") != "Delete" or _OF_OLD_VERSIONS & set(condition):
            continue
        starts = condition.get("matchesPrefix") or [""]
        if any(inside.startswith(start) or start.startswith(inside) for start in starts):
            found.append(", ".join(f"{name}={value}" for name, value in condition.items()) or "always")
    return found


def update(name: str, option: str) -> str:
    return f"gcloud storage buckets update gs://{name} {option}"


# Conditions that no current version of an object fulfils.
_OF_OLD_VERSIONS = {"daysSinceNoncurrentTime", "noncurrentTimeBefore", "numNewerVersions"}
NO_SOFT_DELETE, NO_VERSIONING = "--clear-soft-delete", "--no-versioning"
