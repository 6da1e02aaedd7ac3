"""Which store serves which kind of URL."""

from __future__ import annotations

import importlib
from typing import cast

from ..errors import InputError
from .store import Store

# Which class serves which kind of URL: a store is a row.
_KINDS: dict[str, str] = {"file": ".posix_store:PosixStore", "gs": ".gcs.store:GcsStore"}
# Where Vertex AI shows buckets as folders: what lies there has no hard links and no atomic rename, and its bucket is asked.
_BUCKETS = "/gcs/"


def open_store(url: str) -> Store:
    """Return the store at a path or URL; nothing is created before the first write.

    `/gcs/BUCKET/x` is gs://BUCKET/x.

    Raises:
        InputError: no store serves such a URL.
    """
    scheme, separator, rest = url.partition("://")
    kind, path = (scheme, rest) if separator else ("file", url)
    if kind == "file" and path.startswith(_BUCKETS):
        kind, path = "gs", path.removeprefix(_BUCKETS)
    if kind not in _KINDS:
        known = ", ".join(["a path", *(f"{name}://" for name in sorted(_KINDS))])
        # What may hold a password is not shown.
        shown = f"{scheme}://..." if "@" in rest or "?" in rest else url
        raise InputError(
            f"Checkpoints cannot be kept there. Received: {shown!r}. Known: {known}. Such a URL is welcome as an input or an "
            "output of a program; checkpoints need objects that are created only where none exists."
        )
    module, _, name = _KINDS[kind].partition(":")
    return cast("Store", getattr(importlib.import_module(module, __package__), name)(path))
