"""A cache of bucket locations, which never change, so that plans do not have to query Google."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ....storage.cache import cache_folder
from ....storage.emulator import EMULATOR, STORAGE_EMULATOR

_TIMEOUT_S = 1.0
_CACHED = ("location", "locationType")


def cached(root: str, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the bucket of a root for `Facts.online`: from the emulator if there is one, else from the cache, or {}."""
    name = _name(root)
    if not name:
        return {}
    emulator = environ.get(EMULATOR, "").strip()
    bucket = _from_emulator(emulator, name) if emulator else _from_cache(name, environ)
    if not bucket:
        return {}
    about = {key: bucket[key] for key in _CACHED if key in bucket}
    check_date = str(bucket.get("seen", ""))
    return {"bucket": {"name": name, "exists": True, "status": 200, "error": "", "about": about, "seen": check_date}}


def store(root: str, about: Mapping[str, object], environ: Mapping[str, str], now: float) -> None:
    name = _name(root)
    if not name or "location" not in about or environ.get(EMULATOR) or environ.get(STORAGE_EMULATOR):
        return
    # The cache is optional.
    with suppress(OSError, RuntimeError):
        file = _file(name, environ)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_name(f".{uuid.uuid4().hex}.part")
        check_date = datetime.fromtimestamp(now, timezone.utc).date().isoformat()
        part.write_text(json.dumps({**{key: about[key] for key in _CACHED if key in about}, "seen": check_date}))
        part.replace(file)


def _name(root: str) -> str:
    """Return the bucket of a root, or "" if it is not configured yet."""
    return "" if root.startswith("gs://<") else root.removeprefix("gs://").partition("/")[0]


def _file(name: str, environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "buckets" / f"{quote(name, safe='')}.json"


def _from_cache(name: str, environ: Mapping[str, str]) -> Any:
    try:
        bucket = json.loads(_file(name, environ).read_text())
    except (OSError, RuntimeError, ValueError):
        return None
    return bucket if isinstance(bucket, dict) and isinstance(bucket.get("location"), str) else None


def _from_emulator(emulator: str, name: str) -> Any:
    """Return an emulator's bucket. Errors are ignored here, and are reported when it is used."""
    from ....storage.gcs.download import open_url

    address = f"{emulator.rstrip('/')}/storage/v1/b/{quote(name, safe='')}"
    with suppress(OSError, ValueError), open_url(address, {}, _TIMEOUT_S) as reply:
        bucket = json.load(reply)
        return bucket if isinstance(bucket, dict) and isinstance(bucket.get("location"), str) else None
    return None
