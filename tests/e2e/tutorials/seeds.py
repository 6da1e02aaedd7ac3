"""Takes cells out of the texts of tutorials, which lie in the folder that the variable TUTORIAL_SEEDS names."""

from __future__ import annotations

import hashlib
import os
import textwrap
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .cells import Cell

FOLDER = Path(os.environ.get("TUTORIAL_SEEDS") or "/none")


def here() -> bool:
    """True where the seeds exist."""
    return FOLDER.is_dir()


@cache
def _lines(seed: str) -> list[str]:
    (path,) = FOLDER.glob(f"{seed}_*.txt")
    return path.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ").split("\n")


def text(cell: Cell) -> str:
    """Return a cell's normalised text: no common indent, no trailing space, line breaks as laid out."""
    found = _lines(cell.seed)[cell.lines[0] - 1 : cell.lines[1]]
    if cell.words is not None:
        start, layout = cell.words
        words, found = found[0].split(), []
        for indent, count in layout:
            found.append(" " * indent + " ".join(words[start : start + count]))
            start += count
    if found[0].startswith("%%writefile "):
        found = found[1:]
    return textwrap.dedent("\n".join(line.rstrip() for line in found)).strip("\n") + "\n"


def digest(cells: Iterable[Cell]) -> str:
    """Return the keys by which the catalogue knows the text of its cells."""
    return hashlib.sha256("".join(map(text, cells)).encode()).hexdigest()
