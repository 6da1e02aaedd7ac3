"""A third backend fits through the seam: no module tests a name of a backend, and only the registry imports one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from sources import nodes_of
from support import REPO
from test_layers import MODULES, imports_of

from sdk import backends
from sdk.job import option_classes

pytestmark = pytest.mark.xdist_group("imports")

NAMES = {*backends.names(), "kubernetes"}
TARGETS = {
    *(kind.__name__ for kind in option_classes.every().values()), "LocalBackend", "VertexBackend", "RayBackend", "Kubernetes",
}  # fmt: skip
OUTSIDE = {name: path for name, path in MODULES.items() if not name.startswith(("sdk.backends", "sdk.emulator"))}


def _names_backend(node: ast.AST) -> bool:
    """True for the name of a backend, or a tuple, list or set with one."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(map(_names_backend, node.elts))
    return isinstance(node, ast.Constant) and node.value in NAMES


def _names_class(node: ast.AST) -> bool:
    return any(getattr(each, "id", getattr(each, "attr", "")) in TARGETS for each in ast.walk(node))


def lines_that_ask(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines that ask which backend it is."""
    for node in nodes:
        if isinstance(node, ast.Compare):
            found = any(map(_names_backend, [node.left, *node.comparators])) or (
                isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)) and _names_class(node.comparators[0])
            )
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            found = _names_class(node.args[1])
        elif isinstance(node, ast.MatchValue):
            found = _names_backend(node.value)
        elif isinstance(node, ast.MatchClass):
            found = _names_class(node.cls)
        else:
            found = "IN_CLOUD" in (getattr(node, "id", ""), getattr(node, "attr", ""))
        if found:
            yield node.lineno  # type: ignore[attr-defined]


def test_no_module_asks_which_backend_it_is() -> None:
    asking = [f"{path}:{line}" for path in OUTSIDE.values() for line in lines_that_ask(nodes_of(path))]
    assert asking == []


@pytest.mark.parametrize(
    "code",
    [
        "plan.backend == 'local'",
        "'vertex' != name",
        "plan.backend in ('vertex', 'kubernetes')",
        "'local' in row.backends",
        "name not in backends.IN_CLOUD",
        "isinstance(plan.target, Vertex)",
        "isinstance(plan.target, (str, policies.Local))",
        "type(target) is Local",
        "match name:\n case 'local': pass",
        "match target:\n case Vertex(project=p): pass",
    ],
)
def test_every_way_to_ask_is_found(code: str) -> None:
    assert list(lines_that_ask(ast.walk(ast.parse(code))))


def test_only_the_registry_imports_a_backend() -> None:
    # The public names, and the types of the keywords, which are generated.
    everywhere = {"sdk", "sdk.backends", "sdk.planning.settings.keywords"}
    allowed = {
        "sdk.backends.local": everywhere,
        # The emulator stands in for Google Cloud, and `models` prints commands of its Model Registry.
        "sdk.backends.vertex": {*everywhere, "sdk.testing.vertex", "sdk.cli.emulator", "sdk.cli.models"},
        "sdk.backends.ray": everywhere,
        "sdk.backends.kubernetes": {*everywhere, "sdk.testing.kubernetes"},
    }
    assert allowed.keys() == {f"sdk.backends.{path.parent.name}" for path in REPO.glob("sdk/backends/*/__init__.py")}
    for backend, importers in allowed.items():
        found = {
            module
            for module, path in MODULES.items()
            if any(name == backend or name.startswith(f"{backend}.") for name in imports_of(Path(path)))
        }
        assert {name for name in found if not name.startswith((backend, "sdk.emulator"))} <= importers
        assert "sdk.backends" in found


# Also the service's names of machines, and its exit codes.
FILES = [
    "sdk/storage/gcs/download.py",
    *(str(path.relative_to(REPO)) for path in REPO.glob("sdk/execution/*.py")),
]
OF_VERTEX = re.compile(r"vertex|workerpool|cluster_spec|aiplatform|cloud_ml|\b13[49]\b", re.IGNORECASE)


def test_modules_of_a_container_name_nothing_of_the_service_that_runs_it() -> None:
    lines = [f"{file}: {line}" for file in FILES for line in (REPO / file).read_text().splitlines()]
    assert [line for line in lines if OF_VERTEX.search(line.partition(": ")[2])] == []
