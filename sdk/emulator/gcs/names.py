"""Names of buckets and objects."""

from __future__ import annotations

import re

from .errors import invalid

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_MAX_OBJECT_BYTES = 1024


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


def check_bucket(name: object) -> str:
    """Return a bucket's name, if it is valid."""
    if isinstance(name, str) and _BUCKET.fullmatch(name) and ".." not in name and not name.startswith("goog"):
        return name
    raise invalid(
        f"Invalid bucket name: {name!r}. It has 3 to 63 lowercase letters, digits, dashes, underscores and dots, and starts "
        "and ends with a letter or digit."
    )


def check_object(name: object) -> str:
    """Return an object's name, if it is valid."""
    if not isinstance(name, str) or not name:
        raise invalid("Required: an object's name.")
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        length = _MAX_OBJECT_BYTES + 1
    bad = "\r" in name or "\n" in name or name in (".", "..") or name.startswith(".well-known/acme-challenge/")
    if bad or length > _MAX_OBJECT_BYTES:
        raise invalid(
            f"Invalid object name: {name[:100]!r}. It has 1 to {_MAX_OBJECT_BYTES} bytes of UTF-8 without line ends, and is "
            "neither '.' nor '..'."
        )
    return name
