"""The checkpoints of a run as another process follows them."""

import pytest
from support import heard

from sdk.checkpoint import restore
from sdk.checkpoint.feed import CheckpointFeed
from sdk.storage.posix_store import PosixStore

from .parts import Attempt, check


def test_each_checkpoint_comes_once_until_the_training_is_over(store: PosixStore) -> None:
    waits = []

    def wait() -> None:
        # The training goes on while the evaluator waits: nothing, one checkpoint, two at once, its end.
        waits.append(len(waits))
        if waits[-1] == 1:
            attempt.append(Attempt(store))
            attempt[0].save(3)
        if waits[-1] == 2:
            attempt[0].save(5)
            attempt[0].save(8)

    attempt: list[Attempt] = []
    feed = CheckpointFeed(store.url, "test", after=-1, over=lambda: len(waits) > 4, wait=wait)
    assert [check(checkpoint) for checkpoint in feed] == [3, 5, 8]


@pytest.fixture
def saved(store: PosixStore) -> PosixStore:
    attempt = Attempt(store)
    for step in (3, 5, 8):
        attempt.save(step)
    return store


def test_a_feed_omits_evaluated_checkpoints_and_yields_the_last_one_after_the_end(saved: PosixStore) -> None:
    feed = CheckpointFeed(saved.url, "test", after=3, over=lambda: True, wait=lambda: None)
    assert [check(checkpoint) for checkpoint in feed] == [5, 8]


def test_one_that_retention_has_removed_is_named_and_the_others_follow(saved: PosixStore) -> None:
    lines, steps = heard("checkpoint"), []
    for checkpoint in CheckpointFeed(saved.url, "test", after=-1, over=lambda: True, wait=lambda: None):
        steps.append(check(checkpoint))
        if len(steps) == 1:
            saved.delete(restore.commits_of(saved)[1].key)
    assert steps == [3, 8]
    assert any("step 5 is not evaluated: retention has removed it" in line for line in lines)
