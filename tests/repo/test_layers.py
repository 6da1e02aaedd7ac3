"""The arrows of the package point one way: the imports that each layer may have, in one list without exceptions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from sources import SOURCES, nodes_of, tree_of
from support import REPO

import sdk

pytestmark = pytest.mark.xdist_group("imports")

# A row may import the rows before it and itself; two names of one row never import each other.
LAYERS = [
    ("interrupts", "text"),
    ("status",),
    ("errors",),
    ("ids", "clock", "logs"),
    ("tracebacks",),
    ("hardware",),
    ("job",),
    ("checks",),
    ("storage",),
    ("records",),
    ("process",),
    ("checkpoint",),
    ("model_registry",),
    ("runtime",),
    ("execution",),
    ("packaging",),
    ("backends",),
    ("planning",),
    ("ui", "exports"),
    ("launch",),
    ("run",),
    ("api",),
    ("schedules", "upkeep", "preflight", "drill"),
    ("sweeps",),
    ("emulator",),
    ("cli", "testing"),
    ("__main__",),
]
RANK = {name: number for number, row in enumerate(LAYERS) for name in row}
PURE = ("hardware", "job", "checks")
# Of a backend: its options, and the checks that know them.
PURE_OF_BACKENDS = re.compile(r"sdk\.backends\.\w+\.(options|checks)\b.*|sdk\.backends\.vertex\.job\.body")
IMPURE = {"os", "time", "random", "subprocess", "socket", "shutil", "tempfile", "secrets", "io", "pathlib.Path"}
# How a module is named for `importlib` or `python -m`.
NAMED = re.compile(r"(\.{1,3}|sdk\.)([a-z_]\w*(?:\.[a-z_]\w*)*)(?::\w+)?")


def module_of(path: Path) -> str:
    parts = list(path.relative_to(REPO).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def room(module: str) -> str:
    """The part of the package that a module belongs to; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def _absolute(path: Path, level: int, name: str) -> str:
    package = path.relative_to(REPO).parts[:-1]
    return ".".join([*package[: len(package) - level + 1], *filter(None, [name])]) if level else name


def _named(path: Path, text: str) -> str | None:
    """The module of podlift that a string names, if it names one."""
    match = NAMED.fullmatch(text)
    if match is None:
        return None
    prefix, name = match.groups()
    name = _absolute(path, len(prefix), name) if prefix[0] == "." else f"sdk.{name}"
    return name if name in MODULES else None


def _is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@cache
def imports_of(path: Path, *, by: str = "name") -> frozenset[str]:
    """Modules of podlift that a file imports, at any depth.

    Args:
        path: the file.
        by: "name": by a statement, or by a string that names one; "statement": without imports for a type checker.
    """
    found: set[str] = set()
    nodes: Iterable[ast.AST] = nodes_of(path)
    if by == "statement":
        tops = [node for node in tree_of(path).body if not _is_for_type_checkers(node)]
        nodes = chain.from_iterable(map(ast.walk, tops))
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node.level, node.module or "")
            for alias in node.names:
                each = f"{base}.{alias.name}"
                # The names of the package itself come from the top of it.
                from_above = base == "sdk" and each not in MODULES and alias.name not in ("__version__", "__all__")
                found.add("sdk.api" if from_above else each if each in MODULES else base)
        elif by == "name" and isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {named} if (named := _named(path, node.value)) else set()
    return frozenset(name for name in found if name.split(".")[0] == "sdk")


def test_every_part_of_the_package_has_a_layer_and_every_layer_a_part() -> None:
    assert {room(module) for module in MODULES} - {""} == set(RANK)


def test_no_module_imports_from_a_layer_above_its_own_or_from_beside_it() -> None:
    wrong = {
        (module, name)
        for module in MODULES.keys() - {"sdk"}
        for name in imports_of(MODULES[module])
        if room(name) not in ("", room(module)) and RANK[room(name)] >= RANK[room(module)]
    }
    assert wrong == set()


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules in which each one reaches each other one."""
    reach = {module: set(found) for module, found in arrows.items()}
    for between in reach:
        for found in reach.values():
            if between in found:
                found |= reach[between]
    each = {frozenset({module, *(one for one in found if module in reach[one])}) for module, found in reach.items()}
    return [set(circle) for circle in each if len(circle) > 1]


def test_no_modules_import_each_other_in_a_circle_of_any_length() -> None:
    # A package's own __init__ may offer names of its modules, and they may use each other. A string that names a module
    # starts a process.
    arrows = {
        module: {
            name
            for name in imports_of(path, by="statement")
            if name in MODULES and name not in ("sdk", module) and not name.startswith(f"{module}.")
        }
        for module, path in MODULES.items()
    }
    assert circles(arrows) == []


def test_a_circle_of_three_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


def test_strings_that_name_a_module_are_read_as_imports() -> None:
    backends = REPO / "sdk" / "backends" / "__init__.py"
    assert {"sdk.backends.local.backend", "sdk.backends.vertex.options"} <= imports_of(backends)
    assert "sdk.process.redirect.proxy" in imports_of(REPO / "sdk" / "process" / "redirect" / "start.py")
    assert _named(backends, "sdk.nowhere") is None
    assert _named(backends, ".errors") is None


def test_the_pure_layers_touch_no_disk_clock_or_environment() -> None:
    for module in sorted(name for name in MODULES if room(name) in PURE or PURE_OF_BACKENDS.fullmatch(name)):
        tree = tree_of(MODULES[module])
        imported, called = set(), set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
        assert imported & IMPURE == set(), module
        assert called & {"open", "print", "input", "exec", "eval"} == set(), module


def test_no_function_of_a_package_has_the_name_of_its_module() -> None:
    """Importing `package.name` replaces `name` in the package, depending on the order of imports."""
    twice = []
    for init in sorted((REPO / "sdk").rglob("__init__.py")):
        tree = tree_of(init)
        defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        modules = {path.stem for path in init.parent.glob("*.py")} | {
            path.parent.name for path in init.parent.glob("*/__init__.py")
        }
        twice += [f"{init.parent.relative_to(REPO)}: {name}" for name in sorted(defined & modules)]
    assert not twice


def test_no_package_has_the_name_of_a_public_function() -> None:
    """`sdk.name` would be the package, depending on the order of imports."""
    packages = {path.parent.name for path in (REPO / "sdk").glob("*/__init__.py")}
    assert packages & set(sdk.__all__) == set()
