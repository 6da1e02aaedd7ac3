"""Which store serves which kind of URL, and what has files of any name there."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TypeAlias, cast

from ..clock import Clock
from ..errors import InputError
from .folder_files import FolderFiles, in_folder
from .retry import RetryPolicy
from .store import Store

if TYPE_CHECKING:
    from .gcs.files import BucketFiles

Files: TypeAlias = "BucketFiles | FolderFiles"

# The class for each kind of URL.
_KINDS: dict[str, str] = {"file": ".posix_store:PosixStore", "gs": ".gcs.store:GcsStore"}
# Vertex AI mounts buckets here, without hard links or atomic rename; the bucket is used directly.
_BUCKETS = "/gcs/"


def open_store(url: str, *, retry: RetryPolicy | None = None, clock: Clock | None = None) -> Store:
    """Return the store at a path or URL; `/gcs/BUCKET/x` is gs://BUCKET/x. Nothing is created before the first write.

    `retry` is for a store that answers requests.
    """
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
    about = {"retry": retry, "clock": clock} if kind == "gs" else {}
    return cast("Store", getattr(importlib.import_module(module, __package__), name)(path, **about))


def open_files(url: str, *, retry: RetryPolicy | None = None, clock: Clock | None = None) -> Files:
    """Return the files of a bucket (gs://BUCKET/PREFIX) or of a folder that machines share (file:///PATH)."""
    if in_folder(url):
        return FolderFiles(url)
    from .gcs.files import BucketFiles

    return BucketFiles(url, retry=retry, clock=clock)
