"""`decide`, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk.records.restarts import BUDGETS, LOOP, EndedAttempt, decide
from sdk.status import Reason, State

DEFAULT = sdk.Retry(user_errors=0, infrastructure=3, preemptions=None)
STATES = {Reason.DONE: State.SUCCEEDED, Reason.CANCELLED: State.CANCELLED, Reason.CHECKPOINTED: State.CHECKPOINTED}


def ended(reason: Reason, step: int | None = None) -> EndedAttempt:
    return EndedAttempt(state=STATES.get(reason, State.FAILED), reason=reason, step=step)


def many(reason: Reason, *steps: int | None) -> list[EndedAttempt]:
    return [ended(reason, step) for step in steps]


@pytest.mark.parametrize(
    ("history", "policy", "restart", "delay_s", "said"),
    [
        ([ended(Reason.DONE)], DEFAULT, False, 0, ""),
        ([ended(Reason.CANCELLED)], replace(DEFAULT, user_errors=9), False, 0, ""),
        ([ended(Reason.TIMEOUT, 5)], replace(DEFAULT, user_errors=9), False, 0, ""),
        ([ended(Reason.USER_ERROR, 5)], DEFAULT, False, 0, ""),
        ([ended(Reason.USER_ERROR, 5)], replace(DEFAULT, user_errors=1), True, 0, "(user_error). Restarts left"),
        (many(Reason.USER_ERROR, 5, 9), replace(DEFAULT, user_errors=1), False, 0, "1 of 1 restarts after an error in"),
        ([ended(Reason.KILLED, 7)], DEFAULT, True, 0, "Restarts left after this one: 2."),
        (many(Reason.KILLED, None, None), DEFAULT, True, 1, "after this one: 1."),
        (many(Reason.USER_ERROR, None, None), replace(DEFAULT, user_errors=9), True, 1, "after this one: 7."),
        (many(Reason.STOCKOUT, None), DEFAULT, True, 1, "after this one: 2."),
        (many(Reason.KILLED, 5, 5), DEFAULT, True, 1, "after this one: 1."),
        (many(Reason.KILLED, 1, 2, 3), DEFAULT, True, 0, "after this one: 0."),
        (many(Reason.KILLED, 1, 2, 3, 4), DEFAULT, False, 0, "3 of 3 restarts"),
        (many(Reason.KILLED, None, None, None), DEFAULT, False, 0, "ended before reporting a step"),
        ([ended(Reason.OUT_OF_MEMORY, 5)], DEFAULT, True, 0, "after this one: 2, none if memory runs out again."),
        (many(Reason.OUT_OF_MEMORY, 5, 9), replace(DEFAULT, infrastructure=9), False, 0, "memory ran out again"),
        ([ended(Reason.OUT_OF_MEMORY, 5), ended(Reason.KILLED, 9)], DEFAULT, True, 0, "after this one: 1."),
        ([ended(Reason.CHECKPOINTED, 7)], DEFAULT, True, 0, "a preemption"),
        (many(Reason.PREEMPTED, *range(50)), DEFAULT, True, 0, "a preemption"),
        (many(Reason.PREEMPTED, None, None, None), DEFAULT, True, 0, "a preemption"),
        (many(Reason.STOCKOUT, None, None, None), DEFAULT, True, 4, "after this one: 0."),
        ([ended(Reason.PREEMPTED, 1)], replace(DEFAULT, preemptions=0), False, 0, "Not restarted: retry_preemptions is 0."),
        ([ended(Reason.KILLED, 1)], replace(DEFAULT, infrastructure=0), False, 0, "Not restarted: retry_infrastructure is 0."),
        (many(Reason.PREEMPTED, 1, 2), replace(DEFAULT, preemptions=1), False, 0, "1 of 1 restarts after a preemption"),
        ([*many(Reason.PREEMPTED, *range(9)), ended(Reason.KILLED, 10)], DEFAULT, True, 0, "after this one: 2."),
        ([*many(Reason.KILLED, 1, 2, 3), ended(Reason.PREEMPTED, 4), ended(Reason.KILLED, 5)], DEFAULT, False, 0, "3 of 3"),
        ([*many(Reason.KILLED, 1, 2), ended(Reason.USER_ERROR, 3)], DEFAULT, False, 0, ""),
    ],
)  # fmt: skip
def test_a_history_and_a_policy_decide(history, policy, restart: bool, delay_s: float, said: str) -> None:
    decides(history, policy, restart, delay_s, said)


def decides(history: list[EndedAttempt], policy: sdk.Retry, restart: bool, delay_s: float, said: str) -> None:
    decision = decide(history, policy)
    assert (decision.restart, decision.delay_s) == (restart, delay_s)
    assert said in decision.why
    assert bool(decision.why) == bool(said)


def alone(reason: Reason, step: int | None = None, task: str = "worker-0") -> EndedAttempt:
    return EndedAttempt(state=State.FAILED, reason=reason, step=step, task=task)


@pytest.mark.parametrize(
    ("history", "restart", "delay_s", "said"),
    [
        ([alone(Reason.KILLED, 7)], True, 0, "Restarting worker-0 alone after an infrastructure failure (killed). "),
        ([alone(Reason.PREEMPTED)], True, 0, "Restarting worker-0 alone after a preemption (preempted)."),
        ([alone(Reason.USER_ERROR, 7)], False, 0, ""),
        # The training goes on meanwhile, which is no progress of the task.
        ([alone(Reason.PREEMPTED, 7), alone(Reason.CHECKPOINTED, 8), alone(Reason.PREEMPTED, 9)], True, 2, "a preemption"),
        ([alone(Reason.PREEMPTED, 7), alone(Reason.PREEMPTED, 8, "worker-1")], True, 0, "Restarting worker-1 alone"),
        # All restarts have the same budgets, and each task has its own crash loop.
        ([ended(Reason.KILLED, 1), alone(Reason.KILLED, 2), alone(Reason.KILLED, 3)], True, 1, "after this one: 0."),
        ([*many(Reason.KILLED, 1, 2, 3), alone(Reason.KILLED, 4)], False, 0, "3 of 3 restarts after an infrastructure failure"),
        ([*(alone(Reason.KILLED, step) for step in (1, 2, 3)), ended(Reason.KILLED, 4)], False, 0, "3 of 3 restarts"),
        ([alone(Reason.KILLED, 5)] * 3, False, 0, "worker-0 ended 3 times at step 5 of the training, so it is expected to"),
        ([alone(Reason.KILLED, 5, f"worker-{index}") for index in range(3)], True, 0, "after this one: 0."),
        ([alone(Reason.KILLED, 5), alone(Reason.KILLED, 5), ended(Reason.KILLED, 5)], True, 0, "Restarting after"),
        ([alone(Reason.KILLED)] * 3, True, 2, "after this one: 0."),
    ],
)  # fmt: skip
def test_a_task_that_restarts_alone_spends_the_budgets_of_the_run(history, restart, delay_s, said: str) -> None:
    decides(history, DEFAULT, restart, delay_s, said)


def test_in_a_drill_the_same_step_again_means_nothing() -> None:
    history = many(Reason.KILLED, 5, 5, 5, 5)
    again = [decide(history, replace(DEFAULT, infrastructure=9), drill=drill).restart for drill in (True, False)]
    assert again == [True, False]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        # A machine that ran out of memory, or a network that was down: all workers at once.
        ([("worker-0", 0), ("worker-1", 0.1), ("worker-2", 4), ("worker-3", 12)], "after this one: 1."),
        ([("worker-0", 0), ("worker-1", 30)], "after this one: 0."),
        ([("worker-0", 0), ("worker-0", 1)], "after this one: 0."),
        ([("worker-0", 0), ("worker-1", 1), ("worker-0", 2), ("worker-1", 3)], "after this one: 0."),
        ([("worker-0", 0), ("worker-1", 1), ("worker-0", 2), ("worker-1", 3), ("worker-2", 30)], "2 of 2 restarts"),
        ([("worker-0", 0), ("", None), ("worker-1", 1)], "2 of 2 restarts"),
    ],
)
def test_tasks_that_are_lost_together_are_one_failure(ends: list[tuple[str, float | None]], said: str) -> None:
    history = [replace(alone(Reason.KILLED, task=task), time=time) for task, time in ends]
    assert said in decide(history, replace(DEFAULT, infrastructure=2)).why


def test_tasks_that_run_out_of_memory_together_are_restarted() -> None:
    history = [replace(alone(Reason.OUT_OF_MEMORY, task=f"worker-{index}"), time=float(index)) for index in range(3)]
    assert [decide(history[: count + 1], DEFAULT).restart for count in range(3)] == [True] * 3
    assert not decide([*history, replace(history[0], time=99.0)], DEFAULT).restart


def test_every_reason_for_which_an_attempt_can_end_has_a_budget_or_none() -> None:
    going_on = "submitted queued provisioning preparing training restarting stopping evaluating"
    assert set(BUDGETS) == set(Reason) - {Reason(each) for each in (*going_on.split(), "done")}


REASONS = st.sampled_from([reason for reason, budget in BUDGETS.items() if budget is not None])
STEPS = st.one_of(st.none(), st.integers(0, 20))


PAIRS = st.lists(st.tuples(REASONS, STEPS), min_size=1, max_size=30)


@given(pairs=PAIRS, user=st.integers(0, 3), infrastructure=st.integers(0, 5))
def test_no_policy_with_limits_restarts_for_ever(pairs, user: int, infrastructure: int) -> None:
    policy = sdk.Retry(user_errors=user, infrastructure=infrastructure, preemptions=2)
    history: list[EndedAttempt] = []
    for reason, step in pairs:
        history.append(ended(reason, step))
        decision = decide(history, policy)
        assert 0 <= decision.delay_s <= 60
        if not decision.restart:
            break
    restarts = len(history) - 1
    assert restarts <= user + infrastructure + 2


@given(steps=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_preemptions_without_a_limit_end_only_where_nothing_moves(steps: list[int]) -> None:
    history = many(Reason.PREEMPTED, *steps)
    stuck = len(set(steps[-LOOP:])) == 1 and len(steps) >= LOOP
    assert decide(history, DEFAULT).restart is not stuck
