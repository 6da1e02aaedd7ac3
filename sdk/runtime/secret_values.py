"""Values that are stored nowhere: secrets, values copied from the caller's environment, and the emulator's token."""

from __future__ import annotations

import json
import os
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from ..storage import emulator

HIDDEN = "***"
# Shorter values would be found in ordinary words.
_CHARACTERS = 6


def words(environ: Mapping[str, str], copied: Collection[str]) -> list[str]:
    """Return the values and each of their lines, in each form, the longest first, since one may contain another."""
    values = [environ[name] for name in copied if name in environ] + emulator.tokens(environ)
    plain = {word for value in values for word in (value, *value.splitlines()) if len(word) >= _CHARACTERS}
    return sorted({form for word in plain for form in _forms(word)}, key=lambda word: (-len(word), word))


def _forms(word: str) -> Iterator[str]:
    """Yield how programs write a value: as it is, quoted as in Python, JSON and URLs, and in base64."""
    yield word
    yield repr(word)[1:-1]
    yield json.dumps(word)[1:-1]
    yield json.dumps(word, ensure_ascii=False)[1:-1]
    data = os.fsencode(word)
    yield from (quote(data), quote(data, safe=""), quote_plus(data))
    # Other bytes may precede it, as the user's name does in a header: these characters depend on it alone.
    for before, first in enumerate((0, 2, 3)):
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(bytes(before) + data).decode()[first : (before + len(data)) * 4 // 3]


def without(value: Any, secrets: Sequence[str]) -> Any:
    """Return a value of JSON without these words in its texts."""
    if isinstance(value, str):
        return hidden(value, secrets)
    if isinstance(value, list):
        return [without(item, secrets) for item in value]
    if isinstance(value, dict):
        return {hidden(name, secrets): without(item, secrets) for name, item in value.items()}
    return value


def hidden(text: str, secrets: Sequence[str]) -> str:
    """Return a text without these words."""
    for word in secrets:
        text = text.replace(word, HIDDEN)
    return text


def encoded(secrets: Sequence[str]) -> list[bytes]:
    """Return words as a program prints them: they need not be UTF-8."""
    return [os.fsencode(word) for word in secrets]


def hidden_bytes(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """Return output without these words."""
    for word in secrets:
        data = data.replace(word, HIDDEN.encode())
    return data
