"""What a bucket has to be for runs to live in it, and what of it costs money for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...checks import buckets
from ...errors import StoreError
from ...storage.gcs.files import INTERACTIVE, BucketFiles
from .check import Check, bad, fine

_ELSEWHERE = "name another root by --root or PODLIFT_ROOT"


def bucket(url: str) -> list[Check]:
    """Look at the bucket of a root, and write nothing."""
    name = url.partition("://")[2].partition("/")[0]
    try:
        about = BucketFiles(url, retry=INTERACTIVE).bucket()
    except StoreError as error:
        said, _, fix = str(error).partition(" Next: ")
        return [bad("root", "error", said, fix.rstrip(".") or _ELSEWHERE)]
    if not about:
        said = f"{url} can be listed; of the bucket itself nothing is known (storage.buckets.get)"
        return [bad("root", "note", said, f"look at it: gcloud storage buckets describe gs://{name}")]
    if about.get("locationType") == "zone":
        said = f"{url} lies in a zonal bucket, whose objects are seen before they are whole"
        return [bad("root", "error", said, "gcloud storage buckets create gs://NAME --location=REGION")]
    return [fine("root", f"{url} can be listed"), _soft_delete(name, about), _versioning(name, about)]


def _soft_delete(name: str, about: Mapping[str, Any]) -> Check:
    said = buckets.soft_delete(about)
    if not said:
        return fine("soft-delete", "is off: what is removed costs nothing any more")
    return bad("soft-delete", "warning", said, buckets.update(name, buckets.NO_SOFT_DELETE))


def _versioning(name: str, about: Mapping[str, Any]) -> Check:
    said = buckets.versioning(about)
    if not said:
        return fine("versioning", "is off: what is removed is gone")
    return bad("versioning", "warning", said, buckets.update(name, buckets.NO_VERSIONING))
