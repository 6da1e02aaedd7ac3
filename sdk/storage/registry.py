"""Which store serves which kind of URL, and which class serves files of any name there."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..clock import Clock
from ..errors import InputError
from .folder_files import FolderFiles, in_folder
from .posix_store import PosixStore
from .retry import RetryPolicy
from .store import Store

if TYPE_CHECKING:
    from .gcs.files import BucketFiles

Files: TypeAlias = "BucketFiles | FolderFiles"

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
    if kind == "file":
        return PosixStore(path)
    if kind == "gs":
        from .gcs.store import GcsStore

        return GcsStore(path, retry=retry, clock=clock)
    # The URL may contain a password.
    safe_url = f"{scheme}://..." if "@" in rest or "?" in rest else url
    raise InputError(
        f"Checkpoints cannot be stored there. Received: {safe_url!r}. Known: a path, file://, gs://. Inputs and outputs of a "
        "program may have such a URL; checkpoints need a store that can create an object only if it does not exist."
    )


def open_files(url: str, *, retry: RetryPolicy | None = None, clock: Clock | None = None) -> Files:
    """Return the files of a bucket (gs://BUCKET/PREFIX) or of a folder that machines share (file:///PATH)."""
    if in_folder(url):
        return FolderFiles(url)
    from .gcs.files import BucketFiles

    return BucketFiles(url, retry=retry, clock=clock)
