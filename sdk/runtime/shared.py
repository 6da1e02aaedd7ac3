"""An immutable value that threads and signal handlers replace as a whole, without a lock.

A lock does not help: a handler that interrupts its holder would wait for ever, and with a re-entrant lock the holder would
overwrite what the handler wrote. Here every version has one successor. `dict.setdefault` is atomic: of two values that are
made from the same version, one becomes the successor, and the other is made again from that one. No change is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Version(Generic[T]):
    """One value, and its successor once there is one."""

    __slots__ = ("_next", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self._next: dict[str, Version[T]] = {}

    def newest(self) -> Version[T]:
        version = self
        while version._next:
            version = version._next["next"]
        return version

    def succeed(self, value: T) -> Version[T] | None:
        """Make this value the successor; None if there is another one already."""
        new = Version(value)
        return new if self._next.setdefault("next", new) is new else None


class Shared(Generic[T]):
    """The newest version of a value."""

    def __init__(self, value: T) -> None:
        # May lag behind for a moment, if two threads set it at once: `newest` goes on from there.
        self._known = Version(value)

    @property
    def value(self) -> T:
        return self._known.newest().value

    def swap(self, change: Callable[[T], T]) -> T:
        """Replace the value by what `change` makes of it, and return that; `change` may be called several times."""
        while True:
            version = self._known.newest()
            new = version.succeed(change(version.value))
            if new is not None:
                self._known = new
                return new.value
