"""Reads the program's own modules for what would fail at once: syntax errors and imports of what is not there."""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from ..errors import InputError, nearest
from .entry import Source

_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def check(source: Source, files: set[str]) -> None:
    """Read every module that the entry reaches inside the bundle.

    Args:
        source: the entry.
        files: paths of the bundle, with "/".

    Raises:
        InputError: syntax errors, imports of local modules that are in no bundle, a function that is not there.
    """
    problems: list[str] = []
    waiting, seen = [source.file], {source.file}
    while waiting:
        file = waiting.pop()
        try:
            tree = ast.parse((source.project / file).read_bytes(), filename=file)
        except SyntaxError as error:
            problems.append(f"{file}:{error.lineno}: syntax error: {error.msg}.")
            continue
        except ValueError as error:
            problems.append(f"{file}: not Python source: {error}.")
            continue
        if file == source.file and source.function:
            problems += _check_function(tree, source)
        for name, line, wanted in _imports(tree, file, source):
            found = _find(name, wanted, source, files)
            if not found and not _installed(name.partition(".")[0], source):
                problems.append(
                    f"{file}:{line} imports {name!r}: in no bundle, not installed, not in the standard library."
                )
            waiting += [path for path in found if path not in seen]
            seen.update(found)
    if problems:
        raise InputError(problems)


def _check_function(tree: ast.Module, source: Source) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    if source.function in names or "*" in names or any(isinstance(node, (ast.If, ast.Try)) for node in tree.body):
        return []
    functions = [name for name in names if not hasattr(builtins, name)] or ["nothing"]
    return [f"{source.file} has no function {source.function!r}. {nearest(source.function, functions)}"]


def _imports(tree: ast.Module, file: str, source: Source) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield (dotted name, line, names taken from it) for each import that runs when the module is imported."""
    for node in _always_run(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, ()
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = _package_of(file, source)[: None if node.level == 1 else -(node.level - 1)]
                base = ".".join([*package, *([base] if base else [])])
            if base:
                yield base, node.lineno, tuple(alias.name for alias in node.names)


def _always_run(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of module level; those guarded by a handler or a condition may be meant not to run."""
    for node in body:
        yield node
        if (
            (isinstance(node, ast.Try) and not any(_catches(handler) for handler in node.handlers))
            or isinstance(node, ast.With)
            or _is_main_guard(node)
        ):
            yield from _always_run(node.body)


def _is_main_guard(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and "__main__" in ast.dump(node.test)


def _catches(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(isinstance(n, ast.Name) and n.id in _CAUGHT for n in ast.walk(handler.type))


def _package_of(file: str, source: Source) -> list[str]:
    for root in source.roots:
        prefix = f"{root}/" if root else ""
        if file.startswith(prefix):
            return file[len(prefix) :].split("/")[:-1]
    return []


def _find(name: str, wanted: tuple[str, ...], source: Source, files: set[str]) -> list[str]:
    """Return the bundle's files that `import name` and `from name import wanted` run; none if it is not in the bundle."""
    for root in source.roots:
        prefix = f"{root}/" if root else ""
        parts = name.split(".")
        chain = [_module(prefix + "/".join(parts[: i + 1]), files) for i in range(len(parts))]
        if all(chain):
            below = [_module(f"{prefix}{'/'.join(parts)}/{item}", files) for item in wanted]
            return [path for path in [*chain, *below] if path is not None and path in files]
    return []


def _module(base: str, files: set[str]) -> str | None:
    """Return a module's file, its folder's name for a package without __init__.py, None when it is not there."""
    for path in (f"{base}.py", f"{base}/__init__.py"):
        if path in files:
            return path
    return base if any(path.startswith(f"{base}/") for path in files) else None


def _installed(top: str, source: Source) -> bool:
    """True if a task finds the module outside the bundle, as this process does with its own folder left out."""
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "sdk":
        return True
    inherited = {Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    ours = {Path.cwd().resolve(), source.project, *(source.project / root for root in source.roots)} - inherited
    search = [path for path in sys.path if path and Path(path).resolve() not in ours]
    for finder in sys.meta_path:
        path = search if finder is importlib.machinery.PathFinder else None
        if hasattr(finder, "find_spec") and finder.find_spec(top, path) is not None:
            return True
    return False
