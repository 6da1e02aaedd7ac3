"""The emulator named by the environment: its address, whether it responds, and texts without its token.

Only this module reads the variables, so that every command reports a wrong one early and in the same words.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from ..errors import InputError
from ..text import emulator_at
from . import emulator_proof

EMULATOR = "PODLIFT_EMULATOR"
# For buckets, any emulator of Cloud Storage works.
STORAGE_EMULATOR = "STORAGE_EMULATOR_HOST"
_START = "Next: use the line `export PODLIFT_EMULATOR=...` that `podlift emulator --data DIR` prints, or unset"
# An emulator on this machine responds quickly even if the machine is busy.
_ASK_S = 8.0
_MASK = "TOKEN"
_check_skipped = False


def skip_check() -> None:
    """Never check in this process whether the emulator responds: a long-lived process waits for it to come back."""
    global _check_skipped
    _check_skipped = True


def address(environ: Mapping[str, str] | None = None) -> str:
    """Return the URL of podlift's emulator, or ""; InputError if the variable is invalid. Nothing is requested."""
    return _read(EMULATOR, os.environ if environ is None else environ)


def endpoint(environ: Mapping[str, str] | None = None) -> str:
    """Return the host and port of the emulator that stands in for Google Cloud here, or ""; InputError if invalid."""
    return next((urlsplit(url).netloc for _, url in _named(environ)), "")


def require(recorded: str, what: str, environ: Mapping[str, str] | None = None) -> str:
    """Return `endpoint()`; InputError if `what` belongs to an emulator and the request would go to Google Cloud, or vice versa.

    `recorded` is the emulator in its plan, "" for Google Cloud.
    """
    now = endpoint(environ)
    if recorded and not now:
        raise InputError(
            f"{what} belongs to the {emulator_at(recorded)}, but no emulator is configured here. Google Cloud was not asked. "
            f"Next: use the line `export {EMULATOR}=...` that `podlift emulator --data DIR` prints."
        )
    if now and not recorded:
        name = next(name for name, _ in _named(environ))
        raise InputError(
            f"{what} belongs to Google Cloud, but {name} names the {emulator_at(now)}, which was not asked. Next: unset {name}."
        )
    return now


def storage_address() -> str:
    """Return the URL of the Cloud Storage emulator, or ""; InputError if the variable is invalid or nothing responds."""
    return next((_checked(name, url) for name, url in _named(None)), "")


def checked_address() -> str:
    """Return the URL of podlift's emulator, or ""; InputError if the variable is invalid or nothing responds."""
    url = address()
    return _checked(EMULATOR, url) if url else ""


def tokens(environ: Mapping[str, str]) -> list[str]:
    """Return the tokens in these variables."""
    return [
        token for name in (EMULATOR, STORAGE_EMULATOR) for token in emulator_proof.TOKEN.findall(environ.get(name, ""))
    ]


def mask_token(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a text without the emulator's token: clients quote URLs in errors, which are stored and shown."""
    for token in tokens(os.environ if environ is None else environ):
        text = text.replace(token, _MASK)
    return text


def _named(environ: Mapping[str, str] | None) -> Iterator[tuple[str, str]]:
    """Yield each variable that names an emulator, and its URL; podlift's own variable counts first."""
    for name in (EMULATOR, STORAGE_EMULATOR):
        if url := _read(name, os.environ if environ is None else environ):
            yield name, url


def _read(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "").strip()
    if not value:
        return ""
    # Not at the top: its HTTP client takes a sixth of the start of a task, and most tasks have no emulator.
    from .gcs.download import with_scheme

    url = with_scheme(value)
    parts = _split(url)
    if parts is None:
        example = "http://127.0.0.1:9000/TOKEN" if name == EMULATOR else "http://127.0.0.1:9000"
        raise InputError(
            f"{name} is not the address of an emulator, such as {example}. Received: {_quote(value)}. {_START} {name}."
        )
    if name == EMULATOR and not emulator_proof.TOKEN.fullmatch(parts.path.strip("/")):
        what = "has a path other than" if parts.path.strip("/") else "lacks"
        raise InputError(
            f"{name} {what} the token of the emulator: http://127.0.0.1:PORT/TOKEN, with 32 hex digits, which are also in the "
            f"file DIR/token. Received: {_quote(value)}. {_START} {name}."
        )
    return url


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    bad = parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or "@" in parts.netloc
    return None if bad or parts.query or parts.fragment or re.search(r"[\s\x00-\x1f]", url) else parts


def _quote(value: str) -> str:
    # The text before an @ may be a password.
    return "a URL with credentials" if "@" in value else repr(emulator_proof.TOKEN.sub(_MASK, value)[:100])


def _checked(name: str, url: str) -> str:
    if not _check_skipped and "PODLIFT_RUN" not in os.environ:
        _check(name, url)
    return url


@lru_cache(maxsize=8)
def _check(name: str, url: str) -> None:
    """Check once per process."""
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.netloc}"
    why = _why_unusable(url)
    if why:
        start = (
            f"Next: start it (`podlift emulator --data DIR --port {parts.port or 80}`) and use the line that it prints"
        )
        raise InputError(f"The emulator that {name} names {why}. Received: {where}/... {start}, or unset {name}.")


def _why_unusable(url: str) -> str:
    """Return why the server at an address is unusable, "" if it is usable. It gets no token before it has proven itself."""
    import requests

    try:
        if token := emulator_proof.token_of(url):
            parts = urlsplit(url)
            with socket.create_connection((parts.hostname or "", parts.port or 80), _ASK_S) as connection:
                emulator_proof.prove(connection, token)
        else:
            with emulator_proof.session(url) as session:
                session.get(url, timeout=_ASK_S, stream=True, allow_redirects=False).close()
    except emulator_proof.ProofError as error:
        return str(error)
    except (requests.Timeout, TimeoutError):
        return f"did not respond within {_ASK_S:g} s"
    except (requests.RequestException, OSError) as error:
        refused = "refused" in str(error)
        return (
            "is not running: nothing listens on that port" if refused else f"cannot be reached: {type(error).__name__}"
        )
    return ""
