"""The emulator that the environment names: its address, whether it is there, and texts without its token.

One place reads the variables, so that each command says the same about a wrong one, and soon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ..errors import InputError

EMULATOR = "PODLIFT_EMULATOR"
# Another vendor's will do for buckets.
OF_STORAGE = "STORAGE_EMULATOR_HOST"
_TOKEN = re.compile(r"[0-9a-f]{32}")
_START = "Next: take the line `export PODLIFT_EMULATOR=...` that `podlift emulator --data DIR` prints, or unset"
# One on this machine answers at once, however busy the machine is.
_ASK_S = 8.0
_MASK = "TOKEN"
_patient = False


def be_patient() -> None:
    """Have this process never look whether the emulator is there: it goes on for hours, and one that is away comes back."""
    global _patient
    _patient = True


def address(environ: Mapping[str, str] | None = None) -> str:
    """Return the URL of podlift's emulator, "" where none is named.

    Args:
        environ: the variables; by default this process's.

    Raises:
        InputError: the variable holds something else; nothing was asked.
    """
    return _read(EMULATOR, os.environ if environ is None else environ)


def of_storage() -> str:
    """Return the URL of the emulator of Cloud Storage, "" where none is named; it was there when this process first asked.

    Raises:
        InputError: the variable holds something else, or nothing answers there.
    """
    for name in (EMULATOR, OF_STORAGE):
        if found := _read(name, os.environ):
            return _there(name, found)
    return ""


def asked() -> str:
    """Return the URL of podlift's emulator, "" where none is named; it was there when this process first asked.

    Raises:
        InputError: the variable holds something else, or nothing answers there.
    """
    found = address()
    return _there(EMULATOR, found) if found else ""


def masked(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a text without the token of the emulator: clients quote URLs in their errors, which are kept and shown."""
    for name in (EMULATOR, OF_STORAGE):
        given = (os.environ if environ is None else environ).get(name, "")
        for token in _TOKEN.findall(given):
            text = text.replace(token, _MASK)
    return text


def _read(name: str, environ: Mapping[str, str]) -> str:
    given = environ.get(name, "").strip()
    if not given:
        return ""
    found = (given if "://" in given else f"http://{given}").rstrip("/")
    parts = _split(found)
    if parts is None:
        example = "http://127.0.0.1:9000/TOKEN" if name == EMULATOR else "http://127.0.0.1:9000"
        raise InputError(
            f"{name} is no address of an emulator, such as {example}. Received: {_shown(given)}. {_START} {name}."
        )
    if name == EMULATOR and not _TOKEN.fullmatch(parts.path.strip("/")):
        what = "has another path than" if parts.path.strip("/") else "lacks"
        raise InputError(
            f"{name} {what} the token of the emulator: http://127.0.0.1:PORT/TOKEN, with 32 hex digits, which are also in the "
            f"file DIR/token. Received: {_shown(given)}. {_START} {name}."
        )
    return found


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    bad = parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or "@" in parts.netloc
    return None if bad or parts.query or parts.fragment or re.search(r"[\s\x00-\x1f]", url) else parts


def _shown(given: str) -> str:
    # What stands before an @ may be a password.
    return "a URL with credentials" if "@" in given else repr(_TOKEN.sub(_MASK, given)[:100])


def _there(name: str, url: str) -> str:
    if not _patient and "PODLIFT_RUN" not in os.environ:
        _ask(name, url)
    return url


@lru_cache(maxsize=8)
def _ask(name: str, url: str) -> None:
    """Ask once; what is remembered is that an answer came."""
    import requests

    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.netloc}"
    try:
        with requests.Session() as session:
            session.trust_env = False
            place = f"{url}/_faults" if name == EMULATOR else url
            with session.get(place, timeout=_ASK_S, stream=True, allow_redirects=False) as answer:
                why = _mistaken(answer) if name == EMULATOR else ""
    except requests.Timeout:
        why = f"does not answer within {_ASK_S:g} s"
    except (requests.RequestException, OSError) as error:
        refused = "refused" in str(error)
        why = "is not there: nothing listens at that port" if refused else f"cannot be asked: {type(error).__name__}"
    if why:
        start = (
            f"Next: start it (`podlift emulator --data DIR --port {parts.port or 80}`) and take the line that it prints"
        )
        raise InputError(f"The emulator that {name} names {why}. Received: {where}/... {start}, or unset {name}.")


def _mistaken(answer: Any) -> str:
    """Return what is wrong with an answer that is not our emulator's."""
    if answer.status_code == 200 and "faults" in answer.text:
        return ""
    if answer.status_code == 403 and "token" in answer.text:
        return "has another token"
    return f"is something else: podlift's would not answer with {answer.status_code}"
