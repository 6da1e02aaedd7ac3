"""One word per thing: the field's nouns, and no home-made ones in texts for people."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from sources import SOURCES, nodes_of
from support import REPO

pytestmark = pytest.mark.xdist_group("imports")

PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md")), *sorted((REPO / "examples").glob("*.*"))]
# Words that a reader would have to decode, and the word to use.
HOME_MADE = {
    r"nobody|somebody|anybody|whoever": "name who: no process, another client, anyone with access",
    r"(?:is|are|be|was|were) told": "receives, is notified",
    r"wish(?:es)?": "cancel request",
    r"hurry": "deadline",
    r"forestalls?|forestalled": "tombstone",
    r"carriers?": "uploader",
    r"so many|so often": "this many, every N seconds",
    r"look(?:s|ed|ing)? after": "supervises, owns",
    r"what is left": "the rest, outputs",
    r"of its own accord": "by itself",
    r"by half": "partially",
    r"wanted back": "preempted",
    r"distant": "remote",
}
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(HOME_MADE)})\b", re.IGNORECASE)


def prose_of(path: Path) -> list[tuple[int, str]]:
    """The comments and texts of a source file; every line of a page."""
    text = path.read_text()
    if path.suffix != ".py":
        return list(enumerate(text.splitlines(), 1))
    found = [(number, line.partition("#")[2]) for number, line in enumerate(text.splitlines(), 1) if "#" in line]
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
    return found


def test_texts_and_pages_hold_no_home_made_word() -> None:
    found = [
        f"{path.relative_to(REPO)}:{number}: {match.group()!r} in {text.strip()[:80]!r}"
        for path in (*SOURCES, *PAGES)
        for number, text in prose_of(path)
        for match in FORBIDDEN.finditer(text)
    ]
    assert found == []
