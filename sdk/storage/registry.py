"""Which store serves which kind of URL."""

from __future__ import annotations

import importlib
from typing import cast

from ..errors import InputError
from .store import Store

# The class for each kind of URL.
_KINDS: dict[str, str] = {"file": ".posix_store:PosixStore", "gs": ".gcs.store:GcsStore"}
# Vertex AI mounts buckets here, without hard links or atomic rename; the bucket is used directly.
_BUCKETS = "/gcs/"


def open_store(url: str) -> Store:
    """Return the store at a path or URL; `/gcs/BUCKET/x` is gs://BUCKET/x. Nothing is created before the first write."""
    scheme, separator, rest = url.partition("://")
    kind, path = (scheme, rest) if separator else ("file", url)
    if kind == "file" and path.startswith(_BUCKETS):
        kind, path = "gs", path.removeprefix(_BUCKETS)
    if kind not in _KINDS:
        known = ", ".join(["a path", *(f"{name}://" for name in sorted(_KINDS))])
        # The URL may contain a password.
        shown = f"{scheme}://..." if "@" in rest or "?" in rest else url
        raise InputError(
            f"Checkpoints cannot be stored there. Received: {shown!r}. Known: {known}. Inputs and outputs of a program may "
            "have such a URL; checkpoints need a store that can create an object only if it does not exist."
        )
    module, _, name = _KINDS[kind].partition(":")
    return cast("Store", getattr(importlib.import_module(module, __package__), name)(path))
