"""A notebook as one Python script: its code cells in order, without magics; `%%writefile` becomes a statement."""

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
from ...storage.paths import usable
from .definitions import HEADER, spliced

_MAX_BYTES = 100 * 1024 * 1024
_KEEPS_BODY = ("time", "timeit", "capture", "prun")
_MARK = re.compile(r"#|'''|\"\"\"|['\"()\[\]{}]")
_HELP = re.compile(r"\s*%{0,2}[^\W\d][\w*.]*\?{1,2}\s*")
_ASSIGNED = re.compile(r"(\s*[^\s=#%!?][^=#]*?)\s*=\s*([%!].*)")
_TIMED = re.compile(r"%time\s+([^\s-].*)")
# Dropping these changes nothing that the program computes: they show, measure, or ask for help.
_HARMLESS = re.compile(
    r"%{1,2}(matplotlib|config|load_ext|reload_ext|autoreload|time|timeit|prun|capture|html|HTML|javascript|js|latex|markdown|svg|"
    r"who|whos|pwd|ls|history|hist|pinfo|doc|env$|lsmagic|debug|pdb|xmode|precision|tensorboard|notebook|reset_selective)\b"
    r"|\?|[^\W\d%!][\w*.]*\?"
)
# Names that a notebook has beside Python's own, with their replacements in a script.
_REPLACEMENTS = {
    "display": ("def display(*objects, **_): print(*objects, sep='\\n')", "display() prints text"),
    "get_ipython": ("def get_ipython(): return None", "get_ipython() returns None"),
}
# Relative to the notebook's folder, which is the current folder in Jupyter.
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

    text: str  # line n of a cell is the n-th line below the comment with its number
    files: Mapping[str, str]  # text of the new files that cells write, by path from the notebook's folder
    notes: tuple[str, ...]  # the dropped and moved parts
    warnings: tuple[str, ...]  # those notes after which the program may behave differently from the notebook


@dataclass
class _CodeCell:
    number: int  # counted from 1, over cells of every kind
    lines: list[str]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def location(self, line: int) -> str:
        return f"cell {self.number} line {line}"

    def drop(self, line: int, text: str, more: str = "") -> None:
        excerpt = text.strip()
        if _PRIVATE.search(excerpt) or len(excerpt) > 60:
            excerpt = f"{excerpt.split()[0]:.60} ..."
        note = f"{self.location(line)}: dropped `{excerpt}`"
        if more:
            note += f"; {more}"
        self.notes.append(note)
        if not _HARMLESS.match(text.strip()) and not _PIP.match(text.strip()):
            self.warnings.append(note)


def script(path: Path) -> Script:
    """Return an `.ipynb` of format 4 as a Python script; an InputError names the mistakes of all cells."""
    problems, futures, files = Problems(), list[str](), dict[str, str]()
    cells = _cells(path, problems)
    for cell in cells:
        with problems.collect():
            _drop_magics(cell, path.parent, files)
            futures += _futures(_tree("\n".join([*cell.lines, ""]), cell.location), cell)
    problems.raise_if_any()
    replaced = _replaced_names(cells)
    lines = [HEADER, *dict.fromkeys(futures), *(_REPLACEMENTS[name][0] for name in replaced)]
    if files:
        lines.append(_WRITE)
    locations = dict[int, str]()
    for cell in cells:
        locations |= {len(lines) + 1 + line: cell.location(line) for line in range(1, len(cell.lines) + 1)}
        lines += [cells_of.mark(cell.number, len(cell.lines)), *cell.lines]
    text = "\n".join([*lines, ""])
    _tree(text, lambda line: locations.get(line, "all cells together"))
    notes = [note for cell in cells for note in cell.notes]
    notes += [f"outside of a notebook {_REPLACEMENTS[name][1]}" for name in replaced]
    return Script(
        text=text,
        files={name: body for name, body in files.items() if not (path.parent / name).exists()},
        notes=tuple(notes),
        warnings=tuple(warning for cell in cells for warning in cell.warnings),
    )


