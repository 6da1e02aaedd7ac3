"""Environment variables of a program: those that it sets for TensorFlow itself, and those that it reads and will not get."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ...checks import Finding
from .program import Import, Program, is_main_guard

# TF_CONFIG is read when a strategy is made, not at an import.
_OURS = re.compile(r"KERAS_BACKEND|TF_(?!CONFIG$)\w+|XLA_\w+|OMP_\w+")
_FRAMEWORKS = {"tensorflow", "keras", "tf_keras"}
_SHOWN = 10


def presets(program: Program, trees: Mapping[str, ast.Module]) -> list[Finding]:
    """Return a note for the variables that a program sets before TensorFlow is imported, and a warning for those set too late.

    Args:
        program: the bundle.
        trees: the modules that run for certain, by file.
    """
    order = _Order(program, trees)
    order.run()
    found = []
    if order.early:
        text = ", ".join(order.early[:_SHOWN]) + (
            f" and {len(order.early) - _SHOWN} more" if order.early[_SHOWN:] else ""
        )
        said = f"The program sets variables itself: {text}. Each task starts in a Python of its own, so that they take effect."
        found.append(Finding("note", said))
    for place, loaded in order.late:
        said = (
            f"{place} after {loaded} has imported TensorFlow or Keras: too late for what is read at the import. Next: set it "
            "above that line."
        )
        found.append(Finding("warning", said))
    return found


def lost(program: Program, trees: Mapping[str, ast.Module], dropped: Collection[str]) -> list[Finding]:
    """Return a warning for each variable that the program reads, and the caller has, and no task gets.

    Args:
        program: the bundle.
        trees: the program's modules by file.
        dropped: names of the variables that no task gets.
    """
    names = set(dropped)
    places: dict[str, str] = {}
    trees = {file: tree for file, tree in trees.items() if names and _touches(program, file)}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            for name in _reads(node):
                if name in names:
                    places.setdefault(name, program.place(file, getattr(node, "lineno", 0)))
    nodes = (node for tree in trees.values() for node in ast.walk(tree)) if places else ()
    own = {name for node in nodes if not _is_default(node) for name in _sets(node)}
    return [
        Finding("warning", f"{place} reads {name}, which is set here but is not passed on. Next: --env {name}.")
        for name, place in places.items()
        if name not in own
    ]


def _touches(program: Program, file: str) -> bool:
    return any(word in program.text(file) for word in (b"environ", b"getenv", b"putenv"))


@dataclass
class _Order:
    """Goes through a program's statements in the order in which they run, as far as reading can tell."""

    program: Program
    trees: Mapping[str, ast.Module]
    early: list[str] = field(default_factory=list)
    late: list[tuple[str, str]] = field(default_factory=list)
    _loaded: str = ""
    _seen: set[int] = field(default_factory=set)

    def run(self) -> None:
        source = self.program.source
        self._module(source.file)
        tree = self.trees.get(source.file)
        if tree is None:
            return
        functions = _functions(tree)
        if source.function in functions:
            self._body(functions[source.function], source.file, functions)
        # What nobody is seen to call may run at any time: it is named, and not judged.
        for file, other in self.trees.items():
            for function in _functions(other).values() if _touches(self.program, file) else ():
                if id(function) not in self._seen:
                    self._seen.add(id(function))
                    self.early += [
                        self._place(node, file, name) for node in ast.walk(function) for name in _presets(node)
                    ]

    def _module(self, file: str) -> None:
        tree = self.trees.get(file)
        if tree is not None and id(tree) not in self._seen:
            self._seen.add(id(tree))
            functions = _functions(tree)
            for node in tree.body:
                self._node(node, file, functions)

    def _body(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, file: str, functions: Mapping[str, _Function]
    ) -> None:
        if id(function) not in self._seen:
            self._seen.add(id(function))
            for node in function.body:
                self._node(node, file, functions)

    def _node(self, node: ast.AST, file: str, functions: Mapping[str, _Function]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for wanted in self.program.imports_of(node, file):
                self._import(wanted, self.program.place(file, wanted.line))
            return
        if is_main_guard(node) and not self.program.runs_guard(file):
            return
        for inner in ast.iter_child_nodes(node):
            self._node(inner, file, functions)
        for name in _presets(node):
            if self._loaded:
                self.late.append((self._place(node, file, name, "sets"), self._loaded))
            else:
                self.early.append(self._place(node, file, name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            self._body(functions[node.func.id], file, functions)

    def _import(self, wanted: Import, place: str) -> None:
        for path in self.program.find(wanted) or []:
            self._module(path)
        if not self._loaded and wanted.name.partition(".")[0] in _FRAMEWORKS:
            self._loaded = place

    def _place(self, node: ast.AST, file: str, name: str, verb: str = "") -> str:
        return " ".join(filter(None, (self.program.place(file, getattr(node, "lineno", 0)), verb, name)))


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module) -> dict[str, _Function]:
    return {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def _presets(node: ast.AST) -> list[str]:
    return [name for name in _sets(node) if _OURS.fullmatch(name)]


def _sets(node: ast.AST) -> Iterator[str]:
    """Yield the variables that one statement or call sets, where their names are written out."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _is_environ(node.value):
        yield from _text(node.slice)
    elif isinstance(node, ast.AugAssign) and _is_environ(node.target):
        yield from _keys(node.value)
    elif isinstance(node, ast.Call):
        called = _called(node)
        if called in ("environ.setdefault", "putenv"):
            yield from _text(*node.args[:1])
        elif called == "environ.update":
            for given in node.args:
                yield from _keys(given)
            yield from (word.arg for word in node.keywords if word.arg)


def _reads(node: ast.AST) -> Iterator[str]:
    """Yield the variables that an expression reads, where their names are written out."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environ(node.value):
        yield from _text(node.slice)
    elif isinstance(node, ast.Call) and (
        _is_default(node) or _called(node) in ("environ.get", "environ.pop", "getenv")
    ):
        yield from _text(*node.args[:1])
    elif (
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], (ast.In, ast.NotIn))
        and _is_environ(node.comparators[0])
    ):
        yield from _text(node.left)


def _is_default(node: ast.AST) -> bool:
    """True for a call that sets a variable where the caller has not."""
    return isinstance(node, ast.Call) and _called(node) == "environ.setdefault"


def _called(node: ast.Call) -> str:
    """Return "environ.get" for `os.environ.get(...)` and `environ.get(...)`, "getenv" for `os.getenv(...)`."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    if not isinstance(node.func, ast.Attribute):
        return ""
    return f"environ.{node.func.attr}" if _is_environ(node.func.value) else node.func.attr


def _is_environ(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _keys(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Dict):
        yield from _text(*(key for key in node.keys if key is not None))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        yield from (word.arg for word in node.keywords if word.arg)


def _text(*nodes: ast.AST) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
