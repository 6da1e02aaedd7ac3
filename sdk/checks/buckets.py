"""Bucket settings that cost money for nothing, in words: for the checks of a plan and for `podlift doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..text import duration


def soft_delete(about: Mapping[str, Any]) -> str:
    """Return what the bucket's soft delete costs, "" if it is off; `about` is the bucket's resource in Cloud Storage."""
    kept_s = int(about.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    if not kept_s:
        return ""
    return f"soft delete is on: replaced checkpoints are billed for another {duration(kept_s)}"


def versioning(about: Mapping[str, Any]) -> str:
    """Return what the bucket's object versioning costs, "" if it is off."""
    if not about.get("versioning", {}).get("enabled"):
        return ""
    return "object versioning is on: removed checkpoints are kept and billed forever"


def update(name: str, option: str) -> str:
    return f"gcloud storage buckets update gs://{name} {option}"


NO_SOFT_DELETE, NO_VERSIONING = "--clear-soft-delete", "--no-versioning"