def _cells(path: Path, problems: Problems) -> list[_CodeCell]:
    """Return the code cells. Mistakes in one cell go to `problems`; one that concerns the whole notebook is raised."""
    data = _json(path)
    if not isinstance(data, dict) or type(data.get("nbformat")) is not int:
        raise InputError(f"Not a notebook: its nbformat is not a number. Received: {str(path)!r}.")
    if data["nbformat"] != 4:
        advice = "Next: save it with a current Jupyter, or run `jupyter nbconvert --to notebook` on it."
        raise InputError(f"The format of the notebook is not 4. Received: nbformat {data['nbformat']:.20g}. {advice}")
    _check_language(data.get("metadata", {}))
    if not isinstance(data.get("cells"), list):
        raise InputError(f"Not a notebook: its cells are not a list. Received: {str(path)!r}.")
    cells = []
    for number, cell in enumerate(data["cells"], 1):
        kind, source = (cell.get("cell_type"), cell.get("source")) if isinstance(cell, dict) else (None, None)
        if kind == "code" and isinstance(source, (str, list)) and all(isinstance(part, str) for part in source):
            cells.append(_CodeCell(number, re.split(r"\r\n|\r|\n", "".join(source))))
        elif kind == "code":
            problems.add(f"cell {number} has no text: its source is neither a string nor a list of strings.")
        elif kind not in ("markdown", "raw"):
            problems.add(f"cell {number} is neither code, markdown nor raw.")
    if not cells and not problems.messages:
        raise InputError(f"The notebook has no code cell. Received: {str(path)!r}.")
    return cells


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
        raise InputError(f"Not a notebook, because it is not JSON: {reason:.200}. Received: {str(path)!r}.") from None


def _check_language(metadata: object) -> None:
    for part, key in (("kernelspec", "language"), ("language_info", "name")):
        inner = metadata.get(part, {}) if isinstance(metadata, dict) else None
        language = inner.get(key, "python") if isinstance(inner, dict) else None
        if not isinstance(language, str):
            raise InputError(f"Not a notebook: its metadata.{part}.{key} is not a string.")
        if not re.fullmatch(r"i?python[\d.]*", language.lower()):
            raise InputError(
                f"The notebook is not written in Python. Received: metadata.{part}.{key} = {language[:50]!r}."
            )


def _drop_magics(cell: _CodeCell, folder: Path, files: dict[str, str]) -> None:
    """Replace the syntax of notebooks; no line changes its number. Files that cells write go to `files`."""
    lines = cell.lines
    at, depth, quote, joined = 0, 0, "", False
    while at < len(lines) and (not lines[at].strip() or lines[at].startswith("%%")):
        name, *options = lines[at].lstrip("%").split() or [""]
        if name in _WRITES and (statement := _write_statement(cell, at, folder, files)):
            lines[at:] = [statement, *[""] * (len(lines) - at - 1)]
        elif lines[at].strip() and name not in _KEEPS_BODY:
            cell.drop(at + 1, lines[at], "with the rest of the cell")
            lines[at:] = [""] * (len(lines) - at)
        elif lines[at].strip():
            output = next((option for option in options if option.isidentifier()), "") if name == "capture" else ""
            cell.drop(at + 1, lines[at], f"{output!r} is then undefined" if output else "kept the rest of the cell")
            lines[at] = ""
        at += 1
    while at < len(lines):
        if not (depth or quote or joined):
            at = _drop_line_magics(cell, at)
        for line in lines[at : at + 1]:
            depth, quote, joined = _scan(line, depth, quote)
        at += 1


