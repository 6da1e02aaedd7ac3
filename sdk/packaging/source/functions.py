"""The source of a module that holds one function and everything it uses.

Functions and classes are copied as source text, plain values become literals, and everything that another process can import
is imported.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ...errors import InputError, Problems
from .definitions import HEADER, MAINS, DefinedObject, Definition, NameUse, importable, names_used, undecorated

_MAX_CHARS, _MAX_DEPTH = 1_000_000, 50
_POSTPONE = "from __future__ import annotations\n"
_PLAIN = (type(None), bool, int, float, str, bytes)
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ",)"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    dict: ("{", "}"),
}
# Names that every module has. IPython adds the last two to the builtins.
_EVERYWHERE = {*dir(builtins), "__file__", "__builtins__", "__annotations__"} - {"display", "get_ipython"}


@dataclass(frozen=True, kw_only=True)
class FunctionModule:
    """A function as a module; the same function gives the same text."""

    name: str  # of the function in the module
    text: str
    modules: tuple[str, ...]  # dotted names of the imported modules
    values: tuple[str, ...]  # names of the globals and closure variables with their values in the text
    file: str  # where the function was written; "" when that is not a file


def import_name(function: Callable[..., Any]) -> str | None:
    """Return "package.module:function" for a function that other processes can import, else None."""
    raw = undecorated(function)
    module = None if raw is None else sys.modules.get(raw.__module__ or "")
    if raw is None or module is None or vars(module).get(raw.__qualname__) is not function:
        return None
    name, file, spec = raw.__module__, getattr(module, "__file__", None), getattr(module, "__spec__", None)
    if name in MAINS and spec is not None and spec.origin == file:
        name = spec.name  # it was started with `python -m`
    if not file or name in MAINS:
        return None
    return f"{name}:{raw.__qualname__}"


def function_module(function: Callable[..., Any]) -> FunctionModule:
    """Return a plain Python function, decorated or not, and everything that it uses as one module.

    An InputError names everything that cannot be sent.
    """
    raw = _plain_function(function)
    name, scope, file = raw.__code__.co_name, raw.__globals__, raw.__code__.co_filename
    use = NameUse(name, "", scope)
    if "<locals>" in raw.__qualname__ and scope.get(name, function) is not function:
        name = f"{name}_entry"  # a global has its name
    writer = _ModuleWriter()
    with warnings.catch_warnings(), writer.problems.collect():
        warnings.simplefilter("ignore")
        writer.bind(name, function, use)
        writer.bind_pending()
    writer.problems.raise_if_any()
    return FunctionModule(
        name=name,
        text=writer.text(),
        modules=tuple(sorted(set(writer.imports.values()))),
        values=tuple(dict.fromkeys(writer.values)),
        file=file if Path(file).is_file() else "",
    )


def _plain_function(function: Any) -> FunctionType:
    """Return the function below decorators, or raise if a task cannot call `function`."""
    raw = undecorated(function)
    what, advice = _not_a_function(function) if raw is None else _not_plain(function, raw)
    if raw is None or what:
        name = getattr(function, "__qualname__", f"this {type(function).__qualname__}")
        raise InputError(f"This cannot be run: {name} is {what}. Next: give {advice}.")
    return raw


def _not_a_function(function: Any) -> tuple[str, str]:
    """Return the kind of `function`, and an argument that would be accepted."""
    if isinstance(function, functools.partial):
        arguments = ", ".join(f"{key!r}: ..." for key in function.keywords)
        return "a functools.partial", f"its function, and args={{{arguments}}}"
    if isinstance(function, MethodType):
        what = "a bound method"
    elif isinstance(function, type):
        what = "a class"
    elif inspect.isroutine(function):
        what = "a builtin"
    else:
        what = "an instance with __call__" if callable(function) else "not a function"
    return what, "a function that makes its values and calls this"


def _not_plain(function: Any, raw: FunctionType) -> tuple[str, str]:
    """Return why calling a function would not do its work, and an argument that would; "" if calling it works."""
    if raw.__name__ == "<lambda>":
        return "a lambda, which has no name", "one that is written with `def`"
    if inspect.isgeneratorfunction(function):
        return "a generator: calling it would run nothing", "one without `yield`"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "an async function: calling it would run nothing", "a plain function that calls asyncio.run()"
    return "", ""


@dataclass
class _Binding:
    """The text that binds one name of the module."""

    text: str = ""
    now: set[str] = field(default_factory=set)  # names that the text needs when it runs
    later: set[str] = field(default_factory=set)  # names that its functions need when they are called


class _ModuleWriter:
    """Collects the values that a function needs, under the names in its text, and puts them in order."""

    def __init__(self) -> None:
        self.problems = Problems()
        self.imports: dict[str, str] = {}  # module by import statement
        self.values: list[str] = []
        self._bindings: dict[str, _Binding] = {}
        self._values: dict[str, object] = {}  # by name; also keeps alive the objects that `_names` has by id
        self._names: dict[int, str] = {}  # by id of the value
        self._pending: list[NameUse] = []
        self._postponed = False  # whether annotations stay unevaluated

    def bind(self, name: str, value: Any, use: NameUse) -> None:
        """Make the module bind a name to a value."""
        if name in self._values:
            if not _is_same(self._values[name], value):
                raise use.cannot_send("the function uses two different things of this name", "rename one of them")
            return
        self._values[name] = value
        first_name = name if type(value) in _PLAIN else self._names.setdefault(id(value), name)
        if first_name != name:
            self._bindings[name] = _Binding(f"{name} = {first_name}\n", now={first_name})
            return
        if self._import(name, value, use):
            return
        binding = self._bindings[name] = _Binding()
        if isinstance(value, type) or undecorated(value):
            self._define(name, DefinedObject.of(value, use), binding)
        else:
            binding.text = f"{name} = {self._literal(value, use, binding)}\n"

    def bind_pending(self) -> None:
        """Bind the names that the definitions use, until no new ones come up."""
        while self._pending:
            use = self._pending.pop(0)
            if use.name in _EVERYWHERE and (use.name not in use.scope or use.name.startswith("__")):
                continue
            with self.problems.collect():
                self.bind(use.name, use.value(), use)

    def text(self) -> str:
        """Return the module, in an order in which everything that runs at its import finds the names it needs."""
        parts = list[str]()
        waiting = dict(reversed(self._bindings.items()))
        needs = {name: self._needed(binding.now) - {name} for name, binding in waiting.items()}
        while waiting:
            ready = next((name for name in waiting if not needs[name] & waiting.keys()), None)
            if ready is None:
                raise InputError(
                    f"These need each other while they are defined: {', '.join(waiting)}. Next: use a module for them."
                )
            parts.append(waiting.pop(ready).text)
        head = [HEADER, _POSTPONE if self._postponed else "", *sorted(self.imports), ""]
        return "\n".join([*head, "\n\n".join(parts)])

    def _needed(self, names: set[str]) -> set[str]:
        """Return the bindings that must exist before these names are used, because using a name may call its value."""
        needed = set[str]()
        new = names & self._bindings.keys()
        while new:
            needed |= new
            new = {word for name in new for word in self._bindings[name].now | self._bindings[name].later}
            new = (new & self._bindings.keys()) - needed
        return needed

    def _import(self, name: str, value: Any, use: NameUse) -> bool:
        """Import a value if other processes can; return whether they can."""
        own_name = str(getattr(value, "__name__", getattr(value, "name", name)))
        module = importable(own_name) if isinstance(value, ModuleType) else None
        if module is not None and "._" not in own_name:
            self.imports[f"import {own_name}" if own_name == name else f"import {own_name} as {name}"] = own_name
            return True
        origin = own_name if module is not None else str(getattr(value, "__module__", None) or type(value).__module__)
        package = origin.partition(".")[0]
        if type(value) in _PLAIN or package in MAINS:
            return False
        if type(value) in _BRACKETS:
            # A container is shared with a module only if the function uses that module's globals.
            shared = importable(str(use.scope.get("__name__", "")))
            if shared is None or vars(shared) is not use.scope:
                return False
        # A lazy module, such as TensorFlow's `keras`, is a stand-in: importers may hold the real one.
        origins = _importable_names((value,) if module is None else (value, module), {name, own_name})
        if not origins:
            return False
        # Public names last longer than private ones, and names in the value's own package longer than others.
        path, key = min(
            origins, key=lambda at: ("._" in f".{at[0]}", at[0].partition(".")[0] != package, at[0].count("."), at)
        )
        self.imports[f"from {path} import {key}" if key == name else f"from {path} import {key} as {name}"] = path
        return True

    def _literal(self, value: Any, use: NameUse, binding: _Binding, depth: int = 0) -> str:
        """Return an expression that gives an equal value; the names that it needs go to `binding`."""
        if depth > _MAX_DEPTH:
            raise use.cannot_send(f"it is more than {_MAX_DEPTH} deep, or holds itself", "make it inside the function")
        kind = type(value)
        constructor = _constructor(value)
        if kind is int:
            # Only in base 16 may a number have more than 4,300 digits.
            text = hex(value) if abs(value) >> 64 else repr(value)
        elif kind in _PLAIN and not (kind is float and not math.isfinite(value)):
            text = repr(value)
        elif kind in _BRACKETS:
            text = self._container(value, use, binding, depth)
        elif constructor:
            module = constructor.partition(".")[0]
            self.imports[f"import {module} as _{module}"] = module
            text = f"_{constructor}"
        elif depth and kind is not float:
            text = self._reference(value, use, binding)
        else:
            raise use.cannot_send_value(value)
        if len(text) > _MAX_CHARS:
            raise use.cannot_send("its text is longer than 1 MB", "write it to a file of the project and read that")
        if depth == 0:
            self.values.append(use.name)
        return text

    def _container(self, value: Any, use: NameUse, binding: _Binding, depth: int) -> str:
        kind = type(value)
        if not value and kind not in (list, dict):
            return f"{kind.__name__}()"
        parts, size = list[str](), 0
        for key, item in value.items() if kind is dict else enumerate(value):
            inner = replace(use, name=f"{use.name}[{key!r:.40}]")
            with self.problems.collect():
                text = f"{self._literal(key, inner, binding, depth + 1)}: " if kind is dict else ""
                text += self._literal(item, inner, binding, depth + 1)
                parts.append(text)
                size += len(text)
            if size > _MAX_CHARS:
                break
        if kind in (set, frozenset):
            parts.sort()
        start, end = _BRACKETS[kind]
        return f"{start}{', '.join(parts)}{end}"

    def _reference(self, value: Any, use: NameUse, binding: _Binding) -> str:
        """Return a name that the module binds to a value, or a literal."""
        if type(value) in _PLAIN:
            return self._literal(value, use, binding)
        if id(value) not in self._names:
            name = getattr(value, "__name__", None)
            if not isinstance(name, str) or use.scope.get(name) is not value:
                name = f"_{re.sub('[^0-9a-zA-Z]+', '_', use.name)}_{len(self._names)}"
            self.bind(name, value, use)
        name = self._names[id(value)]
        binding.now.add(name)
        return name

    def _define(self, name: str, subject: DefinedObject, binding: _Binding) -> None:
        """Bind a name to a function or a class by its source text."""
        subject.check_name(name)
        closure = subject.closure()
        # An inner function is defined inside a function again, with the closure's values as its arguments.
        maker = f"_make_{name}" if subject.is_local else ""
        definition, text = subject.find(maker, closure)
        self._postponed = self._postponed or subject.postpones_annotations
        subject.check_decorators(definition)
        self._import_submodules(text, subject.use.scope)
        binding.now, binding.later = names_used(_POSTPONE + text if self._postponed else text, maker)
        # A global that the function sets itself may be set before it is read.
        binding.later -= definition.declared(ast.Global) - subject.use.scope.keys()
        uses = {
            word: NameUse(word, f"{subject.name} ({definition.location(word)})", subject.use.scope)
            for word in sorted(binding.now | binding.later | closure.keys())
        }
        lost_names = self._report_lost(definition, uses, binding, closure)
        self._pending += [use for word, use in uses.items() if word not in lost_names and word not in closure]
        arguments = list[str]()
        for word, value in closure.items():
            with self.problems.collect():
                arguments.append(f"{word}={self._reference(value, uses[word], binding)}")
        binding.text = text
        if maker:
            binding.text += f"{name} = {maker}({', '.join(arguments)})\n"
        self._set_attributes(name, subject, binding)

    def _report_lost(
        self, definition: Definition, uses: dict[str, NameUse], binding: _Binding, closure: Iterable[str]
    ) -> set[str]:
        """Report the lost names of an enclosing function; return them."""
        changed = definition.declared(ast.Nonlocal) & {*closure}
        gone = (binding.now & definition.around) - changed
        for word in sorted(gone):
            error = uses[word].cannot_send(
                "its value existed only while the enclosing function ran", "use it in the body, which keeps it"
            )
            self.problems.add(str(error))
        for word in sorted(changed):
            error = uses[word].cannot_send("it is changed by `nonlocal`", "keep the value in a dict")
            self.problems.add(str(error))
        return gone | changed

    def _set_attributes(self, name: str, subject: DefinedObject, binding: _Binding) -> None:
        """Set the attributes that may have been changed since the text ran."""
        use = subject.use
        if not isinstance(subject.value, (type, FunctionType)):
            return
        for key, value in vars(subject.value).items():
            inner = replace(use, name=f"{use.name}.{key}")
            with self.problems.collect():
                if (
                    isinstance(value, FunctionType)
                    and value.__globals__ is use.scope
                    and value.__code__.co_filename != "<string>"
                    and key not in binding.text
                    and key != "__wrapped__"
                ):
                    raise inner.cannot_send("it was added later", "write it where the rest is defined")
                if type(value) in (*_PLAIN, *_BRACKETS) and not key.startswith("_"):
                    binding.text += f"{name}.{key} = {self._literal(value, inner, binding)}\n"

    def _import_submodules(self, text: str, scope: dict[str, object]) -> None:
        """Import the submodules that a text uses: the name `package` alone does not load `package.module`."""
        for dotted in re.findall(r"\w+(?:\.\w+)+", text):
            word, *attributes = dotted.split(".")
            if isinstance(module := scope.get(word), ModuleType):
                path = module.__name__
                for attribute in attributes:
                    path = f"{path}.{attribute}"
                    if importable(path):
                        self.imports[f"import {path}"] = path


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) in _PLAIN and type(other) is type(one) and bool(one == other))


def _importable_names(values: tuple[Any, ...], names: set[str]) -> list[tuple[str, str]]:
    """Return the modules, with the name in each, from which other processes can import one of the values."""
    origins = []
    for path in list(sys.modules):
        module = importable(path)
        if module is not None:
            scope = vars(module)
            origins += [(path, key) for key in names if key in scope and any(scope[key] is value for value in values)]
    return origins


def _constructor(value: Any) -> str:
    """Return the call that makes a path, a logger or a pattern, "" for any other value."""
    if isinstance(value, PurePath):
        concrete = "Path" if isinstance(value, Path) else type(value).__name__
        return f"pathlib.{concrete}({str(value)!r})"
    if type(value) is logging.Logger:
        return f"logging.getLogger({value.name!r})"
    if type(value) is re.Pattern:
        return f"re.compile({value.pattern!r}, {int(value.flags)})"
    return ""
