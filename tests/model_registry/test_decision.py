"""The decision of a gate, from the numbers of both models alone."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk.model_registry.decision import Decision, Evaluation, decide

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)
ANY = NUMBERS | st.sampled_from([math.nan, math.inf, -math.inf])
GAINS = st.sampled_from(["0", "0.01", "1", "1%", "50%"])


def gate(**more: Any) -> sdk.Gate:
    return sdk.Gate(**{"evaluate": "quality:measure", "data": "test", "metric": "accuracy", **more})


def decided(asked: sdk.Gate, challenger: object, champion: object = None) -> Decision:
    """Decide about numbers for the gate's metric, whole results, or problems."""

    def evaluation(value: object) -> Evaluation | None:
        if value is None or isinstance(value, Evaluation):
            return value
        if isinstance(value, str):
            return Evaluation(problem=value)
        return Evaluation(metrics=value if isinstance(value, dict) else {asked.measured: value})

    found = evaluation(challenger)
    assert found is not None
    return decide(asked, found, evaluation(champion))


@pytest.mark.parametrize(
    ("asked", "challenger", "champion", "outcome", "said"),
    [
        ({}, 0.9, 0.8, "promote", "accuracy is 0.9, the champion's 0.8: better by 0.1"),
        ({}, 0.8, 0.9, "keep", "worse by 0.1"),
        ({}, 0.9, 0.9, "keep", "accuracy is 0.9, as the champion's"),
        ({"metric": "min:accuracy"}, 0.2, 0.3, "promote", "better by 0.1"),
        ({"metric": "val_loss"}, 0.2, 0.3, "promote", "val_loss is 0.2, the champion's 0.3: better by 0.1"),
        ({"metric": "max:score"}, 0.9, 0.8, "promote", "score is 0.9"),
        ({"min_gain": "0.01"}, 0.57, 0.56, "promote", "better by 0.01"),
        ({"min_gain": "0.01"}, 0.569, 0.56, "keep", "better by 0.009, less than min_gain, 0.01"),
        ({"min_gain": "1%"}, 202.0, 200.0, "promote", "better by 2"),
        ({"min_gain": "1%"}, 201.9, 200.0, "keep", "less than min_gain, 1% (2)"),
        ({"min_gain": "1%"}, -198.0, -200.0, "promote", "better by 2"),
        ({"min_gain": "1%", "metric": "min:accuracy"}, -201.0, -200.0, "keep", "less than min_gain, 1% (2)"),
        ({"min_gain": "50%"}, 1e-9, 0.0, "promote", "better by 1e-09"),
        ({"min_gain": "0.01", "ask_below": "0.05"}, 0.84, 0.8, "ask", "better by 0.04, less than ask_below, 0.05"),
        ({"min_gain": "0.01", "ask_below": "0.05"}, 0.85, 0.8, "promote", "better by 0.05"),
        ({"min_gain": "0.01", "ask_below": "0.05"}, 0.805, 0.8, "keep", "less than min_gain"),
        ({"ask_below": "1%"}, 100.5, 100.0, "ask", "less than ask_below, 1% (1)"),
        ({}, math.nan, 0.8, "keep", "accuracy is nan, which is no result"),
        ({"metric": "min:accuracy"}, -math.inf, 0.8, "keep", "accuracy is -inf"),
        ({}, 0.9, math.nan, "keep", "accuracy of the champion is nan, with which nothing can be compared"),
        ({}, math.nan, "it does not load", "keep", "accuracy is nan"),
        ({}, 0.1, None, "promote", "The first model: accuracy is 0.1"),
        ({"guards": ["accuracy >= 0.5"]}, 0.1, None, "keep", "A guard does not hold: accuracy >= 0.5 (it is 0.1)"),
        ({"guards": ["accuracy >= champion"]}, 0.1, None, "promote", "all guards hold"),
        ({}, "it does not load", 0.8, "keep", "The evaluation of the challenger failed: it does not load"),
        ({}, "it does not load", None, "keep", "The evaluation of the challenger failed"),
        ({}, 0.9, "it does not load", "ask", "The champion could not be evaluated: it does not load"),
        ({"guards": ["accuracy >= 0.95"]}, 0.9, "it does not load", "keep", "A guard does not hold"),
        ({"guards": ["accuracy >= champion"]}, 0.9, "it does not load", "ask", "The champion could not be evaluated"),
        ({}, {"acuracy": 1.0}, 0.8, "keep", "no 'accuracy'. Did you mean 'acuracy'?"),
        ({}, {}, 0.8, "keep", "It returned nothing."),
        ({}, 0.9, {"loss": 1.0}, "ask", "The evaluation of the champion lacks the gate's metric"),
        ({"guards": ["loss <= 1", "auc >= 2"]}, {"accuracy": 9.0, "loss": 2.0, "auc": 1.0}, 0.8, "keep",
         "accuracy is 9, the champion's 0.8: better by 8.2; but guards do not hold: loss <= 1 (it is 2); auc >= 2 (it is 1)"),
        ({"guards": ["accuracy >= 0.5"]}, 0.4, 0.6, "keep",
         "accuracy is 0.4, the champion's 0.6: worse by 0.2; and a guard does not hold: accuracy >= 0.5 (it is 0.4)"),
        ({"guards": ["los <= 1"]}, {"accuracy": 9.0, "loss": 2.0}, 0.8, "keep", "no 'los'. Did you mean 'loss'?"),
        ({"guards": ["loss <= 1"]}, {"accuracy": 9.0, "loss": math.nan}, 0.8, "keep", "loss <= 1 (it is nan)"),
    ],
)  # fmt: skip
def test_the_outcome_and_its_reason(asked: dict, challenger: object, champion: object, outcome: str, said: str) -> None:
    found = decided(gate(**asked), challenger, champion)
    assert (found.outcome, said in found.reason) == (outcome, True), found


