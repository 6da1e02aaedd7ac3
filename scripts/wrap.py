#!/usr/bin/env python3
"""Wraps the paragraphs of the documentation at 120 columns: `scripts/wrap.py [FILE...]`; --check only names the long pages.

A paragraph without a long line stays as it is. Tables, code blocks, headings, HTML and a word that is too long by itself are
never broken.
"""

import re
import sys
import textwrap
from pathlib import Path

WIDTH = 120
REPO = Path(__file__).resolve().parent.parent
_ITEM = re.compile(r" *(?:[-*+]|\d+\.) +")
_FIXED = re.compile(r"\s*(?:\||#|<|>|!!!|\[[^\]]+\]: )|^\s*$")
# A code span, or the text of a link with its address, stays in one line if it fits there. The blank in it is protected.
_WHOLE = re.compile(r"`[^`]*`|!?\[[^\]]*\]\([^)]*\)")


def paragraphs(text: str) -> list[tuple[list[str], bool]]:
    """Return the lines in groups, and whether a group is a paragraph that may be wrapped."""
    groups: list[tuple[list[str], bool]] = []
    fence = ""
    for line in text.split("\n"):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence or mark:
            groups.append(([line], False))
            if mark and (not fence or line.strip() == fence):
                fence = "" if fence else mark[1]
        elif _FIXED.match(line):
            groups.append(([line], False))
        elif groups and groups[-1][1] and not _ITEM.match(line):
            groups[-1][0].append(line)
        else:
            groups.append(([line], True))
    return groups


def wrap(lines: list[str]) -> list[str]:
    """Return a paragraph or an item of a list in lines of at most WIDTH columns."""
    item = _ITEM.match(lines[0])
    first = item[0] if item else re.match(" *", lines[0])[0]
    if any(line.endswith(("  ", "\\")) for line in lines):
        return lines
    words = " ".join([lines[0][len(first) :].strip(), *(line.strip() for line in lines[1:])])
    words = _WHOLE.sub(lambda span: span[0].replace(" ", "\0") if len(span[0]) < WIDTH // 2 else span[0], words)
    rest = re.match(" *", lines[1])[0] if len(lines) > 1 and item else " " * len(first)
    found = textwrap.wrap(
        words, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    # At the beginning of a line these would become a list, a heading or a quotation.
    for number in range(len(found) - 1, 0, -1):
        if _ITEM.match(found[number]) or re.match(r"\s*(?:#|>|\||\+|=+$|-+$)", found[number]):
            before, _, last = found[number - 1].rpartition(" ")
            found[number - 1 : number + 1] = [before, f"{rest}{last} {found[number].strip()}"]
    return [line.replace("\0", " ") for line in found]


def wrapped(text: str) -> str:
    """Return a page in which no line of a paragraph is longer than WIDTH, if its words allow it."""
    lines: list[str] = []
    for group, prose in paragraphs(text):
        lines += wrap(group) if prose and max(map(len, group)) > WIDTH else group
    return "\n".join(lines)


def main() -> None:
    names = [name for name in sys.argv[1:] if name != "--check"]
    pages = [*sorted((REPO / "docs").rglob("*.md")), REPO / "CONTRIBUTING.md", REPO / "SECURITY.md"]
    stale = []
    for path in map(Path, names) if names else pages:
        before = path.read_text()
        if (after := wrapped(before)) != before:
            stale.append(str(path).removeprefix(f"{REPO}/"))
            if "--check" not in sys.argv:
                path.write_text(after)
    if stale and "--check" in sys.argv:
        sys.exit(f"Lines of more than {WIDTH} columns in {', '.join(stale)}. Next: scripts/wrap.py")


if __name__ == "__main__":
    main()
