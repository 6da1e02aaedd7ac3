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
            RuntimeError: called in the loop's own thread, which would wait for itself.
        """
        if self._is_here():
            raise RuntimeError("What waits for the emulator's state was called in the thread that owns it.")
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

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False  # this thread has no loop
