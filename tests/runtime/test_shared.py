"""What threads and a signal's handler share is replaced as a whole, and no change is lost in any order of their steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from sdk.runtime.shared import Shared, Version


def orders(*lengths: int) -> list[tuple[int, ...]]:
    """Return every order of the steps of actors 0, 1, ... with these numbers of steps."""
    steps = [actor for actor, length in enumerate(lengths) for _ in range(length)]
    return sorted(set(itertools.permutations(steps)))


@pytest.mark.parametrize("order", orders(2, 2, 2))
def test_of_three_changes_none_is_lost_in_any_order_of_reading_and_replacing(order: tuple[int, ...]) -> None:
    first: Version[tuple[int, ...]] = Version(())

    def swapping(actor: int) -> Iterator[bool]:
        while True:
            version = first.newest()
            yield False
            if version.succeed((*version.value, actor)) is not None:
                yield True

    actors = [swapping(actor) for actor in range(3)]
    done = dict.fromkeys(range(3), False)
    # Then each repeats what it has to.
    for actor in [*order, *[each for each in range(3) for _ in range(6)]]:
        if not done[actor]:
            done[actor] = next(actors[actor])
    assert sorted(first.newest().value) == [0, 1, 2]


@pytest.mark.parametrize("at", range(1, 6))
def test_a_handler_in_the_middle_of_a_change_is_not_overwritten(at: int) -> None:
    shared, calls = Shared(frozenset[str]()), 0

    def change(value: frozenset[str]) -> frozenset[str]:
        nonlocal calls
        calls += 1
        if calls <= at:
            shared.swap(lambda value: value | {f"signal {calls}"})
        return value | {"training"}

    assert shared.swap(change) == {"training", *(f"signal {number}" for number in range(1, at + 1))}
    assert shared.value == {"training", *(f"signal {number}" for number in range(1, at + 1))}
