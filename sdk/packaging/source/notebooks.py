"""A notebook as one script: its code cells in order, without what only a notebook understands; files that cells write are."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import InputError, Problems
from ...runtime import cells as cells_of
from ..paths import usable
from .definitions import HEADER, spliced

_MAX_BYTES = 100 * 1024 * 1024
_KEEPS_BODY = ("time", "timeit", "capture", "prun")
_MARK = re.compile(r"#|'''|\"\"\"|['\"()\[\]{}]")
_HELP = re.compile(r"\s*%{0,2}[^\W\d][\w*.]*\?{1,2}\s*")
_ASSIGNED = re.compile(r"(\s*[^\s=#%!?][^=#]*?)\s*=\s*([%!].*)")
_TIMED = re.compile(r"%time\s+([^\s-].*)")
# What can be dropped without a change to what the program computes: it shows, measures, or asks for help.
_HARMLESS = re.compile(
    r"%{1,2}(matplotlib|config|load_ext|reload_ext|autoreload|time|timeit|prun|capture|html|HTML|javascript|js|latex|markdown|svg|"
    r"who|whos|pwd|ls|history|hist|pinfo|doc|env$|lsmagic|debug|pdb|xmode|precision|tensorboard|notebook|reset_selective)\b"
    r"|\?|[^\W\d%!][\w*.]*\?"
)
# What a notebook has beside Python's own names, as it is outside of one: plain text, and nobody there.
_STAND_INS = {
    "display": ("def display(*objects, **_): print(*objects, sep='\\n')", "display prints text"),
    "get_ipython": ("def get_ipython(): return None", "get_ipython() is None"),
}
# Beside the notebook, as in Jupyter, whose current folder that is.
_WRITE = (
    "def _podlift_write(name, mode, text): import os; "
    "file = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), mode, encoding='utf-8'); "
    "file.write(text); file.close()"
)
_WRITES = ("writefile", "file")
_PIP = re.compile(r"[%!]\s*(?:python3? -m )?(?:pip3?|conda|uv pip) install\b.*")
_PRIVATE = re.compile(r"key|token|secret|passw|login|credential|env\b|://[^/\s]*@", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A notebook as one program."""

    text: str  # line n of a cell is the n-th line below the comment of its number
    files: Mapping[
        str, str
    ]  # what cells have written at the end, by path from the notebook's folder; not what is there already
    notes: tuple[str, ...]  # what was dropped or moved, a sentence for each
    warnings: tuple[str, ...]  # those of them after which the program may do something else than the notebook


@dataclass
class _Cell:
    number: int  # counted from 1, over cells of every kind
    lines: list[str]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def place(self, line: int) -> str:
        return f"cell {self.number} line {line}"

    def drop(self, line: int, text: str, more: str = "") -> None:
        shown = text.strip()
        if _PRIVATE.search(shown) or len(shown) > 60:
            shown = f"{shown.split()[0]:.60} ..."
        self.notes.append(f"{self.place(line)}: dropped `{shown}`{more and '; '}{more}")
        if not _HARMLESS.match(text.strip()) and not _PIP.match(text.strip()):
            self.warnings.append(self.notes[-1])


@dataclass
class _Files:
    """What cells write with `%%writefile`, in their order."""

    folder: Path
    texts: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str, *, append: bool) -> str:
        """Return the statement that writes a file."""
        there = name in self.texts or (self.folder / name).is_file()
        self.texts[name] = (self.texts.get(name, "") if append else "") + text
        return f"_podlift_write({name!r}, {'a' if append and there else 'w'!r}, {text!r})"


def script(path: Path) -> Script:
    """Return the notebook at `path` as a Python script.

    Args:
        path: an `.ipynb` of format 4 whose cells are Python.

    Raises:
        InputError: no such notebook, or cells that are no Python program; all mistakes of all cells.
    """
    problems, futures, files = Problems(), list[str](), _Files(path.parent)
    cells = _cells(path, problems)
    for cell in cells:
        with problems.collect():
            _drop_magics(cell, files)
            futures += _futures(_tree("\n".join([*cell.lines, ""]), cell.place), cell)
    problems.raise_if_any()
    needed = _stand_ins(cells)
    lines = [
        HEADER,
        *dict.fromkeys(futures),
        *(_STAND_INS[name][0] for name in needed),
        *([_WRITE] if files.texts else []),
    ]
    places = dict[int, str]()
    for cell in cells:
        places |= {len(lines) + 1 + line: cell.place(line) for line in range(1, len(cell.lines) + 1)}
        lines += [cells_of.mark(cell.number, len(cell.lines)), *cell.lines]
    text = "\n".join([*lines, ""])
    _tree(text, lambda line: places.get(line, "all cells together"))
    told = [f"outside of a notebook {_STAND_INS[name][1]}" for name in needed]
    new = {name: body for name, body in files.texts.items() if not (path.parent / name).exists()}
    warned = tuple(warning for cell in cells for warning in cell.warnings)
    return Script(
        text=text, files=new, notes=(*(note for cell in cells for note in cell.notes), *told), warnings=warned
    )


