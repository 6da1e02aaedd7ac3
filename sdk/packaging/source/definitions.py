"""The functions and classes that a file or a live notebook cell defines, as text, and whether that text is what runs."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

# Python reads an encoding from the first two lines; without this a cell's comment could set another.
HEADER = "# -*- coding: utf-8 -*-"
FUTURE = annotations.compiler_flag
_FIXED = (type(None), bool, int, float, str, bytes, tuple)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MAINS = ("__main__", "__mp_main__")
_AT_ONCE = ("listcomp", "setcomp", "dictcomp", "genexpr")


def spliced(lines: list[str], edits: Mapping[Any, str]) -> list[str]:
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
        lines = spliced(self.text.split("\n"), edits)[self.line - 1 : self.node.end_lineno]
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


def undecorated(value: Any) -> FunctionType | None:
    """Return the function below decorators, None for what is no function; tf.function has it as python_function."""
    if isinstance(value, (type, ModuleType, MethodType, functools.partial)):
        return None
    inner = inspect.unwrap(getattr(value, "python_function", value))
    return inner if isinstance(inner, FunctionType) else None


def methods(cls: type) -> list[FunctionType]:
    """Return the functions that a class's text defines; those of a dataclass are made from texts that nobody keeps."""
    found = [undecorated(getattr(value, "__func__", getattr(value, "fget", value))) for value in vars(cls).values()]
    own = [raw for raw in found if raw and raw.__module__ == cls.__module__ and raw.__code__.co_filename != "<string>"]
    return [raw for raw in own if raw.__qualname__.startswith(cls.__qualname__)]


def importable(path: str) -> ModuleType | None:
    """Return a module that other processes can import too."""
    module = sys.modules.get(path)
    real = isinstance(module, ModuleType) and path not in MAINS and getattr(module, "__spec__", None)
    return module if real else None
