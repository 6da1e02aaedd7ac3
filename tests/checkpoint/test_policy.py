"""When to save and which checkpoints to keep, as tables, and the rules for all of them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.checkpoint import policy as policies
from sdk.checkpoint.policy import Committed, best_of, retention
from sdk.job.policies import Checkpoints

NAN = math.nan


def commits(*losses: float | None, ends: str = "", damaged: str = "", failure: str = "") -> list[Committed]:
    """Commits a, b, c... with these losses, each of which refers to `ends`; letters are damaged, or left by a failure."""
    found = []
    for name, loss in zip("abcdefghij", losses, strict=False):
        metrics = {} if loss is None else {"loss": loss}
        left = {"damaged": name in damaged, "failure": name in failure}
        found.append(Committed(key=name, metrics=metrics, ends=tuple(ends), **left))
    return found


@pytest.mark.parametrize(
    ("steps", "before", "now", "expected"),
    [
        (10, 0, 9, False),
        (10, 0, 10, True),
        (10, 0, 11, True),
        (10, 10, 11, False),
        (None, 0, 10**6, False),
        (1, 4, 5, True),
    ],
)
def test_a_checkpoint_is_due_behind_every_so_many_steps(steps, before, now, expected) -> None:
    assert policies.due_by_steps(Checkpoints(every_steps=steps, every_s=None), before, now) is expected


@pytest.mark.parametrize(
    ("cost_s", "shortest_s", "expected"), [(0.24, 5.0, 24.0), (0.001, 5.0, 5.0), (0.1, 30.0, 30.0), (99.0, 30.0, 300.0)]
)
def test_a_chosen_interval_is_a_hundred_times_the_cost_of_a_save_within_limits(cost_s, shortest_s, expected) -> None:
    assert policies.paced_s(cost_s, shortest_s) == pytest.approx(expected)


def test_only_the_default_leaves_the_interval_to_podlift() -> None:
    assert Checkpoints().is_paced
    assert not any(Checkpoints(**given).is_paced for given in ({"every_s": 5.0}, {"every_s": None}, {"every_steps": 3}))
    assert Checkpoints(every_steps=3).seconds is None


def test_the_cost_of_a_save_is_its_processor_time_and_the_memory_that_steps_replace() -> None:
    assert policies.training_cost_s(0.4, 0) == 0.4
    assert policies.training_cost_s(0.4, 10**9) == pytest.approx(0.8)


def test_best_names_a_metric_and_its_direction() -> None:
    found = [policies.metric_of(Checkpoints(best=best)) for best in (None, "val_loss", "val_accuracy", "max:loss")]
    assert found == [None, ("val_loss", "min"), ("val_accuracy", "max"), ("loss", "max")]


@pytest.mark.parametrize(
    ("known", "policy", "pins", "restored", "expected"),
    [
        (commits(1, 2, 3), Checkpoints(keep_last=3), "", None, ""),
        (commits(1, 2, 3, 4), Checkpoints(keep_last=3), "", None, "a"),
        (commits(1, 2, 3, 4), Checkpoints(keep_last=1), "b", None, "ac"),
        (commits(1, 2, 3, 4), Checkpoints(keep_last=1), "", "a", "bc"),
        (commits(3, 1, 2, 4), Checkpoints(keep_last=1, best="loss"), "", None, "ac"),
        (commits(3, 1, 2, 4), Checkpoints(keep_last=1, best="max:loss"), "", None, "abc"),
        (commits(NAN, 1, NAN, 4), Checkpoints(keep_last=1, best="loss"), "", None, "ac"),
        (commits(NAN, NAN), Checkpoints(keep_last=1, best="loss"), "", None, "a"),
        (commits(None, 1, None), Checkpoints(keep_last=1, best="loss"), "", None, "a"),
        (commits(1, 1, 1), Checkpoints(keep_last=1, best="loss"), "", None, "b"),
        (commits(1, 2, 3, ends="a"), Checkpoints(keep_last=1), "", None, "b"),
        # A checkpoint of a failure takes no place of another, and stays while it is the newest.
        (commits(1, 2, 3, failure="c"), Checkpoints(keep_last=2), "", None, ""),
        (commits(1, 2, 3, 4, failure="cd"), Checkpoints(keep_last=2), "", None, "c"),
        (commits(1, 2, 3, failure="b"), Checkpoints(keep_last=2), "", None, "b"),
        (commits(1, 2, 3, failure="b"), Checkpoints(keep_last=2), "", "b", ""),
        # A damaged one does not count, and stays until all that is older than the kept ones goes.
        (commits(1, 2, 3, 4, damaged="d"), Checkpoints(keep_last=1), "", None, "ab"),
        (commits(1, 2, 3, 4, damaged="b"), Checkpoints(keep_last=1), "", None, "abc"),
        (commits(1, 2, 3, 4, damaged="bcd"), Checkpoints(keep_last=1), "", None, ""),
    ],
)
def test_retention_removes_only_checkpoints_outside_of_the_policy(known, policy, pins, restored, expected) -> None:
    assert "".join(retention(known, set(pins), policy, restored)) == expected


def test_ends_that_a_kept_checkpoint_refers_to_are_kept() -> None:
    ends = {"b": "a", "c": "a", "d": "b", "e": "c"}
    known = [replace(commit, ends=tuple(ends.get(commit.key, ""))) for commit in commits(*range(5))]
    assert "".join(retention(known, (), Checkpoints(keep_last=1))) == "abd"
    assert "".join(retention(known, "b", Checkpoints(keep_last=1))) == "d"


@pytest.mark.parametrize(("size", "kept"), [(0, 1000), (1_000_000, 1000), (100_000_000, 100), (10**12, 16)])
def test_the_smaller_a_model_is_the_more_ends_of_its_fits_are_kept(size: int, kept: int) -> None:
    assert policies.most_ends(size) == kept


@given(
    st.lists(st.tuples(st.floats() | st.none(), st.sets(st.integers(0, 19)), st.booleans()), max_size=20),
    st.sets(st.integers(0, 19)),
    st.integers(1, 5),
    st.sampled_from([None, "loss", "max:loss"]),
    st.none() | st.integers(0, 19),
)
def test_retention_never_removes_a_checkpoint_that_is_needed(items, pinned, keep_last, best, restored) -> None:
    known = []
    for n, (loss, ends, damaged) in enumerate(items):
        metrics, earlier = {} if loss is None else {"loss": loss}, tuple(str(end) for end in ends if end < n)
        known.append(Committed(key=str(n), metrics=metrics, ends=earlier, damaged=damaged))
    policy = Checkpoints(keep_last=keep_last, best=best)
    began = None if restored is None else str(restored)
    pins = {str(number) for number in pinned}
    removed = retention(known, pins, policy, began)
    left = [commit for commit in known if commit.key not in removed]
    good = [commit for commit in known if not commit.damaged]
    assert [commit for commit in left if not commit.damaged][-keep_last:] == good[-keep_last:]
    assert not pins & set(removed)
    assert began not in removed
    assert best_of(known, policy) not in removed
    assert not {end for commit in good[-keep_last:] for end in commit.ends} & set(removed)
    assert retention(left, pins, policy, began) == ()


@pytest.mark.parametrize(
    ("policy", "seconds", "cost_s", "due"),
    [
        ({"every_s": 300.0}, 1.0, 0.05, True),
        ({"every_s": 300.0}, 59.0, 3.0, False),
        ({"every_s": 300.0}, 60.0, 3.0, True),
        ({}, 1e9, 0.05, False),
        ({"every_steps": 100}, 1e9, 0.05, False),
    ],
)
def test_ends_of_epochs_are_saved_as_often_as_a_twentieth_of_the_time_allows(policy, seconds, cost_s, due) -> None:
    assert policies.due_by_epoch(Checkpoints(**policy), seconds, cost_s) is due