def _cells(path: Path, problems: Problems) -> list[_Cell]:
    """Return the code cells; what is wrong with one goes to `problems`, with the whole notebook is raised."""
    data = _json(path)
    if not isinstance(data, dict) or type(data.get("nbformat")) is not int:
        raise InputError(f"This is no notebook: it has no number as nbformat. Received: {str(path)!r}.")
    if data["nbformat"] != 4:
        advice = "Next: save it with a current Jupyter, or run `jupyter nbconvert --to notebook` on it."
        raise InputError(f"The notebook's format is not 4. Received: nbformat {data['nbformat']:.20g}. {advice}")
    _check_language(data.get("metadata", {}))
    if not isinstance(data.get("cells"), list):
        raise InputError(f"This is no notebook: its cells are no list. Received: {str(path)!r}.")
    found = []
    for number, cell in enumerate(data["cells"], 1):
        kind, source = (cell.get("cell_type"), cell.get("source")) if isinstance(cell, dict) else (None, None)
        if kind == "code" and isinstance(source, (str, list)) and all(isinstance(part, str) for part in source):
            found.append(_Cell(number, re.split(r"\r\n|\r|\n", "".join(source))))
        elif kind == "code":
            problems.found.append(f"cell {number} has no text: its source is neither a string nor a list of strings.")
        elif kind not in ("markdown", "raw"):
            problems.found.append(f"cell {number} is neither code, markdown nor raw.")
    if not found and not problems.found:
        raise InputError(f"The notebook has no code cell. Received: {str(path)!r}.")
    return found


def _json(path: Path) -> Any:
    with usable("The notebook", path):
        if not path.is_file():
            raise InputError(f"No such notebook. Received: {str(path)!r}.")
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise InputError(f"The notebook has {size:,} bytes, more than {_MAX_BYTES:,}. Next: clear its outputs.")
        data = path.read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"{error}"
        raise InputError(f"This is no notebook, because no JSON: {reason:.200}. Received: {str(path)!r}.") from None


def _check_language(metadata: object) -> None:
    for part, key in (("kernelspec", "language"), ("language_info", "name")):
        inner = metadata.get(part, {}) if isinstance(metadata, dict) else None
        language = inner.get(key, "python") if isinstance(inner, dict) else None
        if not isinstance(language, str):
            raise InputError(f"This is no notebook: its metadata.{part}.{key} is no text.")
        if not re.fullmatch(r"i?python[\d.]*", language.lower()):
            raise InputError(f"The notebook is not in Python. Received: metadata.{part}.{key} = {language[:50]!r}.")


def _drop_magics(cell: _Cell, files: _Files) -> None:
    """Replace what only a notebook understands; no line changes its number."""
    lines = cell.lines
    at, depth, quote, joined = 0, 0, "", False
    while at < len(lines) and (not lines[at].strip() or lines[at].startswith("%%")):
        name, *options = lines[at].lstrip("%").split() or [""]
        if name in _WRITES and (written := _written(cell, at, files)):
            lines[at:] = [written, *[""] * (len(lines) - at - 1)]
        elif lines[at].strip() and name not in _KEEPS_BODY:
            cell.drop(at + 1, lines[at], "and the rest of the cell")
            lines[at:] = [""] * (len(lines) - at)
        elif lines[at].strip():
            lost = [option for option in options if name == "capture" and option.isidentifier()]
            cell.drop(at + 1, lines[at], f"{lost[0]!r} is then undefined" if lost else "kept the rest of the cell")
            lines[at] = ""
        at += 1
    while at < len(lines):
        at = at if depth or quote or joined else _drop_magic(cell, at)
        for line in lines[at : at + 1]:
            depth, quote, joined = _scan(line, depth, quote)
        at += 1


