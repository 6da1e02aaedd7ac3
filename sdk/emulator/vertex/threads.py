"""Runs work in the thread that owns the emulator's state, for those that have a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from typing import TypeVar

from ...errors import PodliftError

T = TypeVar("T")

_ALIVE_S = 1.0


class StateThread:
    """Runs functions in the thread that owns the state: that of an event loop.

    Args:
        loop: it; its own thread must not use this object.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises.

        Raises:
            PodliftError: the loop has ended.
        """
        future: Future[T] = Future()

        def step() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # it is raised where it was asked for
                future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(step)
        except RuntimeError:
            raise PodliftError("The emulator has ended.") from None
        while True:
            try:
                return future.result(_ALIVE_S)
            except NotYetError:
                if not self._loop.is_running():
                    raise PodliftError("The emulator has ended.") from None
