"""The files of a bundle as Python modules: which files a name refers to, and which modules each of them imports."""

from __future__ import annotations

import ast
import importlib.machinery
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeGuard

from ...errors import InputError
from ...runtime import cells
from ..entry import LocatedEntry

Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# `u"__main__"` too, which ast.unparse writes with its u.
_MAIN_TESTS = tuple(
    test for text in ("'__main__'", "u'__main__'") for test in (f"__name__ == {text}", f"{text} == __name__")
)


@dataclass(frozen=True)
class Import:
    """`import name`, or `from name import names`."""

    name: str
    line: int
    names: tuple[str, ...] = ()

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


class Program:
    """The modules of an entry's bundle; `members` are its paths, with "/" at the end for empty folders."""

    def __init__(self, entry: LocatedEntry, members: Iterable[str]) -> None:
        self.entry = entry
        self.files = {path for path in members if not path.endswith("/")}
        self.folders = {".", *(path.rstrip("/") for path in members if path.endswith("/"))}
        waiting = {path.rpartition("/")[0] for path in (*self.files, *self.folders)} - {""}
        while waiting:
            self.folders |= waiting
            waiting = {path.rpartition("/")[0] for path in waiting} - {""} - self.folders
        self.prefixes = [f"{root}/" if root else "" for root in entry.roots]
        self._texts: dict[str, bytes] = {}
        self._trees: dict[str, ast.Module | None] = {}

    def text(self, file: str) -> bytes:
        """Return the content of a file; raise an InputError if it cannot be read."""
        if file not in self._texts:
            path, generated = self.entry.project / file, self.entry.generated.get(file)
            try:
                self._texts[file] = path.read_bytes() if generated is None else generated.encode()
            except OSError as error:
                raise InputError(f"A file of the project cannot be read: {str(path)!r} ({error.strerror}).") from None
        return self._texts[file]

    def tree(self, file: str) -> ast.Module | None:
        """Return a module's tree, None if there is none for whatever reason: the module may never run."""
        if file not in self._trees:
            tree = None
            with suppress(InputError, SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text(file), filename=file)
            self._trees[file] = tree
        return self._trees[file]

    def checked_tree(self, file: str) -> ast.Module | None:
        """Return a module's tree; raise an InputError if Python cannot run it. None if it is only too deep for a tree."""
        text = self.text(file)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # ast.parse accepts more than Python does: a return outside a function.
                compile(text, file, "exec", dont_inherit=True)
        except SyntaxError as error:
            # A file that is not text at all has no line.
            where = self.location(file, error.lineno) if error.lineno else file
            raise InputError(f"{where}: syntax error: {error.msg}.") from None
        except ValueError as error:
            raise InputError(f"{file}: not Python source: {error}.") from None
        except (RecursionError, MemoryError):
            raise InputError(f"{file}: nested too deeply for Python to compile it. Split the expression.") from None
        return self.tree(file)

    def location(self, file: str, line: int | ast.AST) -> str:
        """Return a line for messages: "train.py:3", or "train.ipynb: cell 2 line 3"."""
        if isinstance(line, ast.AST):
            line = getattr(line, "lineno", 0)
        if not self.entry.notebook or file != self.entry.file:
            return f"{file}:{line}"
        for cell in cells.cells(self.entry.generated[file]):
            if 0 < line - cell.above <= len(cell.lines):
                return f"{self.entry.notebook}: cell {cell.number} line {line - cell.above}"
        return f"{self.entry.notebook}: all cells together"

    def find(self, statement: Import) -> list[str] | None:
        """Return the bundle's files that an import runs, None if the bundle does not have the module."""
        parts = statement.name.split(".")
        for prefix in self.prefixes:
            chain = [self.module(prefix + "/".join(parts[: i + 1])) for i in range(len(parts))]
            if all(chain):
                below = [self.module(f"{prefix}{'/'.join(parts)}/{item}") for item in statement.names]
                return [path for path in [*chain, *below] if path is not None and path in self.files]
        return None

    def find_sources(self, statement: Import) -> list[str]:
        """Return the Python files that an import runs; extension modules cannot be read."""
        return [path for path in self.find(statement) or [] if path.endswith(".py")]

    def has(self, name: str) -> bool:
        return self.find(Import(name, 0)) is not None

    def module(self, base: str) -> str | None:
        """Return a module's file, a package's folder if it has no __init__.py, None if there is neither."""
        suffixes = (".py", *importlib.machinery.EXTENSION_SUFFIXES)
        names = (f"{stem}{suffix}" for stem in (f"{base}/__init__", base) for suffix in suffixes)
        return next((name for name in names if name in self.files), base if base in self.folders else None)

    def is_regular(self, top: str) -> bool:
        """True if the bundle has a module, or a package with an `__init__.py`: it has precedence over installed ones."""
        return any(self.module(f"{prefix}{top}") in self.files for prefix in self.prefixes)

    def missing_part(self, name: str) -> str:
        """Return the path, below a root, of the first part of a dotted name that no root contains."""
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            if not any(self.module(prefix + "/".join(parts[:depth])) for prefix in self.prefixes):
                return "/".join(parts[:depth])
        return "/".join(parts)

    def find_anywhere(self, part: str) -> str | None:
        """Return a file or folder of the bundle that would be the module if its folder were on sys.path."""
        folders = sorted({"", *self.folders} - {"."})
        paths = (self.module(f"{folder}/{part}" if folder else part) for folder in folders)
        return next((path for path in paths if path), None)

    def left_out(self, statement: Import) -> tuple[str, str] | None:
        """Return a module and its file that the program would import from the project, but that is not in the bundle."""
        for name in (statement.name, *(f"{statement.name}.{item}" for item in statement.names if item != "*")):
            bases = [f"{prefix}{name.replace('.', '/')}" for prefix in self.prefixes]
            if any(self.module(base) for base in bases):
                continue
            for path in (f"{base}{end}" for base in bases for end in (".py", "/__init__.py")):
                if (self.entry.project / path).is_file():
                    return name, path
        return None

    def runs_as_main(self, file: str) -> bool:
        """True if the module's name is "__main__" when it runs."""
        return file == self.entry.file and self.entry.kind != "function"

    def imports(self, tree: ast.Module, file: str, *, everywhere: bool = False) -> Iterator[Import]:
        """Yield the imports that run whenever a module is imported; with `everywhere`, all that may run."""
        nodes = statements(tree.body) if everywhere else always_run(tree.body, self.runs_as_main(file))
        for node in nodes:
            yield from self.imports_of(node, file)

    def later_imports(self, tree: ast.Module, file: str) -> Iterator[Import]:
        """Yield the imports that run whenever one of the module's functions is called."""
        for node in statements(tree.body):
            if isinstance(node, Function):
                for inner in always_run(node.body, False):
                    yield from self.imports_of(inner, file)

    def imports_of(self, node: ast.AST, file: str) -> Iterator[Import]:
        """Yield the imports of one statement."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = self._package_of(file)
                if node.level > 1:
                    package = package[: -(node.level - 1)]
                base = ".".join([*package, base] if base else package)
            if base:
                yield Import(base, node.lineno, tuple(alias.name for alias in node.names))

    def _package_of(self, file: str) -> list[str]:
        prefix = next((prefix for prefix in self.prefixes if file.startswith(prefix)), None)
        return [] if prefix is None else file[len(prefix) :].split("/")[:-1]

    def relative_imports_of_script(self, tree: ast.Module) -> Iterator[str]:
        """Yield a mistake for each relative import of the script: only a module of a package can make one."""
        file = self.entry.file
        # The script's own folder is on the path because it is a script.
        roots = (prefix for prefix in self.prefixes if file.startswith(prefix) and "/" in file[len(prefix) :])
        root = max(roots, key=len, default="")
        parts = file[len(root) :].removesuffix(".py").removesuffix("/__main__").split("/")
        start = f" (podlift submit {'.'.join(parts)})" if all(part.isidentifier() for part in parts) else ""
        for node in always_run(tree.body, as_main=True):
            if isinstance(node, ast.ImportFrom) and node.level:
                yield (
                    f"{self.location(file, node)}: '{ast.unparse(node)}' works in a module of a package, not in a script. "
                    f"Next: import by the full name, or start it as a module{start}."
                )

    def reachable(self, trees: Mapping[str, ast.Module]) -> dict[str, ast.Module]:
        """Return the modules that may run: the given ones, and their imports in functions and under conditions."""
        modules, waiting = dict(trees), list(trees)
        while waiting:
            file = waiting.pop()
            for statement in self.imports(modules[file], file, everywhere=True):
                for path in self.find_sources(statement):
                    tree = None if path in modules else self.tree(path)
                    if tree is not None:
                        modules[path] = tree
                        waiting.append(path)
        return modules


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those inside them, without their expressions, which are most of a tree."""
    for node in body:
        yield node
        for name in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from statements(getattr(node, name, ()))


def always_run(body: list[ast.stmt], as_main: bool) -> Iterator[ast.stmt]:
    """Yield the statements that run in any case; statements under a handler, a context or a condition may fail on purpose."""
    for node in body:
        yield node
        if (isinstance(node, ast.Try) and not node.handlers) or (as_main and is_main_guard(node)):
            yield from always_run(node.body, as_main)


def inside(owner: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one, in their order, without those inside functions and classes."""
    # Without recursion: a sum of a thousand texts is a tree of that depth.
    waiting = [*ast.iter_child_nodes(owner)][::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += [*ast.iter_child_nodes(node)][::-1]


def is_main_guard(node: ast.AST) -> TypeGuard[ast.If]:
    """True for `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in _MAIN_TESTS


def names_bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node itself binds, "*" for a star import."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def names_used(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module uses, with the object of an attribute ("sys.path"), and the names that it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else node.attr
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
