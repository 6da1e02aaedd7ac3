"""The functions and classes that a file or a live notebook cell defines, and whether their text is the running code."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import linecache
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ...errors import InputError

# Python reads the encoding from the first two lines; without this a comment of a cell could set another one.
HEADER = "# -*- coding: utf-8 -*-"
FUTURE = annotations.compiler_flag
_FIXED = (type(None), bool, int, float, str, bytes, tuple)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MAINS = ("__main__", "__mp_main__")
_AT_ONCE = ("listcomp", "setcomp", "dictcomp", "genexpr")


def spliced(lines: list[str], edits: Mapping[Any, str]) -> list[str]:
    """Return lines with the text of some nodes replaced; the number of lines stays the same."""
    # A tree counts columns in bytes.
    encoded = [line.encode("utf-8", "surrogatepass") for line in lines]
    for node in sorted(edits, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        first, last = node.lineno - 1, node.end_lineno - 1
        changed = encoded[first][: node.col_offset] + edits[node].encode() + encoded[last][node.end_col_offset :]
        encoded[first : last + 1] = [changed, *[b""] * (last - first)]
    return [line.decode("utf-8", "surrogatepass") for line in encoded]


@dataclass(frozen=True)
class Definition:
    """A function or class in the text of a file or a live cell."""

    node: Any
    file: str
    text: str  # all of the file's
    around: frozenset[str]  # names that the enclosing functions bind

    @property
    def line(self) -> int:
        return int(min(node.lineno for node in (self.node, *self.node.decorator_list)))

    def declared(self, kind: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
        return {name for node in ast.walk(self.node) if isinstance(node, kind) for name in node.names}

    def location(self, name: str) -> str:
        """Return where it uses a name, for messages."""
        lines = (node.lineno for node in ast.walk(self.node) if isinstance(node, ast.Name) and node.id == name)
        line = next(lines, self.line)
        return f"{Path(self.file).name}:{line}" if Path(self.file).is_file() else f"line {line} of its cell"

    def holds(self, text: str, codes: list[CodeType], flags: int) -> bool:
        """True if `text`, or the lines here, compile to these functions; functions that pytest rewrote are not compared."""
        # How a call compiles depends on the imports that are compiled with it.
        flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            shapes = {_shape(code) for code in _codes(compile(text, "alone", "exec", flags, dont_inherit=True))}
            positions = _positions(self.text, flags)
        except (SyntaxError, ValueError):
            return False
        kept = (_shape(code) in shapes or (_shape(code), code.co_firstlineno) in positions for code in codes)
        return all(same or "@pytest_ar" in code.co_names for same, code in zip(kept, codes, strict=True))

    def module(self, maker: str, free: Iterable[str], function: FunctionType | None) -> str:
        """Return it as a module; with `maker`, inside a function of that name, which takes `free` and returns it."""
        edits = {} if function is None else _defaults(self.node.args, function)
        lines = spliced(self.text.split("\n"), edits)[self.line - 1 : self.node.end_lineno]
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        if maker:
            lines = [f"def {maker}({', '.join(free)}):", *lines, f"{indent}return {self.node.name}"]
        return "\n".join([*(["if True:"] if indent and not maker else []), *lines, ""])


@functools.lru_cache(maxsize=8)
def definitions(file: str, text: str) -> tuple[Definition, ...]:
    """Return the definitions in a file, or in a live cell: its functions have a made-up name as their file."""
    waiting: list[tuple[ast.AST, frozenset[str]]] = []
    defined = []
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        waiting = [(ast.parse(text), frozenset())]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.append(Definition(node, file, text, around))
        if isinstance(node, _FUNCTIONS):
            inside = list(ast.walk(node))
            around |= {inner.arg for inner in inside if isinstance(inner, ast.arg)}
            around |= {inner.id for inner in inside if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
        waiting += [(child, around) for child in ast.iter_child_nodes(node)]
    return tuple(defined)


@functools.lru_cache(maxsize=8)
def _positions(text: str, flags: int) -> frozenset[tuple[object, int]]:
    code = compile(text, "whole", "exec", flags, dont_inherit=True)
    return frozenset((_shape(inner), inner.co_firstlineno) for inner in _codes(code))


def _defaults(args: ast.arguments, function: FunctionType) -> dict[ast.expr, str]:
    """Return those default values that a literal can express, by their nodes."""
    named, literals = function.__kwdefaults__ or {}, {}
    pairs = [*zip(args.defaults, function.__defaults__ or (), strict=False)]
    pairs += [(node, named.get(arg.arg)) for arg, node in zip(args.kwonlyargs, args.kw_defaults, strict=True) if node]
    for node, value in pairs:
        with contextlib.suppress(ValueError, SyntaxError):
            if isinstance(value, _FIXED) and ast.literal_eval(repr(value)) == value:
                literals[node] = repr(value)
    return literals


def names_used(text: str, at_once: str) -> tuple[set[str], set[str]]:
    """Return the globals that a module needs when it runs, its function `at_once` included, and those needed later."""
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
    """Return a value that identifies a function's code, wherever it is defined."""
    # Before Python 3.11 the name of an inner function holds the names of the functions around it.
    consts = (_shape(c) if isinstance(c, CodeType) else repr(c).rpartition("<locals>.")[2] for c in code.co_consts)
    return (code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, *consts)