def _write_statement(cell: _CodeCell, at: int, folder: Path, files: dict[str, str]) -> str:
    """Return the statement for a `%%writefile` at a line, "" if its file is not below the notebook's folder."""
    words = re.findall(r"'[^']*'|\"[^\"]*\"|\S+", cell.lines[at])[1:]
    append = any(word in ("-a", "--append") for word in words)
    names = [word.strip("'\"") for word in words if word not in ("-a", "--append")]
    path = PurePosixPath(names[0]) if len(names) == 1 else PurePosixPath("/")
    if path.is_absolute() or ".." in path.parts or not path.name or path.parts[0] == "~" or set(names[0]) & {*"{}$\\"}:
        cell.notes.append(f"{cell.location(at + 1)}: its file is not written: it must be below the notebook's folder")
        cell.warnings.append(cell.notes[-1])
        return ""
    body = "\n".join(cell.lines[at + 1 :])
    if body and not body.endswith("\n"):
        body += "\n"
    try:
        body.encode()
    except UnicodeEncodeError:
        raise InputError(f"{cell.location(at + 1)}: a character that UTF-8 cannot encode.") from None
    cell.notes.append(f"{cell.location(at + 1)}: writes {path} into the run's copy of the project")
    name = path.as_posix()
    mode = "a" if append and (name in files or (folder / name).is_file()) else "w"
    files[name] = files.get(name, "") + body if append else body
    return f"_podlift_write({name!r}, {mode!r}, {body!r})"


def _drop_line_magics(cell: _CodeCell, at: int) -> int:
    """Replace the magics from line `at` on, counted from 0; return the first line that is Python."""
    lines = cell.lines
    while at < len(lines):
        line, end = lines[at], at + 1
        indent = line[: len(line) - len(line.lstrip())]
        name, magic = "", line.strip()
        assigned = _ASSIGNED.fullmatch(line)
        if assigned and _scan(assigned[1], 0, "") == (0, "", False):
            name, magic = assigned[1].strip(), assigned[2]
        elif not magic.startswith(("%", "!", "?")) and not _HELP.fullmatch(line):
            return at
        timed = _TIMED.fullmatch(magic)
        if timed:
            cell.notes.append(f"{cell.location(at + 1)}: dropped `%time`, kept its statement")
            lines[at] = f"{indent}{name} = {timed[1]}" if name else f"{indent}{timed[1]}"
            return at
        while end < len(lines) and lines[end - 1].endswith("\\"):
            end += 1
        more = f"{name!r} is then undefined" if name else ""
        if _PIP.fullmatch(magic):
            more = "add its packages to the requirements"
        cell.drop(at + 1, line, more)
        # An indented block needs a statement.
        lines[at:end] = [f"{indent}pass" if indent else ""] + [""] * (end - at - 1)
        at = end
    return at


def _scan(line: str, depth: int, quote: str) -> tuple[int, str, bool]:
    """Return the number of open brackets after a line, the open string's quote, and whether a backslash joins the next line."""
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
        if mark[0] in "([{":
            depth += 1
        elif mark[0] in ")]}":
            depth = max(0, depth - 1)
        quote = mark[0] if mark[0][0] in "'\"" else ""
    return depth, quote, line.endswith("\\")


def _tree(text: str, location: Callable[[int], str]) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text.encode(), "notebook", "exec", dont_inherit=True)
            return ast.parse(text)
    except SyntaxError as error:
        wrong, line = f"syntax error: {error.msg}", error.lineno or 1
        if "await" in error.msg or "async" in error.msg:
            wrong += "; only a notebook can await outside a function: use asyncio.run()"
    except UnicodeEncodeError as error:
        wrong, line = "a character that UTF-8 cannot encode", text.count("\n", 0, error.start) + 1
    except ValueError as error:
        wrong, line = f"not Python source: {error}", 1
    except (RecursionError, MemoryError):
        wrong, line = "nested too deeply for Python to compile it", 1
    raise InputError(f"{location(line)}: {wrong}.")


def _replaced_names(cells: list[_CodeCell]) -> list[str]:
    """Return the names that only a notebook defines, and that its cells use without binding them."""
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
    return [name for name in _REPLACEMENTS if name in used - bound]


def _futures(tree: ast.Module, cell: _CodeCell) -> list[str]:
    """Remove the `from __future__` imports from a cell, and return them."""
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    cell.lines = spliced(cell.lines, {node: "pass" for node in nodes})
    for node in nodes:
        cell.notes.append(f"{cell.location(node.lineno)}: moved `{ast.unparse(node)}` to the top, for all cells")
    return [ast.unparse(node) for node in nodes]
