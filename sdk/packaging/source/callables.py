"""A function as the text of a module: its own and its classes' source, data as literals, the rest by import."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import logging
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path, PurePath
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from ...errors import InputError, Problems
from .definitions import (
    FUTURE,
    HEADER,
    MAINS,
    Definition,
    definitions,
    importable,
    methods,
    names_used,
    undecorated,
)

_MAX_CHARS, _MAX_DEPTH = 1_000_000, 50
_POSTPONE = "from __future__ import annotations\n"
_PLAIN = (type(None), bool, int, float, str, bytes)
_BRACKETS = {list: "[{}]", tuple: "({},)", set: "{{{}}}", frozenset: "frozenset({{{}}})", dict: "{{{}}}"}
# What every module has; IPython adds to the builtins.
_OWN = {*dir(builtins), "__file__", "__builtins__", "__annotations__"} - {"display", "get_ipython"}


@dataclass(frozen=True, kw_only=True)
class Written:
    """A function as a module; the same function gives the same text."""

    name: str  # what the module calls the function
    text: str
    modules: tuple[str, ...]  # dotted names of what it imports
    values: tuple[str, ...]  # names of the globals and closure values that the text holds
    file: str  # where the function was written, for sentences; "" when that is no file


def named(function: Callable[..., Any]) -> str | None:
    """Return "package.module:function" for a function that other processes can import, else None."""
    raw = undecorated(function)
    module = None if raw is None else sys.modules.get(raw.__module__ or "")
    if raw is None or module is None or vars(module).get(raw.__qualname__) is not function:
        return None
    file, spec, name = getattr(module, "__file__", None), getattr(module, "__spec__", None), raw.__module__
    if name in MAINS and spec is not None and spec.origin == file:
        name = spec.name  # what `python -m` was given
    return None if not file or name in MAINS else f"{name}:{raw.__qualname__}"


def written(function: Callable[..., Any]) -> Written:
    """Return `function` and all that it uses as the text of one module.

    Args:
        function: a plain Python function, decorated or not, of a notebook, `__main__`, another function or a module.

    Raises:
        InputError: it is nothing that can be run so, or uses something that cannot travel; names all of it.
    """
    raw, writer = _runnable(function), _Writer()
    file, scope, own = raw.__code__.co_filename, raw.__globals__, raw.__code__.co_name
    name = own if scope.get(own, function) is function or "<locals>" not in raw.__qualname__ else f"{own}_entry"
    with warnings.catch_warnings(), writer.problems.collect():
        warnings.simplefilter("ignore")
        writer.bind(name, function, _Use(own, "", scope))
        writer.follow()
    writer.problems.raise_if_any()
    return Written(
        name=name,
        text="\n".join([HEADER, _POSTPONE * writer.postponed, *sorted(writer.imports), "", writer.text()]),
        modules=tuple(sorted(set(writer.imports.values()))),
        values=tuple(dict.fromkeys(writer.values)),
        file=file if Path(file).is_file() else "",
    )


def _runnable(function: Any) -> FunctionType:
    """Return the function below decorators, or say why a task cannot call `function`."""
    raw = undecorated(function)
    name = getattr(function, "__qualname__", f"this {type(function).__qualname__}")
    calls, nothing = "a function that makes what it needs and calls this", "calling it would run nothing"
    arguments = ", ".join(f"{key!r}: ..." for key in getattr(function, "keywords", {}))
    waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    cases = (
        (isinstance(function, functools.partial), "a functools.partial", f"its function, and args={{{arguments}}}"),
        (isinstance(function, MethodType), "a bound method", calls),
        (isinstance(function, type), "a class", calls),
        (raw is None and inspect.isroutine(function), "a builtin", calls),
        (raw is None, "an instance with __call__" if callable(function) else "no function", calls),
        (raw and raw.__name__ == "<lambda>", "a lambda, which has no name", "one that is written with `def`"),
        (inspect.isgeneratorfunction(function), f"a generator: {nothing}", "one without `yield`"),
        (waits, f"an async function: {nothing}", "a plain function that calls asyncio.run()"),
    )
    wrong = [f"This cannot be run: {name} is {what}. Next: give {advice}." for bad, what, advice in cases if bad]
    if raw is None or wrong:
        raise InputError(wrong[0])
    return raw


@dataclass(frozen=True)
class _Use:
    """Where a value was met: its name there, whose text needs it, and the globals around that."""

    name: str
    where: str
    scope: dict[str, Any]

    def cannot(self, why: str, advice: str) -> InputError:
        used = f", used in {self.where}" if self.where else ""
        return InputError(f"{self.name!r} cannot travel{used}: {why}. Next: {advice}.")

    def is_a(self, value: Any) -> InputError:
        kind, shape = f"{type(value).__module__}.{type(value).__qualname__}", getattr(value, "shape", None)
        shown = f" of shape {shape}" if isinstance(shape, tuple) else f" ({value})" if type(value) is float else ""
        why = f"it is a {kind.removeprefix('builtins.')}{shown}"
        return self.cannot(why, "make it inside the function, or load it there from a file of the project")


@dataclass
class _Item:
    text: str
    now: set[str] = field(default_factory=set)  # names that must be there when it runs
    later: set[str] = field(default_factory=set)  # names that must be there when it is called


class _Writer:
    """Gathers what a function needs, under the names that its text uses, and puts it in order."""

    def __init__(self) -> None:
        self.items: dict[str, _Item] = {}
        self.bound: dict[str, Any] = {}  # also keeps alive what `names` knows by id
        self.names: dict[int, str] = {}
        self.imports: dict[str, str] = {}
        self.values: list[str] = []
        self.todo: list[_Use] = []
        self.postponed = False
        self.problems = Problems()

    def bind(self, name: str, value: Any, use: _Use) -> None:
        if name in self.bound:
            other = self.bound[name]
            if other is not value and not (type(value) in _PLAIN and type(other) is type(value) and other == value):
                raise use.cannot("two different things have this name in what the function uses", "rename one of them")
            return
        self.bound[name], item = value, _Item("")
        known = name if type(value) in _PLAIN else self.names.setdefault(id(value), name)
        if known == name and self._import(name, value, use):
            return
        self.items[name] = item
        if known != name:
            item.text, item.now = f"{name} = {known}\n", {known}
        elif isinstance(value, type) or undecorated(value):
            self._define(name, value, use, item)
        else:
            item.text = f"{name} = {self._literal(value, use, item)}\n"

    def follow(self) -> None:
        while self.todo:
            use = self.todo.pop(0)
            value = use.scope.get(use.name, vars(builtins).get(use.name, self))
            if use.name in _OWN and (use.name not in use.scope or use.name.startswith("__")):
                continue
            with self.problems.collect():
                if value is self:
                    near = get_close_matches(use.name, use.scope, n=1)
                    raise use.cannot("it is not defined", f"write {near[0]!r}" if near else "define it, or take it out")
                self.bind(use.name, value, use)

    def text(self) -> str:
        """Return the definitions, in an order in which what is called while the module runs finds all that it uses."""
        parts, left = list[str](), dict(reversed(self.items.items()))
        needs = {name: self._reached(item.now) - {name} for name, item in left.items()}
        while left:
            ready = [name for name in left if not needs[name] & left.keys()]
            if not ready:
                raise InputError(
                    f"Each needs another before it is there: {', '.join(left)}. Next: use a module for them."
                )
            parts.append(left.pop(ready[0]).text)
        return "\n\n".join(parts)

    def _reached(self, new: set[str]) -> set[str]:
        seen: set[str] = set()
        while new := (new & self.items.keys()) - seen:
            seen |= new
            new = {word for name in new for word in self.items[name].now | self.items[name].later}
        return seen

    def _import(self, name: str, value: Any, use: _Use) -> bool:
        own = str(getattr(value, "__name__", getattr(value, "name", name)))
        module = isinstance(value, ModuleType) and importable(own)
        origin = str(own if module else getattr(value, "__module__", None) or type(value).__module__).partition(".")[0]
        if module and "._" not in own:
            self.imports[f"import {own}" + f" as {name}" * (name != own)] = own
            return True
        shared = vars(importable(use.scope.get("__name__", "")) or self) is use.scope
        if type(value) in _PLAIN or origin in MAINS or (type(value) in _BRACKETS and not shared):
            return False
        # TensorFlow's keras stands for the module until it is used, and is then replaced by it.
        wanted = (id(value), id(module or value))
        modules = [(path, vars(real)) for path in list(sys.modules) if (real := importable(path))]
        found = [(path, key) for path, names in modules for key in {name, own} if id(names.get(key)) in wanted]
        # A package's own public name for something is the one that lasts.
        found.sort(key=lambda at: ("._" in f".{at[0]}", at[0].partition(".")[0] != origin, at[0].count("."), at))
        for path, key in found[:1]:
            self.imports[f"from {path} import {key}" + f" as {name}" * (name != key)] = path
        return bool(found)

    def _literal(self, value: Any, use: _Use, item: _Item, depth: int = 0) -> str:
        kind: Any = type(value)
        if depth > _MAX_DEPTH:
            raise use.cannot(f"it is more than {_MAX_DEPTH} deep, or holds itself", "make it inside the function")
        if kind in _PLAIN and (kind is not float or value - value == 0):  # neither nan nor infinite
            # Only in base 16 may a number have more than 4,300 digits.
            text = hex(value) if kind is int and abs(value) >> 64 else repr(value)
        elif kind in _BRACKETS:
            parts, size = list[str](), 0
            for key, inside in value.items() if kind is dict else enumerate(value):
                inner = replace(use, name=f"{use.name}[{key!r:.40}]")
                with self.problems.collect():
                    parts.append(f"{self._literal(key, inner, item, depth + 1)}: " if kind is dict else "")
                    parts[-1] += self._literal(inside, inner, item, depth + 1)
                    size += len(parts[-1])
                if size > _MAX_CHARS:
                    break
            text = ", ".join(sorted(parts) if kind in (set, frozenset) else parts)
            text = _BRACKETS[kind].format(text) if value or kind in (list, dict) else f"{kind.__name__}()"
        elif (made := _expression(value)) is not None:
            text = f"_{made}"
            module = made.partition(".")[0]
            self.imports[f"import {module} as _{module}"] = module
        elif depth and kind not in _PLAIN:
            text = self._refer(value, use, item)
        else:
            raise use.is_a(value)
        if len(text) > _MAX_CHARS:
            raise use.cannot("its text has more than 1 MB", "write it to a file of the project and read that")
        self.values += [use.name] * (depth == 0)
        return text

    def _refer(self, value: Any, use: _Use, item: _Item) -> str:
        if type(value) in _PLAIN:
            return self._literal(value, use, item)
        if id(value) not in self.names:
            own = getattr(value, "__name__", None)
            free = f"_{re.sub('[^0-9a-zA-Z]+', '_', use.name)}_{len(self.names)}"
            self.bind(own if isinstance(own, str) and use.scope.get(own) is value else free, value, use)
        item.now.add(self.names[id(value)])
        return self.names[id(value)]

    def _define(self, name: str, value: Any, use: _Use, item: _Item) -> None:
        raw = undecorated(value)
        functions = [raw] if raw else methods(value)
        own, qualname = (raw.__code__.co_name, raw.__qualname__) if raw else (value.__name__, value.__qualname__)
        maker, scope = f"_make_{name}" * ("<locals>" in qualname), functions[0].__globals__ if functions else use.scope
        if "." in qualname.rpartition("<locals>.")[2] or own == "<lambda>":
            raise use.cannot(f"it is no function of its own, but {qualname}", "write a `def` that does the same")
        if not maker and (own != name or scope.get(own, value) is not value):
            raise use.cannot(f"it is {own!r} renamed, wrapped or defined again", "use one name, and functools.wraps")
        cells = [pair for f in functions for pair in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)]
        if CellType() in (cell for _, cell in cells):
            raise use.cannot("its closure is not complete", "call the function around it to the end before")
        # What stands for the function itself is there as soon as it is defined.
        held = {word: cell.cell_contents for word, cell in cells if word != "__class__"}
        held = {word: item for word, item in held.items() if word != own or not (item is value or item is raw)}
        part, text = self._find(own, functions, replace(use, scope=scope), maker, [*held])
        decorated = bool(part.node.decorator_list)
        known = decorated if value is not raw else not (decorated and maker and use.name != own)
        if raw and (not known or hasattr(value, "dispatch")):
            raise use.cannot("a call made it, which its text does not show", "use a decorator, with functools.wraps")
        self._submodules(text, scope)
        item.now, item.later = names_used(_POSTPONE * self.postponed + text, maker)
        # What a function sets itself may be set before it is read.
        item.later -= part.declared(ast.Global) - scope.keys()
        words = sorted(item.now | item.later | held.keys())
        uses = {word: _Use(word, f"{own} ({part.place(word)})", scope) for word in words}
        lost = {word: "its value was only there while the function around ran" for word in item.now & part.around}
        lost |= {word: "it is changed by `nonlocal`" for word in held.keys() & part.declared(ast.Nonlocal)}
        for word, why in lost.items():
            self.problems.found.append(str(uses[word].cannot(why, "use a dict, and in the body")))
        self.todo += [uses[word] for word in words if word not in lost and word not in held]
        given = []
        for word, inner in held.items():
            with self.problems.collect():
                given.append(f"{word}={self._refer(inner, uses[word], item)}")
        item.text = text + f"{name} = {maker}({', '.join(given)})\n" * bool(maker)
        self._attributes(name, value, replace(use, scope=scope), item)

    def _attributes(self, name: str, value: Any, use: _Use, item: _Item) -> None:
        # They may have been changed since the text was run.
        for key, held in vars(value).items() if isinstance(value, (type, FunctionType)) else ():
            inner = replace(use, name=f"{use.name}.{key}")
            late = isinstance(held, FunctionType) and held.__globals__ is use.scope and key not in item.text
            with self.problems.collect():
                if late and held.__code__.co_filename != "<string>" and key != "__wrapped__":
                    raise inner.cannot("it was added later", "write it where the rest is defined")
                if type(held) in (*_PLAIN, *_BRACKETS) and not key.startswith("_"):
                    item.text += f"{name}.{key} = {self._literal(held, inner, item)}\n"

    def _find(self, own: str, functions: list[Any], use: _Use, maker: str, free: list[str]) -> tuple[Definition, str]:
        codes = [function.__code__ for function in functions]
        cells = (file for file, entry in linecache.cache.items() if entry[1:2] == (None,))
        files = [code.co_filename for code in codes] or [str(use.scope.get("__file__")), *cells]
        future = any(code.co_flags & FUTURE for code in codes)
        self.postponed |= future
        found: dict[str, Definition] = {}
        texts = {file: "".join(linecache.getlines(file, use.scope)) for file in files}
        for part in [part for file, text in texts.items() for part in definitions(file, text)]:
            whole = isinstance(part.node, ast.ClassDef)
            if part.node.name == own and (whole or (codes and part.line == codes[0].co_firstlineno)):
                text = part.module(maker, free, None if whole else functions[0])
                if part.holds(text, codes, FUTURE * future):
                    found[text] = part
        history: Any = use.scope.get("In")  # a notebook's cells, in the order in which they were run
        ran = [text for cell in history for text in found if text.strip() in str(cell)] if type(history) is list else []
        found = {ran[-1]: found[ran[-1]]} if ran else found
        if len(found) != 1:
            why = "several cells define it" if found else "its text was changed since, or is kept nowhere"
            raise use.cannot(why, "define it in a file, or in one cell without %%magic, and run that")
        return next((part, text) for text, part in found.items())

    def _submodules(self, text: str, scope: dict[str, Any]) -> None:
        """Import what `import package.module` loads: the name `package` alone does not say it."""
        for word, *attributes in (chain.split(".") for chain in re.findall(r"\w+(?:\.\w+)+", text)):
            for end in range(1, len(attributes) + 1) if isinstance(scope.get(word), ModuleType) else ():
                path = ".".join([scope[word].__name__, *attributes[:end]])
                if importable(path):
                    self.imports[f"import {path}"] = path


def _expression(value: Any) -> str | None:
    """Return what makes a value that the standard library has a short text for, None for any other."""
    if isinstance(value, PurePath):
        concrete = "Path" if isinstance(value, Path) else type(value).__name__
        return f"pathlib.{concrete}({str(value)!r})"
    if type(value) is logging.Logger:
        return f"logging.getLogger({value.name!r})"
    if type(value) is re.Pattern:
        return f"re.compile({value.pattern!r}, {int(value.flags)})"
    return None