def _codes(code: object) -> Iterator[CodeType]:
    if isinstance(code, CodeType):
        yield code
        for const in code.co_consts:
            yield from _codes(const)


def undecorated(value: Any) -> FunctionType | None:
    """Return the function below decorators, None if there is none; tf.function has it as python_function."""
    if isinstance(value, (type, ModuleType, MethodType, functools.partial)):
        return None
    inner = inspect.unwrap(getattr(value, "python_function", value))
    return inner if isinstance(inner, FunctionType) else None


def methods(cls: type) -> list[FunctionType]:
    """Return the functions that a class's text defines; the text of functions that a dataclass generates is not kept."""
    functions = [undecorated(getattr(value, "__func__", getattr(value, "fget", value))) for value in vars(cls).values()]
    own = [
        raw for raw in functions if raw and raw.__module__ == cls.__module__ and raw.__code__.co_filename != "<string>"
    ]
    return [raw for raw in own if raw.__qualname__.startswith(cls.__qualname__)]


def importable(path: str) -> ModuleType | None:
    """Return a module that other processes can import too."""
    module = sys.modules.get(path)
    real = isinstance(module, ModuleType) and path not in MAINS and getattr(module, "__spec__", None)
    return module if real else None


@dataclass(frozen=True)
class NameUse:
    """A name that the text of a function uses."""

    name: str
    where: str  # the function, its file and line
    scope: dict[str, object]  # the function's globals

    def cannot_send(self, why: str, advice: str) -> InputError:
        used = f", used in {self.where}" if self.where else ""
        return InputError(f"{self.name!r} cannot be sent{used}: {why}. Next: {advice}.")

    def cannot_send_value(self, value: Any) -> InputError:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            kind += f" of shape {shape}"
        elif type(value) is float:
            kind += f" ({value})"
        return self.cannot_send(
            f"it is a {kind}", "make it inside the function, or load it there from a file of the project"
        )

    def value(self) -> Any:
        if self.name in self.scope:
            return self.scope[self.name]
        if self.name in vars(builtins):
            return vars(builtins)[self.name]
        near = get_close_matches(self.name, self.scope, n=1)
        raise self.cannot_send("it is not defined", f"write {near[0]!r}" if near else "define it, or remove it")


