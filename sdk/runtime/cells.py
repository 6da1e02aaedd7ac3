"""A notebook's cells in the script that is made of them: where each is, and the code of each by a name that says which.

The script is a program like any other; above each cell a comment has its number and length, so that no line of a cell can be
taken for one.
"""

from __future__ import annotations
import __future__ as futures

import linecache
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import CodeType

_MARK = re.compile(r"# cell (\d+), (\d+) lines?")
_FUTURES = sum(getattr(futures, name).compiler_flag for name in {*futures.all_feature_names} - {"nested_scopes"})
_SUFFIX = ".ipynb"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell: its number in the notebook, the script's line above its first one, counted from 1, and its lines."""

    number: int
    above: int
    lines: tuple[str, ...]


def mark(number: int, count: int) -> str:
    """Return the comment above a cell."""
    return f"# cell {number}, {count} line{'' if count == 1 else 's'}"


def script_of(notebook: str, *, again: int = 0) -> str:
    """Return the path of a notebook's script: one that no import finds, whatever library has the notebook's name."""
    return f"{notebook}{'_' * again}.py"


def notebook_of(script: str) -> str:
    """Return the notebook that a script was made of, by its path; "" for none."""
    name = PurePosixPath(script).name
    found = name.removesuffix(".py").rstrip("_") if name.endswith(".py") else ""
    return str(PurePosixPath(script).with_name(found)) if found.endswith(_SUFFIX) else ""


def cells(text: str) -> list[Cell]:
    """Return the cells of a notebook's script; none of another text."""
    lines = text.split("\n")
    at = next((at for at, line in enumerate(lines) if _MARK.fullmatch(line)), len(lines))
    found = []
    while at < len(lines) and (marked := _MARK.fullmatch(lines[at])):
        end = at + 1 + int(marked[2])
        found.append(Cell(number=int(marked[1]), above=at + 1, lines=tuple(lines[at + 1 : end])))
        at = end
    return found


def codes(path: str, data: bytes) -> list[CodeType]:
    """Return what a notebook's script runs, cell by cell: tracebacks name the cell, its line and its text.

    Args:
        path: of the script.
        data: what it holds.
    """
    notebook = notebook_of(path)
    found = cells(data.decode("utf-8", "replace"))
    if not found:  # somebody's own, of such a name
        return [compile(data, path, "exec", dont_inherit=True)]
    above = "\n".join(data.decode().split("\n")[: found[0].above - 1])
    start = compile(above, path, "exec", dont_inherit=True)
    flags = start.co_flags & _FUTURES
    made = [start]
    for cell in found:
        name, lines = f"{notebook}, cell {cell.number}", [f"{line}\n" for line in cell.lines]
        made.append(compile("".join(lines), name, "exec", flags=flags, dont_inherit=True))
        # Without a time it is not compared with a file.
        linecache.cache[name] = (len("".join(lines)), None, lines, name)
    return made
