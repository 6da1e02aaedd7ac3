"""Tasks of one machine add up arrays through its memory: with the same bits in each, and never for ever."""

import os
import threading
from itertools import starmap

import pytest
from support import LIMIT_S, full_only, until

from sdk.runtime import exchange

np = pytest.importorskip("numpy")
PART = 1024  # float32 that are exchanged at once: every larger array takes several turns
SHAPES = [(), (3, 5), (PART,), (2, PART + 1)]
TYPES = ["float32", "float64", "int32", "int64"]

pytestmark = pytest.mark.skipif(not exchange.is_possible(), reason="it needs Linux on a processor whose futex is known")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(exchange, "_PART_BYTES", 4 * PART)


def numbers(rank, shape, kind="float32"):
    return (100 * np.random.default_rng(rank).normal(size=shape)).astype(kind)


def together(path, count, work):
    """Run `work(exchange)` for as many tasks at the same time; return what each found, in the order of their ranks."""
    exchange.create(str(path), count)
    found = ["no answer"] * count

    def run(rank):
        try:
            found[rank] = work(exchange.Exchange(str(path), rank, count))
        except exchange.ExchangeError as error:
            found[rank] = str(error)

    tasks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(LIMIT_S)
    return found


@pytest.mark.parametrize("count", [2, 3, full_only(5)])
def test_every_task_gets_the_same_sums_of_arrays_of_any_size(tmp_path, count):
    def work(one):
        return [one.add(numbers(one._rank, shape, kind)) for kind in TYPES for shape in SHAPES for _ in range(8)]

    first, *others = together(tmp_path / "x", count, work)
    asked = [(shape, kind) for kind in TYPES for shape in SHAPES for _ in range(8)]
    for found, (shape, kind) in zip(first, asked, strict=True):
        expected = numbers(0, shape, kind)
        for rank in range(1, count):  # in this order: sums of floats depend on it
            expected = expected + numbers(rank, shape, kind)
        assert found.dtype == kind
        np.testing.assert_array_equal(found, expected)
    for other in others:
        assert all(starmap(np.array_equal, zip(other, first, strict=True)))


def test_arrays_of_all_tasks_are_joined_in_the_order_of_the_tasks(tmp_path):
    found = together(tmp_path / "x", 3, lambda one: one.gather(numbers(one._rank, (PART, 3))))
    for each in found:
        np.testing.assert_array_equal(each, np.concatenate([numbers(rank, (PART, 3)) for rank in range(3)]))


def test_tasks_that_add_up_different_things_fail_and_say_what_they_have(tmp_path):
    found = together(tmp_path / "x", 2, lambda one: one.add(numbers(0, (3 + one._rank,))))
    assert all("3 of type float32, 4 of type float32" in each for each in found)


@pytest.mark.process
def test_a_task_that_waits_for_one_that_is_gone_fails_at_once(tmp_path):
    path = str(tmp_path / "x")
    exchange.create(path, 2)
    pid = os.fork()
    if not pid:
        exchange.Exchange(path, 1, 2).add(numbers(0, (3,)))
        os._exit(1)
    one = exchange.Exchange(path, 0, 2)
    one.add(numbers(0, (3,)))
    # The child stays a zombie until here, as one does whose supervisor has not looked yet.
    with pytest.raises(exchange.ExchangeError, match="Collective ops are aborted: task 1 is gone, the peer is down"):
        one.add(numbers(0, (3,)))
    os.waitpid(pid, 0)


def test_a_task_that_waits_is_released_by_an_abort(tmp_path):
    exchange.create(str(tmp_path / "x"), 2)
    one = exchange.Exchange(str(tmp_path / "x"), 0, 2)
    raised = []

    def wait():
        try:
            one.add(numbers(0, (3,)))
        except exchange.ExchangeError as error:
            raised.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: int(one._heads[0, 0]) == 1)
    one.abort("the cluster is unhealthy")
    waiting.join(LIMIT_S)
    assert raised == ["Collective ops are aborted: the cluster is unhealthy"]