@dataclass(frozen=True)
class DefinedObject:
    """A function or a class, to find its source text."""

    value: Any
    raw: FunctionType | None  # the function below decorators, None for a class
    functions: list[FunctionType]  # that function, or the methods of the class
    name: str  # in its own text
    qualname: str
    use: NameUse  # with the globals of its functions

    @staticmethod
    def of(value: Any, use: NameUse) -> DefinedObject:
        raw = undecorated(value)
        if raw is not None:
            use = replace(use, scope=raw.__globals__)
            return DefinedObject(value, raw, [raw], raw.__code__.co_name, raw.__qualname__, use)
        functions = methods(value)
        if functions:
            use = replace(use, scope=functions[0].__globals__)
        return DefinedObject(value, None, functions, value.__name__, value.__qualname__, use)

    @property
    def is_local(self) -> bool:
        """True if it is defined inside a function."""
        return "<locals>" in self.qualname

    @property
    def codes(self) -> list[CodeType]:
        return [function.__code__ for function in self.functions]

    def check_name(self, name: str) -> None:
        """Raise unless its text, run again, would bind `name`."""
        if "." in self.qualname.rpartition("<locals>.")[2] or self.name == "<lambda>":
            raise self.use.cannot_send(
                f"it is {self.qualname}, which has no separate definition", "write a `def` that does the same"
            )
        is_global = self.name == name and self.use.scope.get(name, self.value) is self.value
        if not is_global and not self.is_local:
            raise self.use.cannot_send(
                f"it is {self.name!r} renamed, wrapped or defined again", "use one name, and functools.wraps"
            )

    def check_decorators(self, definition: Definition) -> None:
        """Raise if the function is the result of a call that its text does not show."""
        if self.raw is None:
            return
        decorated = bool(definition.node.decorator_list)
        if self.value is self.raw:
            shown = not (decorated and self.is_local and self.use.name != self.name)
        else:
            shown = decorated
        # functools.singledispatch keeps functions that its own text does not name.
        if not shown or hasattr(self.value, "dispatch"):
            raise self.use.cannot_send(
                "it is the result of a call that its text does not show", "use a decorator, with functools.wraps"
            )

    def closure(self) -> dict[str, object]:
        """Return the values of its free variables."""
        cells: dict[str, CellType] = {}
        for function in self.functions:
            cells |= zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if CellType() in cells.values():
            raise self.use.cannot_send("its closure is not complete", "let the enclosing function return first")
        # Inside its own text its name is bound by the definition itself.
        return {
            word: cell.cell_contents
            for word, cell in cells.items()
            if word != "__class__"
            and not (word == self.name and (cell.cell_contents is self.value or cell.cell_contents is self.raw))
        }

    @property
    def postpones_annotations(self) -> bool:
        return any(code.co_flags & FUTURE for code in self.codes)

    def find(self, maker: str, free: Iterable[str]) -> tuple[Definition, str]:
        """Return the definition that made it, and the text of that as a module."""
        flags = FUTURE if self.postpones_annotations else 0
        matches: dict[str, Definition] = {}
        for file in dict.fromkeys(self._files()):
            for definition in definitions(file, "".join(linecache.getlines(file, self.use.scope))):
                is_class = isinstance(definition.node, ast.ClassDef)
                same_line = bool(self.codes) and definition.line == self.codes[0].co_firstlineno
                if definition.node.name == self.name and (is_class or same_line):
                    text = definition.module(maker, free, None if is_class else self.functions[0])
                    if definition.holds(text, self.codes, flags):
                        matches[text] = definition
        # `In` holds a notebook's cells, in the order in which they ran: the last one counts.
        cells: Any = self.use.scope.get("In")
        if type(cells) is list:
            ran = [text for cell in cells for text in matches if text.strip() in str(cell)]
            matches = {ran[-1]: matches[ran[-1]]} if ran else matches
        if len(matches) != 1:
            why = "several cells define it" if matches else "its text was changed since, or is not kept anywhere"
            raise self.use.cannot_send(why, "define it in a file, or in one cell without %%magic, and run that")
        ((text, definition),) = matches.items()
        return definition, text

    def _files(self) -> list[str]:
        """Return the names under which linecache may hold its text."""
        if self.functions:
            return [code.co_filename for code in self.codes]
        # A class without methods does not know its file. An entry without a modification time is a live cell.
        cells = [file for file, entry in linecache.cache.items() if entry[1:2] == (None,)]
        return [str(self.use.scope.get("__file__")), *cells]
