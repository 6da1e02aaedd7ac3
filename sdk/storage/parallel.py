"""Parallel requests to a store or a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_parallel(call: Callable[[_T], _R], items: Iterable[_T], threads: int = 16) -> list[_R]:
    """Call a function for each item in parallel, and return the results in order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(call, items))
