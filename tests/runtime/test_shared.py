"""What threads and a signal's handler share is replaced as a whole, and no change is lost in any order of their steps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sdk.errors import AlreadyExistsError, MissingError
from sdk.job.payload import Payload
from sdk.runtime.rendezvous.bucket import BucketRendezvous, RendezvousState
from sdk.runtime.rendezvous.files import StepCoordinator
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


# --- The rendezvous -----------------------------------------------------------------------------------------------


class Bucket:
    """A store in memory."""

    url = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_new(self, key: str, data: list[bytes]) -> None:
        if key in self.objects:
            raise AlreadyExistsError(key)
        self.objects[key] = b"".join(data)

    def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise MissingError(key)
        return self.objects[key]

    stat = get

    def list(self, prefix: str) -> Iterator[str]:
        return iter([key for key in self.objects if key.startswith(prefix)])

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(data) for key, data in sorted(self.objects.items()) if "/rendezvous/" in key]


@dataclass
class FakeClock:
    """Time passes only when somebody waits, and then the thread of the rendezvous has its turn."""

    seconds: float = 0.0
    turn: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.turn()


class Task(BucketRendezvous):
    """One whose thread is driven by the test."""

    def begin(self) -> None:
        pass


def task(bucket: Bucket, *, is_single: bool) -> tuple[Task, StepCoordinator, FakeClock]:
    fields = {name: [] for name in ("argv", "roots")} | {
        name: "" for name in ("target", "function", "bundle", "digest")
    }
    payload = object.__new__(Payload)
    known = {
        **fields,
        "run_id": "r",
        "attempt": 1,
        "bucket_url": "gs://b/r",
        "resumes": 0,
        "resumes_by_users": 0,
        "tasks": ["chief-0", "worker-0"],
    }
    for name, value in known.items():
        object.__setattr__(payload, name, value)
    clock = FakeClock()
    store: Any = bucket
    found = Task(payload=payload, task="chief-0", decides=True, is_single=is_single, clock=clock, store=store)
    clock.turn = found.poll
    return found, StepCoordinator(found), clock


ORDERS = orders(4, 3, 1)


@pytest.mark.parametrize("is_single", [True, False])
def test_in_every_order_of_steps_polls_and_the_signal_the_task_is_preempted_once_and_at_an_announced_step(
    is_single: bool,
) -> None:
    for order in ORDERS:
        bucket = Bucket()
        found, coordinator, clock = task(bucket, is_single=is_single)
        actions: list[str | None] = []

        def step(coordinator: StepCoordinator = coordinator, actions: list[str | None] = actions) -> None:
            actions.append(coordinator.step())

        def poll(found: Task = found, clock: FakeClock = clock) -> None:
            clock.seconds += 1.0
            found.poll()

        acts = [step, poll, found.request_preemption]
        for actor in [*order, 1, *([0] * 60)]:
            acts[actor]()
        first = actions.index("preempt")
        assert actions[:first] == [None] * first, order
        # A loop that ends late sees the same request again, and nothing else changes.
        assert set(actions[first:]) == {"preempt"}, order
        if not is_single:
            entries = bucket.entries
            assert [entry["step"] for entry in entries] == sorted({entry["step"] for entry in entries}), order
            assert [entry["action"] for entry in entries[:-1]] == ["go"] * (len(entries) - 1), order
            assert (entries[-1]["action"], entries[-1]["step"]) == ("preempt", first + 1), order


@pytest.mark.parametrize("nth", range(40))
def test_a_signal_between_reading_and_replacing_any_version_is_not_lost(nth: int, monkeypatch) -> None:
    bucket = Bucket()
    found, coordinator, clock = task(bucket, is_single=False)
    swaps = 0

    def swap(self: Shared[RendezvousState], change: Callable[[RendezvousState], RendezvousState]) -> RendezvousState:
        def interrupted(state: RendezvousState) -> RendezvousState:
            nonlocal swaps
            swaps += 1
            if swaps == nth + 1:
                original(self, lambda state: replace(state, preempted=True))
            return change(state)

        return original(self, interrupted)

    original = Shared.swap
    monkeypatch.setattr(Shared, "swap", swap)
    actions = []
    for _ in range(60):
        actions.append(coordinator.step())
        clock.seconds += 0.7
        found.poll()
    assert swaps > nth
    assert "preempt" in actions
    assert found._shared.value.preempted
