"""A check as text: in one line, or in lines of 80 columns whose command can be copied."""

from __future__ import annotations

import re
import textwrap

from ..checks.check import Check

_WORDS = {"error": "FAILED", "warning": "warning", "note": "note", "unknown": "not known"}
_WIDTH = 80
_INDENT = 10


def line(check: Check) -> str:
    """Return all of a check in one line."""
    found = f"{'ok' if check.ok else _WORDS[check.level]:<8} {check.name:<11} {check.said}"
    if check.ok:
        return found
    return f"{found if found.endswith(('.', '?')) else f'{found}.'} Next: {check.fix}"


def lines(check: Check) -> list[str]:
    """Return a check in several lines: what was found, and what to do."""
    head = f"{'ok' if check.ok else _WORDS[check.level]:<9} {check.name:<15} "
    end = "" if check.ok or check.said.endswith((".", "?")) else "."
    found = _wrapped(head, f"{check.said}{end}", _INDENT)
    if check.ok or not check.fix:
        return found
    words = check.fix.removesuffix(check.command).rstrip()
    if not check.command:
        return [*found, *_wrapped(" " * _INDENT + "Next: ", words, _INDENT)]
    if words:
        return [*found, *_wrapped(" " * _INDENT + "Next: ", words, _INDENT), *_command(" " * 4, check.command)]
    return [*found, *_command(" " * 4 + "Next: ", check.command)]


def _wrapped(head: str, text: str, indent: int) -> list[str]:
    # As a word, the head lets a long one begin a line of its own.
    word = "x" * (len(head) - 1)
    found = textwrap.wrap(
        f"{word} {text}", _WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return [(head + found[0][len(head) :]).rstrip(), *found[1:]]


def _command(head: str, command: str) -> list[str]:
    """Return a command, or several joined by &&, in lines of a shell that go on after a backslash; options stay whole."""
    found = [head]
    for part in re.split(r" (?=--)|(?<= &&) ", command):
        if found[-1].strip() and not found[-1].endswith(": ") and len(found[-1]) + len(part) > _WIDTH - 3:
            found[-1] += " \\"
            found.append(" " * 6)
        found[-1] += part if found[-1].endswith(" ") else f" {part}"
    return found