def test_each_guard_is_told_with_the_value_and_the_bound() -> None:
    texts = ["accuracy >= 0.5", "loss <= champion * 1.5", "accuracy[eights] >= champion - 0.01", "auc >= champion"]
    mine = {"accuracy": 0.9, "loss": 3.5, "accuracy[eights]": 0.94, "auc": 0.7}
    theirs = {"accuracy": 0.8, "loss": 2.0, "accuracy[eights]": 0.95}
    found = decided(gate(guards=texts), mine, theirs)
    guards = [(each.holds, each.value, each.bound) for each in found.guards]
    assert guards == [(True, 0.9, 0.5), (False, 3.5, 3.0), (True, 0.94, 0.94), (False, 0.7, None)]
    assert found.reason == (
        "accuracy is 0.9, the champion's 0.8: better by 0.1; but guards do not hold: loss <= champion * 1.5 (it is 3.5, "
        "bound 3); auc >= champion (the champion has no such metric)"
    )
    assert found.gain == pytest.approx(0.1)
    alone = decided(gate(guards=texts[:2]), mine)
    assert [(each.holds, each.note) for each in alone.guards] == [(True, ""), (None, "there is no champion")]


@given(ANY, ANY | st.none() | st.just("it does not load"), GAINS, st.booleans(), st.sampled_from(["max", "min"]))
def test_only_a_finite_and_better_model_is_ever_promoted(mine, theirs, least, band, mode) -> None:
    ask_below = "100000000000000%" if band else None
    found = decided(gate(min_gain=least, ask_below=ask_below, metric=f"{mode}:accuracy"), mine, theirs)
    if found.outcome != "keep":
        assert math.isfinite(mine)
    if found.outcome == "promote" and theirs is not None:
        assert isinstance(theirs, float) and math.isfinite(theirs)
        assert (mine > theirs) if mode == "max" else (mine < theirs)
        number, relative = Fraction(least.rstrip("%")), "%" in least
        needed = number * abs(Fraction(repr(theirs))) / 100 if relative else number
        assert abs(Fraction(repr(mine)) - Fraction(repr(theirs))) >= needed


@given(NUMBERS, NUMBERS, GAINS)
def test_min_is_max_of_the_negative_numbers(mine: float, theirs: float, least: str) -> None:
    up = decided(gate(min_gain=least), mine, theirs)
    down = decided(gate(min_gain=least, metric="min:accuracy"), -mine, -theirs)
    assert (up.outcome, up.gain) == (down.outcome, down.gain)


@given(NUMBERS, NUMBERS | st.none(), st.lists(st.tuples(st.sampled_from([">=", ">", "<=", "<"]), NUMBERS), max_size=3))
def test_a_guard_can_only_prevent_a_promotion(mine, theirs, bounds) -> None:
    guards = [f"accuracy {comparison} {bound!r}" for comparison, bound in bounds]
    free, guarded = decided(gate(), mine, theirs), decided(gate(guards=guards), mine, theirs)
    hold = all(each.holds for each in guarded.guards)
    assert guarded.outcome == (free.outcome if hold else "keep")
