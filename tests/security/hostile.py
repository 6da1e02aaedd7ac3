"""Texts, names and bytes that somebody else may have written. One table for all tests of this folder."""

from __future__ import annotations

import json
import re

# A terminal would obey these: change its title, fill the clipboard, hide a link, go up and over earlier lines, erase
# them, ring, turn a text around, or begin a line that podlift never printed.
TERMINAL = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;Y3VybCBldmlsfHNo\x07",
    "link": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "up": "\x1b[2A\x1b[2K",
    "screen": "\x1b[2J\x1b[H",
    "answer": "\x1b[6n\x1b[c",
    "device control": "\x1bP+q544e\x1b\\",
    "eight bits": "\x9b2J\x9d0;owned\x9c",
    "bell": "\x07\x07",
    "backspaces": "FAILED\x08\x08\x08\x08\x08\x08DONE  ",
    "return": "FAILED\rDONE  ",
    "direction": "exe.\u202egnp.tac",
    "separator": "one\u2028two",
    "delete": "a\x7fb",
}
# No terminal may receive these: all but tabs, line ends, colours, and clearing the rest of a line.
ALLOWED = re.compile(r"\x1b\[[0-9;:]*[mK]")
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

# A shell runs the command in them, or takes them for options.
SHELL = {
    "substitution": "$(touch owned)",
    "backticks": "`touch owned`",
    "separator": "x; touch owned",
    "pipe": "x | touch owned",
    "and": "x && touch owned",
    "line": "x\ntouch owned",
    "quote": "x' ; touch owned ; '",
    "double quote": 'x" ; touch owned ; "',
    "redirection": "x > owned",
    "option": "--root=/tmp/elsewhere",
}

# Names of files that lead out of the folder they are meant for.
PATHS = ("../owned", "a/../../owned", "/owned", "./../owned", "a/./../../owned", "..", "a/..", "a\0b")
# Pairs of a link's name and where it leads.
LINKS = (
    ("outputs/../owned", "x"),
    ("outputs/x", "/etc"),
    ("outputs/x", ".."),
    ("outputs/work/x", "../../../x"),
    ("outputs/work/x", "a/../../.."),
    ("outputs/x", ""),
    ("/owned", "x"),
    ("outputs/x", "a\0b"),
)

# JSON that is none, or has another shape than anyone expects.
JSON = {
    "empty": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"a": "\xff\xfe"}',
    "deep": b"[" * 100_000,
    "deep and closed": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a number": b"5",
    "a list": b"[]",
    "null": b"null",
    "a text": b'"text"',
    "many digits": b"9" * 10_000,
    "not a number": b"NaN",
    "infinite": b'{"version": 1, "time": Infinity, "data": {}}',
    "surrogate": b'{"version": 1, "time": 1, "data": {"text": "\\ud800"}}',
}


def changed(data: bytes, **changes: object) -> bytes:
    """Return a JSON object with other values."""
    return json.dumps({**json.loads(data), **changes}).encode()
