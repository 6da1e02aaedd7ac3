"""Files of the repository as syntax trees, each parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from support import REPO

SOURCES = sorted((REPO / "sdk").rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def files_with(text: str) -> list[Path]:
    return [path for path in sorted((REPO / "tests").rglob("test_*.py")) if text in path.read_text()]
