"""Under which markers a package of a lock file is wanted: those of every way that leads to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from itertools import combinations
from typing import TypeVar

from packaging.markers import Marker

Node = TypeVar("Node", bound=Hashable)
# Markers that hold together; none of them: always.
Together = frozenset[str]

_COMPARISON = re.compile(r"(\w+) ?(<|>=|<=|>|==|!=) ?['\"]([^'\"]*)['\"]")
_OPPOSITES = {"<": ">=", ">=": "<", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}


def conditions(
    starts: Iterable[Node], edges: Callable[[Node], Iterable[tuple[Node, str]]]
) -> dict[Node, set[Together]]:
    """Return, for each node that can be reached, the sets of markers one of which must hold.

    Args:
        starts: nodes that are always wanted.
        edges: (node, marker) for each that a node leads to; "" where it always does.
    """
    found: dict[Node, set[Together]] = {node: {frozenset()} for node in starts}
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        for other, marker in edges(node):
            ways = {way | {marker} if marker else way for way in found[node]}
            known = found.setdefault(other, set())
            new = _least(known | ways)
            if new != known:
                found[other] = new
                waiting.append(other)
    return found


def joined(ways: Iterable[Together]) -> str:
    """Return the marker that says what `conditions` found, "" for always."""
    least = _least(set(ways))
    if frozenset() in least:
        return ""
    texts = sorted(" and ".join(f"({marker})" for marker in sorted(way)) for way in least)
    return str(Marker(" or ".join(f"({text})" for text in texts)))


def _least(ways: set[Together]) -> set[Together]:
    """Drop each way that asks for all that another one asks for, and more; join two that differ in a marker's opposite."""
    while True:
        ways = {way for way in ways if not any(other < way for other in ways)}
        pairs = ((one, other) for one, other in combinations(sorted(ways, key=sorted), 2) if _opposite(one ^ other))
        pair = next(pairs, None)
        if pair is None:
            return ways
        ways = ways - set(pair) | {pair[0] & pair[1]}


def _opposite(markers: Together) -> bool:
    """True for two comparisons of which always one holds."""
    found = [match for marker in sorted(markers) if (match := _COMPARISON.fullmatch(marker))]
    if len(markers) != 2 or len(found) != 2:
        return False
    one, other = found
    return (one[1], one[3]) == (other[1], other[3]) and _OPPOSITES.get(one[2]) == other[2]
