"""Templates in the arguments and inputs of a schedule: {slot}, {slot:%Y-%m-%d} and {previous_success}. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from ..errors import InputError

NAMES = ("slot", "previous_success")
_TEMPLATE = re.compile(rf"\{{({'|'.join(NAMES)})(?::([^{{}}]*))?\}}")
_SUSPECT = re.compile(r"\{([a-z_]+)(?::[^{}]*)?\}")


def has_template(text: str) -> bool:
    return _TEMPLATE.search(text) is not None


def rendered(value: Any, times: Mapping[str, datetime | None]) -> Any:
    """Return a JSON value with the templates of its texts filled in; an unknown time gives an empty text."""
    if isinstance(value, str):
        return _TEMPLATE.sub(lambda match: _text(times[match[1]], match[2]), value)
    if isinstance(value, list):
        return [rendered(item, times) for item in value]
    if isinstance(value, dict):
        return {name: rendered(item, times) for name, item in value.items()}
    return value


def _text(time: datetime | None, form: str | None) -> str:
    if time is None:
        return ""
    return time.strftime(form) if form else time.isoformat()


def check(value: Any) -> None:
    """Raise InputError for a text that looks like a misspelt template."""
    if isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            check(item)
    elif isinstance(value, str):
        for match in _SUSPECT.finditer(value):
            near = get_close_matches(match[1], NAMES, n=1)
            if match[1] not in NAMES and near:
                raise InputError(
                    f"Unknown template. Received: {match[0]!r} in {value!r}. Did you mean '{{{near[0]}}}'?"
                )
