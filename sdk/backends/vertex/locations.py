"""Where buckets lie, as far as that is known without asking Google: a bucket stays in its place."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...storage.cache import cache_folder
from ...storage.emulator import EMULATOR

_ASK_S = 1.0
_KEPT = ("location", "locationType")


def known(root: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the bucket of a root for `Facts.online`: an emulator is asked, of Google's what was seen before; {} for nothing.

    Args:
        root: gs://BUCKET/PREFIX.
        environ: this process's variables.
    """
    name = _name(root)
    if not name:
        return {}
    emulator = environ.get(EMULATOR, "").strip()
    found = _asked(emulator, name) if emulator else _remembered(name, environ)
    if not found:
        return {}
    about = {key: found[key] for key in _KEPT if key in found}
    seen = str(found.get("seen", ""))
    return {"bucket": {"name": name, "there": True, "status": 200, "said": "", "about": about, "seen": seen}}


def remember(root: str, about: Mapping[str, Any], environ: Mapping[str, str], now: float) -> None:
    """Keep where a bucket lies, for later plans.

    Args:
        root: gs://BUCKET/PREFIX.
        about: the bucket as Cloud Storage shows it; {} where it does not.
        environ: this process's variables.
        now: unix time.
    """
    name = _name(root)
    if not name or "location" not in about or environ.get(EMULATOR):
        return
    # A memory is worth nothing but a word in a plan.
    with suppress(OSError, RuntimeError):
        file = _file(name, environ)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_name(f".{uuid.uuid4().hex}.part")
        seen = datetime.fromtimestamp(now, timezone.utc).date().isoformat()
        part.write_text(json.dumps({**{key: about[key] for key in _KEPT if key in about}, "seen": seen}))
        part.replace(file)


def _name(root: str) -> str:
    """Return the bucket of a root; "" where none is named yet."""
    return "" if root.startswith("gs://<") else root.removeprefix("gs://").partition("/")[0]


def _file(name: str, environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "buckets" / f"{quote(name, safe='')}.json"


def _remembered(name: str, environ: Mapping[str, str]) -> Any:
    try:
        found = json.loads(_file(name, environ).read_text())
    except (OSError, RuntimeError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("location"), str) else None


def _asked(emulator: str, name: str) -> Any:
    """Return what an emulator says of a bucket; what is wrong with either is said where they are needed."""
    from urllib.request import ProxyHandler, build_opener

    with suppress(OSError, ValueError):
        address = f"{emulator.rstrip('/')}/storage/v1/b/{quote(name, safe='')}"
        with build_opener(ProxyHandler({})).open(address, timeout=_ASK_S) as reply:
            found = json.load(reply)
            return found if isinstance(found, dict) and isinstance(found.get("location"), str) else None
    return None
