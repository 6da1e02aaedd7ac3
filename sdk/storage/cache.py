"""Where podlift keeps what it can make again: losing this folder costs time, never a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CACHE_HOME/podlift`, or `~/.cache/podlift`; nothing is created.

    Args:
        environ: the variables of whoever asks.
    """
    named = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored: they would be another folder for each current folder.
    if Path(named).is_absolute():
        return Path(named) / "podlift"
    home = environ.get("HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home()) / ".cache" / "podlift"


def environments(cache: Path) -> Path:
    """Return the folder of the virtual environments in a cache folder."""
    return cache / "environments"


def bucket_folder(cache: Path, root: str) -> str:
    """Return where the files of a root in a bucket lie on this machine: what runs here is written, and all else copied.

    Args:
        cache: the cache folder.
        root: gs://BUCKET/PREFIX.
    """
    return str(cache / "gs" / root.partition("://")[2])