def _written(cell: _Cell, at: int, files: _Files) -> str:
    """Return the statement for a `%%writefile` at a line; "" where it does not say a file of the run's copy."""
    words = re.findall(r"'[^']*'|\"[^\"]*\"|\S+", cell.lines[at])[1:]
    append = any(word in ("-a", "--append") for word in words)
    names = [word.strip("'\"") for word in words if word not in ("-a", "--append")]
    path = PurePosixPath(names[0]) if len(names) == 1 else PurePosixPath("/")
    if path.is_absolute() or ".." in path.parts or not path.name or path.parts[0] == "~" or set(names[0]) & {*"{}$\\"}:
        cell.notes.append(f"{cell.place(at + 1)}: its file is not written: it has to lie below the notebook's folder")
        cell.warnings.append(cell.notes[-1])
        return ""
    body = "\n".join(cell.lines[at + 1 :])
    body += "\n" * (bool(body) and not body.endswith("\n"))
    try:
        body.encode()
    except UnicodeEncodeError:
        raise InputError(f"{cell.place(at + 1)}: a character that no file can hold.") from None
    cell.notes.append(f"{cell.place(at + 1)}: writes {path} into the run's copy")
    return files.write(path.as_posix(), body, append=append)


def _drop_magic(cell: _Cell, at: int) -> int:
    """Replace the magics from line `at` on, counted from 0; return the first line that is Python."""
    lines = cell.lines
    while at < len(lines):
        line, end = lines[at], at + 1
        indent = line[: len(line) - len(line.lstrip())]
        left, magic = "", line.strip()
        assigned = _ASSIGNED.fullmatch(line)
        if assigned and _scan(assigned[1], 0, "") == (0, "", False):
            left, magic = assigned[1].strip(), assigned[2]
        elif not magic.startswith(("%", "!", "?")) and not _HELP.fullmatch(line):
            return at
        timed = _TIMED.fullmatch(magic)
        if timed:
            cell.notes.append(f"{cell.place(at + 1)}: dropped `%time`, kept its statement")
            lines[at] = f"{indent}{left and f'{left} = '}{timed[1]}"
            return at
        while end < len(lines) and lines[end - 1].endswith("\\"):
            end += 1
        more = f"{left!r} is then undefined" if left else ""
        cell.drop(at + 1, line, "name what it installs as a requirement" if _PIP.fullmatch(magic) else more)
        # A suite needs a statement.
        lines[at:end] = [f"{indent}pass" if indent else ""] + [""] * (end - at - 1)
        at = end
    return at


def _scan(line: str, depth: int, quote: str) -> tuple[int, str, bool]:
    """Return how many brackets and which string are open after a line, and whether a backslash joins the next one."""
    at = 0
    while at < len(line):
        if quote:
            closing = re.compile(rf"(?:[^\\]|\\.)*?{quote}").match(line, at)
            if closing is None:
                return depth, quote if len(quote) == 3 or line.endswith("\\") else "", False
            at, quote = closing.end(), ""
            continue
        mark = _MARK.search(line, at)
        if mark is None:
            break
        if mark[0] == "#":
            return depth, "", False
        at = mark.end()
        depth = max(0, depth + (mark[0] in "([{") - (mark[0] in ")]}"))
        quote = mark[0] if mark[0][0] in "'\"" else ""
    return depth, quote, line.endswith("\\")


def _tree(text: str, place: Callable[[int], str]) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text.encode(), "notebook", "exec", dont_inherit=True)
            return ast.parse(text)
    except SyntaxError as error:
        waits = "await" in error.msg or "async" in error.msg
        more = "; only a notebook waits outside a function: use asyncio.run()" * waits
        said, line = f"syntax error: {error.msg}{more}", error.lineno or 1
    except UnicodeEncodeError as error:
        said, line = "a character that no file can hold", text.count("\n", 0, error.start) + 1
    except ValueError as error:
        said, line = f"not Python source: {error}", 1
    except (RecursionError, MemoryError):
        said, line = "nested too deeply for Python to compile it", 1
    raise InputError(f"{place(line)}: {said}.")


def _stand_ins(cells: list[_Cell]) -> list[str]:
    """Return which names of the notebook's own its cells use, and do not bind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = [node for cell in cells for node in ast.walk(ast.parse("\n".join([*cell.lines, ""])))]
    used, bound = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name for alias in node.names}
    return [name for name in _STAND_INS if name in used - bound]


def _futures(tree: ast.Module, cell: _Cell) -> list[str]:
    """Take the `from __future__` imports out of a cell, and return them."""
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    cell.lines = spliced(cell.lines, {node: "pass" for node in nodes})
    for node in nodes:
        cell.notes.append(f"{cell.place(node.lineno)}: moved `{ast.unparse(node)}` to the top, for all cells")
    return [ast.unparse(node) for node in nodes]
