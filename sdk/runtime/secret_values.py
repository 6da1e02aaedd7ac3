"""Values that are stored nowhere: secrets, those copied from the caller's environment, and the emulator's token."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from ..storage import emulator

HIDDEN = "***"
# Shorter values would be found in ordinary words.
_CHARACTERS = 6


def words(environ: Mapping[str, str], copied: Collection[str]) -> list[str]:
    """Return the values and each of their lines, the longest first, since one may contain another."""
    values = [environ[name] for name in copied if name in environ] + emulator.tokens(environ)
    found = {word for value in values for word in (value, *value.splitlines()) if len(word) >= _CHARACTERS}
    return sorted(found, key=lambda word: (-len(word), word))


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
