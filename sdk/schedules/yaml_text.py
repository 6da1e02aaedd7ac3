"""Writes YAML from plain values, for files that users read: podlift itself needs no YAML library. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Value = str | int | bool | Mapping[str, "Value"] | Sequence["Value"]
# Everything else is quoted, also what another type would look like.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]*")
_RESERVED = ("y", "n", "yes", "no", "true", "false", "on", "off", "null")
# JSON leaves these as they are; YAML wants them escaped.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def text(value: Mapping[str, Value]) -> str:
    """Return a document. A key that begins with # is a comment, and its value is not written."""
    return "".join(f"{line}\n" for line in _lines(value))


def scalar(value: str | int) -> str:
    """Return a value on one line; a text is quoted unless it can be nothing else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (_PLAIN.fullmatch(value) and value.lower() not in _RESERVED):
        return str(value)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def _lines(value: Value) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key.startswith("#"):
                yield key
            elif isinstance(item, (str, int)):
                yield f"{scalar(key)}: {scalar(item)}"
            elif not item:
                yield f"{scalar(key)}: {'{}' if isinstance(item, Mapping) else '[]'}"
            else:
                yield f"{scalar(key)}:"
                yield from (f"  {line}" for line in _lines(item))
    elif isinstance(value, (str, int)):
        yield scalar(value)
    else:
        for item in value:
            first = True
            for line in _lines(item):
                yield f"{'- ' if first else '  '}{line}"
                first = False
