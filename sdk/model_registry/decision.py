"""The decision of a gate about a model: promote it, keep the champion, or ask a person. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from ..errors import nearest
from ..job.gates import Gain, Gate, Guard, exact

Outcome = Literal["promote", "keep", "ask"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The numbers that the gate's function returned for one model, or why it returned nothing."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""  # why there are no metrics, "" if there are


@dataclass(frozen=True, kw_only=True)
class GuardResult:
    guard: str  # as it was written
    holds: bool | None  # None if it was not checked, because it needs a champion
    value: float | None = None  # of the challenger
    bound: float | None = None  # for the champion that was compared with
    note: str = ""  # why it was not checked, or could not be

    def __str__(self) -> str:
        if self.note:
            return f"{self.guard} ({self.note})"
        bound = f", bound {self.bound:.6g}" if "champion" in self.guard else ""
        return f"{self.guard} (it is {self.value:.6g}{bound})"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The result of an evaluation, with its reason."""

    outcome: Outcome
    reason: str
    gain: float | None = None  # over the champion, above 0 for better; None if they cannot be compared
    guards: tuple[GuardResult, ...] = ()


def decide(gate: Gate, challenger: Evaluation, champion: Evaluation | None) -> Decision:
    """Return the decision of a gate about a challenger; `champion` is None if there is none.

    Numbers are compared as they are written: 0.57 is better than 0.56 by exactly 0.01.
    """
    if challenger.problem:
        return Decision(outcome="keep", reason=f"The evaluation of the challenger failed: {challenger.problem}")
    guards = tuple(_checked(Guard.parse(text), challenger, champion) for text in gate.guards)
    outcome, reason, gain = _compared(gate, challenger, champion, guards)
    return Decision(outcome=outcome, reason=reason, gain=gain, guards=guards)


def _checked(guard: Guard, challenger: Evaluation, champion: Evaluation | None) -> GuardResult:
    value = challenger.metrics.get(guard.metric)
    if value is None:
        return GuardResult(guard=guard.text, holds=False, note=_not_returned(guard.metric, challenger))
    if not math.isfinite(value):
        return GuardResult(guard=guard.text, holds=False, note=f"it is {value}")
    theirs = champion.metrics.get(guard.metric) if champion else None
    bound = guard.bound(theirs)
    if bound is None:
        holds, note = None, "there is no champion"
        if champion is not None and champion.problem:
            note = "the champion could not be evaluated"
        elif champion is not None:
            holds, note = (
                False,
                "the champion has no such metric" if theirs is None else f"the champion's is {theirs}",
            )
        return GuardResult(guard=guard.text, holds=holds, value=value, note=note)
    return GuardResult(guard=guard.text, holds=guard.holds(value, bound), value=value, bound=float(bound))


def _compared(
    gate: Gate, challenger: Evaluation, champion: Evaluation | None, guards: tuple[GuardResult, ...]
) -> tuple[Outcome, str, float | None]:
    metric = gate.measured
    value = challenger.metrics.get(metric)
    if value is None:
        return "keep", f"The gate's metric is missing: {_not_returned(metric, challenger)}", None
    if not math.isfinite(value):
        return "keep", f"{metric} is {value}, which is no result", None
    gain, problem = _gain(gate, value, champion)
    gain_number = None if gain is None else float(gain)
    if failed := [str(guard) for guard in guards if guard.holds is False]:
        reason = f"{'A guard does' if len(failed) == 1 else 'Guards do'} not hold: {'; '.join(failed)}"
        if gain is not None and champion is not None:
            judged, change = _judged(gate, gain, value, champion.metrics[metric])
            reason = f"{change}; {'and' if judged == 'keep' else 'but'} {reason[0].lower()}{reason[1:]}"
        return "keep", reason, gain_number
    if champion is None:
        return "promote", f"The first model: {metric} is {value:.6g}{', and all guards hold' if guards else ''}", None
    if problem:
        return "ask", problem, None
    theirs = champion.metrics[metric]
    if gain is None:
        return "keep", f"{metric} of the champion is {theirs}, with which nothing can be compared", None
    return *_judged(gate, gain, value, theirs), gain_number


def _gain(gate: Gate, value: float, champion: Evaluation | None) -> tuple[Fraction | None, str]:
    """Return the gain over a champion, None if it is unknown, and why a person has to judge."""
    if champion is None:
        return None, ""
    if champion.problem:
        return None, f"The champion could not be evaluated: {champion.problem}"
    theirs = champion.metrics.get(gate.measured)
    if theirs is None:
        return (
            None,
            f"The evaluation of the champion lacks the gate's metric: {_not_returned(gate.measured, champion)}",
        )
    if not math.isfinite(theirs):
        return None, ""
    gain = exact(value) - exact(theirs)
    return gain if gate.mode == "max" else -gain, ""


def _judged(gate: Gate, gain: Fraction, value: float, champion: float) -> tuple[Outcome, str]:
    change = f"{gate.measured} is {value:.6g}, the champion's {champion:.6g}"
    if gain == 0:
        return "keep", f"{gate.measured} is {value:.6g}, as the champion's"
    if gain < 0:
        return "keep", f"{change}: worse by {float(-gain):.6g}"
    least = Gain.parse(gate.min_gain)
    better = f"{change}: better by {float(gain):.6g}"
    if gain < least.over(champion):
        return "keep", f"{better}, less than min_gain, {_threshold_text(gate.min_gain, least, champion)}"
    if gate.ask_below is not None and gain < (ask_gain := Gain.parse(gate.ask_below)).over(champion):
        return "ask", f"{better}, less than ask_below, {_threshold_text(gate.ask_below, ask_gain, champion)}"
    return "promote", better


def _threshold_text(text: str, gain: Gain, champion: float) -> str:
    return f"{text} ({float(gain.over(champion)):.6g})" if gain.relative else text


def _not_returned(metric: str, evaluation: Evaluation) -> str:
    returned = sorted(evaluation.metrics)
    return f"the function returned no {metric!r}. {nearest(metric, returned) if returned else 'It returned nothing.'}"
