"""What of a bucket costs money for nothing, in words: the checks of a plan and of a machine say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def soft_delete(about: Mapping[str, Any]) -> str:
    """Return what the bucket's soft delete costs; "" where it is off.

    Args:
        about: the bucket as Cloud Storage shows it.
    """
    kept_s = int(about.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    if not kept_s:
        return ""
    return f"every checkpoint that is replaced is paid for {kept_s / 86400:g} days more: soft delete is on"


def versioning(about: Mapping[str, Any]) -> str:
    """Return what the bucket's versioning costs; "" where it is off."""
    if not about.get("versioning", {}).get("enabled"):
        return ""
    return "every checkpoint that is removed is kept and paid for for ever: object versioning is on"


def update(name: str, option: str) -> str:
    """Return the command that changes a bucket."""
    return f"gcloud storage buckets update gs://{name} {option}"


NO_SOFT_DELETE, NO_VERSIONING = "--clear-soft-delete", "--no-versioning"
