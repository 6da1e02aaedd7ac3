"""The program's own modules: which files of the bundle a name means, and what each of them imports."""

from __future__ import annotations

import ast
import importlib.machinery
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeGuard

from ...errors import InputError
from ...runtime import cells
from ..entry import LocatedEntry


@dataclass(frozen=True)
class Import:
    """`import name`, or `from name import wanted`."""

    name: str
    line: int
    wanted: tuple[str, ...] = ()


class Program:
    """The files of a bundle as modules.

    Args:
        source: the entry.
        members: paths of the bundle, with "/"; those of empty folders end in it.
    """

    def __init__(self, source: LocatedEntry, members: Iterable[str]) -> None:
        self.source = source
        self.files = {path for path in members if not path.endswith("/")}
        self.folders = {".", *(path.rstrip("/") for path in members if path.endswith("/"))}
        waiting = {path.rpartition("/")[0] for path in (*self.files, *self.folders)} - {""}
        while waiting:
            self.folders |= waiting
            waiting = {path.rpartition("/")[0] for path in waiting} - {""} - self.folders
        self.prefixes = [f"{root}/" if root else "" for root in source.roots]
        self._texts: dict[str, bytes] = {}
        self._trees: dict[str, ast.Module | None] = {}

    def read(self, file: str) -> ast.Module | None:
        """Return a module's tree; None when Python can run it, but it is too deep for a tree.

        Raises:
            InputError: Python could not run it.
        """
        text = self.text(file)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # What ast.parse accepts may still be no program: a return outside a function.
                compile(text, file, "exec", dont_inherit=True)
        except SyntaxError as error:
            # What is no text at all has no line.
            where = self.place(file, error.lineno) if error.lineno else file
            raise InputError(f"{where}: syntax error: {error.msg}.") from None
        except ValueError as error:
            raise InputError(f"{file}: not Python source: {error}.") from None
        except (RecursionError, MemoryError):
            raise InputError(f"{file}: nested too deeply for Python to compile it. Split the expression.") from None
        return self.glance(file)

    def place(self, file: str, line: int) -> str:
        """Return a line for a sentence: "train.py:3", or "train.ipynb: cell 2 line 3"."""
        if not self.source.notebook or file != self.source.file:
            return f"{file}:{line}"
        for cell in cells.cells(self.source.generated[file]):
            if 0 < line - cell.above <= len(cell.lines):
                return f"{self.source.notebook}: cell {cell.number} line {line - cell.above}"
        return f"{self.source.notebook}: all cells together"

    def glance(self, file: str) -> ast.Module | None:
        """Return a module's tree; None when there is none, whatever the reason: it may never run."""
        if file not in self._trees:
            tree = None
            with suppress(InputError, SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text(file), filename=file)
            self._trees[file] = tree
        return self._trees[file]

    def text(self, file: str) -> bytes:
        """Return what a module holds.

        Raises:
            InputError: it cannot be read.
        """
        if file not in self._texts:
            where, written = self.source.project / file, self.source.generated.get(file)
            try:
                self._texts[file] = where.read_bytes() if written is None else written.encode()
            except OSError as error:
                raise InputError(f"A file of the project cannot be read: {str(where)!r} ({error.strerror}).") from None
        return self._texts[file]

    def find(self, wanted: Import) -> list[str] | None:
        """Return the bundle's files that an import runs, None if the bundle does not hold the module."""
        parts = wanted.name.split(".")
        for prefix in self.prefixes:
            chain = [self.module(prefix + "/".join(parts[: i + 1])) for i in range(len(parts))]
            if all(chain):
                below = [self.module(f"{prefix}{'/'.join(parts)}/{item}") for item in wanted.wanted]
                return [path for path in [*chain, *below] if path is not None and path in self.files]
        return None

    def module(self, base: str) -> str | None:
        """Return a module's file, its folder's name for a package without __init__.py, None when it is not there."""
        suffixes = (".py", *importlib.machinery.EXTENSION_SUFFIXES)
        names = (f"{stem}{suffix}" for stem in (f"{base}/__init__", base) for suffix in suffixes)
        return next((name for name in names if name in self.files), base if base in self.folders else None)

    def missing_part(self, name: str) -> str:
        """Return the path, below a root, of the first part of a dotted name that no root holds."""
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            if not any(self.module(prefix + "/".join(parts[:depth])) for prefix in self.prefixes):
                return "/".join(parts[:depth])
        return "/".join(parts)

    def elsewhere(self, part: str) -> str | None:
        """Return a file or folder of the bundle, at any depth, that would be the module if its folder were searched."""
        folders = sorted({"", *self.folders} - {"."})
        found = (self.module(f"{folder}/{part}" if folder else part) for folder in folders)
        return next((path for path in found if path), None)

    def left_out(self, wanted: Import) -> tuple[str, str] | None:
        """Return a module and its file that lies where the program would look for it, and is not in the bundle."""
        for name in (wanted.name, *(f"{wanted.name}.{item}" for item in wanted.wanted if item != "*")):
            bases = [f"{prefix}{name.replace('.', '/')}" for prefix in self.prefixes]
            if any(self.module(base) for base in bases):
                continue
            for path in (f"{base}{end}" for base in bases for end in (".py", "/__init__.py")):
                if (self.source.project / path).is_file():
                    return name, path
        return None

    def is_regular(self, top: str) -> bool:
        """True if the bundle has a module or a package with an `__init__.py`, before which nothing else counts."""
        return any(self.module(f"{prefix}{top}") in self.files for prefix in self.prefixes)

    def runs_guard(self, file: str) -> bool:
        """True if what a guard for "__main__" holds runs: `python -m` and a script do so, an imported module never does."""
        return file == self.source.file and self.source.kind != "function"

    def imports(self, tree: ast.Module, file: str, *, everywhere: bool = False) -> Iterator[Import]:
        """Yield the imports that run whenever the module is imported.

        Args:
            tree: the module.
            file: its path.
            everywhere: also those that may run: in functions, below conditions and handlers.
        """
        as_main = self.runs_guard(file)
        for node in statements(tree.body) if everywhere else _always_run(tree.body, as_main):
            yield from self.imports_of(node, file)

    def later_imports(self, tree: ast.Module, file: str) -> Iterator[Import]:
        """Yield the imports that run whenever one of the module's functions runs."""
        for node in statements(tree.body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for inner in _always_run(node.body, False):
                    yield from self.imports_of(inner, file)

    def imports_of(self, node: ast.AST, file: str) -> Iterator[Import]:
        """Yield what one statement of a file imports."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = self._package_of(file)[: None if node.level == 1 else -(node.level - 1)]
                base = ".".join([*package, *([base] if base else [])])
            if base:
                yield Import(base, node.lineno, tuple(alias.name for alias in node.names))

    def outside_packages(self, tree: ast.Module) -> Iterator[str]:
        """Yield a sentence for each import of a script that only a module of a package can make."""
        file = self.source.file
        # The script's own folder is on the path because it is a script.
        roots = (prefix for prefix in self.prefixes if file.startswith(prefix) and "/" in file[len(prefix) :])
        root = max(roots, key=len, default="")
        parts = file[len(root) :].removesuffix(".py").removesuffix("/__main__").split("/")
        start = f" (podlift submit {'.'.join(parts)})" if all(part.isidentifier() for part in parts) else ""
        for node in _always_run(tree.body, as_main=True):
            if isinstance(node, ast.ImportFrom) and node.level:
                yield (
                    f"{self.place(file, node.lineno)}: '{ast.unparse(node)}' works in a module of a package, and a "
                    f"script is none. Next: import by the full name, or start it as a module{start}."
                )

    def _package_of(self, file: str) -> list[str]:
        prefix = next((prefix for prefix in self.prefixes if file.startswith(prefix)), None)
        return [] if prefix is None else file[len(prefix) :].split("/")[:-1]


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those inside them, in the order of the text; their expressions are most of a tree."""
    for node in body:
        yield node
        for name in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from statements(getattr(node, name, ()))


def _always_run(body: list[ast.stmt], as_main: bool) -> Iterator[ast.stmt]:
    """Yield the statements of module level; those that a handler, a context or a condition guards may be meant to fail."""
    for node in body:
        yield node
        if (isinstance(node, ast.Try) and not node.handlers) or (as_main and is_main_guard(node)):
            yield from _always_run(node.body, as_main)


def is_main_guard(node: ast.AST) -> TypeGuard[ast.If]:
    """True for `if __name__ == "__main__":`."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and len(node.test.ops) == 1):
        return False
    sides = [node.test.left, *node.test.comparators]
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    return isinstance(node.test.ops[0], ast.Eq) and names == ["__name__"] and values == ["__main__"]
