"""The arguments of a program by name, as tables of runs show them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_][\w.]*)=(?P<value>.*)", re.DOTALL)


def named(args: object) -> dict[str, str]:
    """Return arguments by name: `named(["--lr", "0.1", "--fast"])` is `{"lr": "0.1", "fast": "yes"}`.

    Args:
        args: words of a command, or values by name. Words without an option are "1", "2" and so on.
    """
    if isinstance(args, Mapping):
        return {str(name): _text(value) for name, value in args.items()}
    return _of_words([_text(word) for word in args]) if isinstance(args, Sequence) and not isinstance(args, str) else {}


def _of_words(words: Sequence[str]) -> dict[str, str]:
    named, option, place = dict[str, str](), "", 0
    for word in words:
        match = _OPTION.fullmatch(word) or _ASSIGNED.fullmatch(word)
        if match is not None:
            option = match["name"] if match["value"] is None else ""
            named[match["name"]] = "yes" if match["value"] is None else match["value"]
        elif option:
            # An option may have several values.
            named[option] = word if named[option] == "yes" else f"{named[option]} {word}"
        else:
            place += 1
            named[str(place)] = word
    return named


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
