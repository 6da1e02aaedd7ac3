"""What notebooks hold as text: a whole one as a script, and the functions and classes that live cells (or files) define."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import re
import symtable
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ..errors import InputError, Problems
from .paths import usable

_MAX_BYTES = 100 * 1024 * 1024
# Python reads an encoding from the first two lines; without this a cell's comment could set another.
HEADER = "# -*- coding: utf-8 -*-"
_KEEPS_BODY = ("time", "timeit", "capture", "prun")
_MARK = re.compile(r"#|'''|\"\"\"|['\"()\[\]{}]")
_HELP = re.compile(r"\s*%{0,2}[^\W\d][\w*.]*\?{1,2}\s*")
_ASSIGNED = re.compile(r"(\s*[^\s=#%!?][^=#]*?)\s*=\s*([%!].*)")
_TIMED = re.compile(r"%time\s+([^\s-].*)")
_PRIVATE = re.compile(r"key|token|secret|passw|login|credential|env\b|://[^/\s]*@", re.IGNORECASE)
_FIXED = (type(None), bool, int, float, str, bytes, tuple)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
FUTURE = annotations.compiler_flag
_AT_ONCE = ("listcomp", "setcomp", "dictcomp", "genexpr")


@dataclass(frozen=True, kw_only=True)
class Script:
    """A notebook as one program."""

    text: str  # line n of a cell is the n-th line below the comment `# cell ...`
    notes: tuple[str, ...]  # what was dropped or moved, a sentence for each


@dataclass
class _Cell:
    number: int  # counted from 1, over cells of every kind
    lines: list[str]
    notes: list[str] = field(default_factory=list)

    def place(self, line: int) -> str:
        return f"cell {self.number} line {line}"

    def drop(self, line: int, text: str, more: str = "") -> None:
        shown = text.strip()
        if _PRIVATE.search(shown) or len(shown) > 60:
            shown = f"{shown.split()[0]:.60} ..."
        self.notes.append(f"{self.place(line)}: dropped `{shown}`{more and '; '}{more}")


def script(path: Path) -> Script:
    """Return the notebook at `path` as a Python script.

    Args:
        path: an `.ipynb` of format 4 whose cells are Python.

    Raises:
        InputError: no such notebook, or cells that are no Python program; all mistakes of all cells.
    """
    problems, futures = Problems(), list[str]()
    cells = _cells(path, problems)
    for cell in cells:
        with problems.collect():
            _drop_magics(cell)
            futures += _futures(_tree("\n".join([*cell.lines, ""]), cell.place), cell)
    problems.raise_if_any()
    lines, places = [HEADER, *dict.fromkeys(futures)], dict[int, str]()
    for cell in cells:
        places |= {len(lines) + 1 + line: cell.place(line) for line in range(1, len(cell.lines) + 1)}
        lines += [f"# cell {cell.number}", *cell.lines]
    text = "\n".join([*lines, ""])
    _tree(text, lambda line: places.get(line, "all cells together"))
    return Script(text=text, notes=tuple(note for cell in cells for note in cell.notes))


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


def _drop_magics(cell: _Cell) -> None:
    """Replace what only a notebook understands; no line changes its number."""
    lines = cell.lines
    at, depth, quote, joined = 0, 0, "", False
    while at < len(lines) and (not lines[at].strip() or lines[at].startswith("%%")):
        name, *options = lines[at].lstrip("%").split() or [""]
        if lines[at].strip() and name not in _KEEPS_BODY:
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
        cell.drop(at + 1, line, f"{left!r} is then undefined" if left else "")
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


def _futures(tree: ast.Module, cell: _Cell) -> list[str]:
    """Take the `from __future__` imports out of a cell, and return them."""
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    cell.lines = _spliced(cell.lines, {node: "pass" for node in nodes})
    for node in nodes:
        cell.notes.append(f"{cell.place(node.lineno)}: moved `{ast.unparse(node)}` to the top, for all cells")
    return [ast.unparse(node) for node in nodes]


def _spliced(lines: list[str], edits: Mapping[Any, str]) -> list[str]:
    """Return lines with the text of some nodes replaced, as many lines as before."""
    # A tree counts its columns in bytes.
    found = [line.encode("utf-8", "surrogatepass") for line in lines]
    for node in sorted(edits, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        first, last = node.lineno - 1, node.end_lineno - 1
        changed = found[first][: node.col_offset] + edits[node].encode() + found[last][node.end_col_offset :]
        found[first : last + 1] = [changed, *[b""] * (last - first)]
    return [line.decode("utf-8", "surrogatepass") for line in found]


@dataclass(frozen=True)
class Definition:
    """A function or class as a file or a live cell has it."""

    node: Any
    file: str
    text: str  # all of the file's
    around: frozenset[str]  # names that the functions around it bind

    @property
    def line(self) -> int:
        return int(min(node.lineno for node in (self.node, *self.node.decorator_list)))

    def declared(self, kind: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
        return {name for node in ast.walk(self.node) if isinstance(node, kind) for name in node.names}

    def place(self, name: str) -> str:
        """Return where it uses a name, for sentences."""
        lines = (node.lineno for node in ast.walk(self.node) if isinstance(node, ast.Name) and node.id == name)
        line = next(lines, self.line)
        return f"{Path(self.file).name}:{line}" if Path(self.file).is_file() else f"line {line} of its cell"

    def holds(self, text: str, codes: list[CodeType], flags: int) -> bool:
        """True if these functions are what `text`, or the lines here, compile to; what pytest rewrote is not compared."""
        # How a call compiles depends on the imports that are compiled with it.
        flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            found = {_shape(code) for code in _codes(compile(text, "alone", "exec", flags, dont_inherit=True))}
            places = _places(self.text, flags)
        except (SyntaxError, ValueError):
            return False
        kept = (_shape(code) in found or (_shape(code), code.co_firstlineno) in places for code in codes)
        return all(same or "@pytest_ar" in code.co_names for same, code in zip(kept, codes, strict=True))

    def module(self, maker: str, free: Iterable[str], function: FunctionType | None) -> str:
        """Return it as a module; if `maker`, inside a function of this name, which takes `free` and returns it."""
        edits = {} if function is None else _defaults(self.node.args, function)
        lines = _spliced(self.text.split("\n"), edits)[self.line - 1 : self.node.end_lineno]
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        if maker:
            lines = [f"def {maker}({', '.join(free)}):", *lines, f"{indent}return {self.node.name}"]
        return "\n".join([*(["if True:"] if indent and not maker else []), *lines, ""])


@functools.lru_cache(maxsize=8)
def definitions(file: str, text: str) -> tuple[Definition, ...]:
    """Return what is defined in a file, or in the live cell that the code of its functions calls so."""
    waiting: list[tuple[ast.AST, frozenset[str]]] = []
    found = []
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        waiting = [(ast.parse(text), frozenset())]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append(Definition(node, file, text, around))
        if isinstance(node, _FUNCTIONS):
            inside = list(ast.walk(node))
            around |= {inner.arg for inner in inside if isinstance(inner, ast.arg)}
            around |= {inner.id for inner in inside if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
        waiting += [(child, around) for child in ast.iter_child_nodes(node)]
    return tuple(found)


@functools.lru_cache(maxsize=8)
def _places(text: str, flags: int) -> frozenset[tuple[object, int]]:
    code = compile(text, "whole", "exec", flags, dont_inherit=True)
    return frozenset((_shape(inner), inner.co_firstlineno) for inner in _codes(code))


def _defaults(args: ast.arguments, function: FunctionType) -> dict[ast.expr, str]:
    """Return the default values that a literal can give, by their expressions."""
    named, found = function.__kwdefaults__ or {}, {}
    pairs = [*zip(args.defaults, function.__defaults__ or (), strict=False)]
    pairs += [(node, named.get(arg.arg)) for arg, node in zip(args.kwonlyargs, args.kw_defaults, strict=True) if node]
    for node, value in pairs:
        with contextlib.suppress(ValueError, SyntaxError):
            if isinstance(value, _FIXED) and ast.literal_eval(repr(value)) == value:
                found[node] = repr(value)
    return found


def names_used(text: str, at_once: str) -> tuple[set[str], set[str]]:
    """Return the globals that a module needs when it runs, as its function `at_once` does, and those needed later."""
    now, later = set[str](), set[str]()
    top = symtable.symtable(text, "module", "exec")
    waiting = [(top, now)]
    while waiting:
        table, into = waiting.pop()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and symbol.is_global() and not (table is top and symbol.is_assigned()):
                into.add(symbol.get_name())
        for child in table.get_children():
            runs = child.get_type() != "function" or child.get_name() in (*_AT_ONCE, at_once)
            waiting.append((child, into if runs else later))
    return now, later


def _shape(code: CodeType) -> tuple[object, ...]:
    """Return what makes a code the function that it is, wherever it stands."""
    # Before Python 3.11 the name of an inner function holds those of the functions around it.
    consts = (_shape(c) if isinstance(c, CodeType) else repr(c).rpartition("<locals>.")[2] for c in code.co_consts)
    return (code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, *consts)


def _codes(code: object) -> Iterator[CodeType]:
    if isinstance(code, CodeType):
        yield code
        for const in code.co_consts:
            yield from _codes(const)
