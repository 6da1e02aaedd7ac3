"""podlift's cache folder: losing it costs time, never a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CACHE_HOME/podlift`, or `~/.cache/podlift`, without creating it."""
    named = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores relative paths.
    if Path(named).is_absolute():
        return Path(named) / "podlift"
    home = environ.get("HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home()) / ".cache" / "podlift"


def environments(cache: Path) -> Path:
    return cache / "environments"


def seen(cache: Path, noun: str) -> Path:
    """Return the folder with a file for each "schedule" or "sweep" in a bucket that this machine has seen: its root."""
    return cache / f"{noun}s"


def bucket_folder(cache: Path, root: str) -> str:
    """Return this machine's folder for a root in a bucket: for its own runs, and for copies of others."""
    scheme, _, path = root.partition("://")
    return str(cache / scheme / path.strip("/"))
