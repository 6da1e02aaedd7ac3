"""Which strategies of tf.distribute a program mentions: read from its source, nothing is imported."""

from __future__ import annotations

import ast

PARAMETER_SERVER = "ParameterServerStrategy"
# Every task holds the whole model, and all of them take each step together.
SYNCHRONOUS = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "TPUStrategy")
_KNOWN = (*SYNCHRONOUS, PARAMETER_SERVER, "CentralStorageStrategy", "OneDeviceStrategy")


def strategies_in(source_text: str) -> tuple[str, ...]:
    """Return the strategies that a module mentions, each once, in their order; nothing for text that is not Python."""
    try:
        tree = ast.parse(source_text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return strategies_of(tree)


def strategies_of(tree: ast.AST) -> tuple[str, ...]:
    places: dict[str, tuple[int, int]] = {}
    for node in ast.walk(tree):
        for name in _names(node):
            places[name] = min(places.get(name, (node.lineno, node.col_offset)), (node.lineno, node.col_offset))  # type: ignore[attr-defined]
    return tuple(sorted(places, key=lambda name: places[name]))


def _names(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        return (node.attr,) if node.attr in _KNOWN else ()
    if isinstance(node, ast.Name):
        return (node.id,) if node.id in _KNOWN else ()
    if isinstance(node, ast.ImportFrom):
        return tuple(alias.name for alias in node.names if alias.name in _KNOWN)
    return ()
