"""Addresses of HTTP servers, and headers that hold no credentials themselves."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from .credentials import formats_in

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# A variable in the value of a header.
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)
_CLIENT = "ray"
_SECRET = ("authorization", "cookie", "token", "key", "secret")


def http_address(value: str) -> str:
    """Return the URL of a server without a slash at its end; ValueError for anything else."""
    parts = urlsplit(value)
    if parts.scheme == _CLIENT:
        raise ValueError(
            "ray:// is the protocol of Ray Client, which needs an equal version of Ray here. Jobs are submitted to the "
            f"dashboard: http://{parts.hostname or 'HOST'}:8265"
        )
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise ValueError("must be the URL of the dashboard, such as http://HOST:8265")
    if parts.username or parts.password:
        raise ValueError("must not hold a user or a password, because it is stored: use headers")
    return value.rstrip("/")


def header_values(value: dict[str, str]) -> dict[str, str]:
    """Return headers whose values hold no credentials but the names of variables, as $NAME."""
    problems = []
    for name, text in value.items():
        if not _HEADER.fullmatch(name) or not text.isprintable():
            problems.append(f"{name!r} is not a header of HTTP")
        elif not VARIABLE.search(text) and (
            any(word in name.lower() for word in _SECRET) or any(True for _ in formats_in(text))
        ):
            problems.append(
                f"the value of {name!r} looks like a credential, and would be stored in the plan: name a variable that holds "
                f'it, such as "Bearer $RAY_TOKEN"'
            )
    if problems:
        raise ValueError("; ".join(problems))
    return value
