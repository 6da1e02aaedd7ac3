"""The gate of a job: how its model is compared with the champion, and by which rules. Pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from ..errors import InputError, nearest
from ..text import shown
from .policies import metric_and_mode, shows_mode
from .values import Accepts, Name, Texts, Validator, Value, default, metric_text

_FUNCTION = re.compile(r"([A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*", re.ASCII)
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_GAIN = re.compile(rf"({_NUMBER})\s*(%?)")
_GUARD = re.compile(r"([^\s<>=!]+)\s*([<>=!]+)\s*(.*)", re.DOTALL)
_ABSOLUTE = re.compile(rf"[-+]?{_NUMBER}")
_RELATIVE = re.compile(rf"champion(?:\s*([-+*])\s*({_NUMBER}))?")
_OPERATORS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
_EXAMPLES = "'accuracy >= 0.9', 'accuracy[eights] >= champion - 0.01' or 'loss <= champion * 1.05'"


def exact(number: float) -> Fraction:
    """Return the exact decimal of a finite number: 0.57 exceeds 0.56 by 0.01, not by a little less."""
    return Fraction(repr(float(number)))


@dataclass(frozen=True)
class Gain:
    """How much better than the champion: a number, or a part of the champion's own value."""

    number: Fraction
    relative: bool = False

    @staticmethod
    def parse(text: str) -> Gain:
        """Return the gain of "0.01" or "1%"; ValueError for anything else."""
        match = _GAIN.fullmatch(text.strip())
        if match is None or not math.isfinite(float(match[1])):
            raise ValueError(
                'a number that is not negative, such as "0.01", or with % a part of the champion\'s value: "1%"'
            )
        number = exact(float(match[1]))
        return Gain(number / 100, relative=True) if match[2] else Gain(number)

    def over(self, champion: float) -> Fraction:
        return self.number * abs(exact(champion)) if self.relative else self.number


@dataclass(frozen=True)
class Guard:
    """A condition on one metric of the challenger: `metric comparison factor * champion + offset`."""

    text: str
    metric: str
    comparison: str
    offset: Fraction
    factor: Fraction = Fraction(0)
    relative: bool = False  # whether the champion matters

    @staticmethod
    def parse(text: str) -> Guard:
        match = _GUARD.fullmatch(text.strip())
        if match is None:
            raise InputError(f"guards: not a guard. Received: {shown(text)}. Expected: {_EXAMPLES}.")
        metric, comparison, bound = match.groups()
        if comparison not in _OPERATORS:
            raise InputError(
                f"guards: unknown comparison {comparison!r} in {shown(text)}. {nearest(comparison, [*_OPERATORS])}"
            )
        terms = _bound(bound.strip())
        if terms is None:
            raise InputError(
                f"guards: not a bound: {shown(bound)} in {shown(text)}. Expected: a number, or champion, with + - or * and a "
                f"number if need be: {_EXAMPLES}."
            )
        return Guard(text.strip(), metric, comparison, *terms)

    def bound(self, champion: float | None) -> Fraction | None:
        """Return the bound for a champion of this value; None if it needs a finite one."""
        if not self.relative:
            return self.offset
        if champion is None or not math.isfinite(champion):
            return None
        return self.factor * exact(champion) + self.offset

    def holds(self, value: float, bound: Fraction) -> bool:
        """Return whether a value is within a bound; a value that is not finite never is."""
        return math.isfinite(value) and _OPERATORS[self.comparison](exact(value), bound)


def _bound(text: str) -> tuple[Fraction, Fraction, bool] | None:
    # The offset, the factor, and whether it needs a champion.
    relative, absolute = _RELATIVE.fullmatch(text), _ABSOLUTE.fullmatch(text)
    number = float(relative[2] or 0) if relative else float(text) if absolute else math.inf
    if not math.isfinite(number):
        return None
    if relative is None:
        return exact(number), Fraction(0), False
    if relative[1] == "*":
        return Fraction(0), exact(number), True
    return exact(-number if relative[1] == "-" else number), Fraction(1), True


def _function(text: str) -> str:
    if _FUNCTION.fullmatch(text) and ".py:" not in text:
        return text
    meant = text.replace(".py:", ":").replace("/", ".")
    near = f", nearest {meant!r}" if _FUNCTION.fullmatch(meant) else ", such as quality:measure"
    raise ValueError(f"must be module:function of the packaged code{near}")


def _gain(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = repr(value)
    if isinstance(value, str):
        Gain.parse(value)
        return value.strip()
    return value


def _guards(texts: Sequence[str]) -> Sequence[str]:
    problems = list[str]()
    for text in texts:
        try:
            Guard.parse(text)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return texts


GainText = Annotated[str, Validator(_gain, before=True)]


@dataclass(frozen=True, kw_only=True)
class Gate(Value):
    """Promotes the model of a run if it beats the champion: `Gate(evaluate="quality:measure", data="test", metric="accuracy")`.

    When the program has succeeded, its model and the champion are evaluated on the same data. See docs/how-to/models.md.

    Args:
        evaluate: Function of the packaged code that measures a model, as `module:function`. It is called with the folder of a
            model and the place of the data, and returns numbers by name. Without it there is no gate, and nothing is promoted.
        data: Name of the input with the data for the evaluation.
        metric: Which of the numbers decides: "accuracy" is best when it is high, "loss" when it is low; write "max:score" or
            "min:cost" if the name does not show it.
        min_gain: How much better than the champion the model must be. "0.01": a difference; "1%": a part of the champion's own
            value. A model that is equal is never promoted.
        guards: Conditions that must hold as well, such as "accuracy >= 0.9", "accuracy[eights] >= champion - 0.01" or
            "loss <= champion * 1.05".
        ask_below: A gain from `min_gain` up to this one needs an approval by a person. Written like `min_gain`; None for no
            approval.
    """

    evaluate: Annotated[str, Validator(_function)] | None = None
    data: Name | None = None
    metric: Annotated[str, Validator(metric_text)] | None = None
    min_gain: Accepts[GainText, str | float] = default("0")
    guards: Accepts[Annotated[Texts, Validator(_guards)], Sequence[str]] = default(())
    ask_below: Accepts[GainText | None, str | float | None] = default(None)

    @property
    def measured(self) -> str:
        """The name of the number that decides."""
        return metric_and_mode(str(self.metric))[0]

    @property
    def mode(self) -> str:
        """ "max" or "min": which value of that number is better."""
        return metric_and_mode(str(self.metric))[1]

    @classmethod
    def conflicts(cls, arguments: Mapping[str, object]) -> list[str]:
        if "evaluate" not in arguments:
            return [f"{name}: no effect without evaluate, the function of the gate." for name in sorted(arguments)]
        if arguments["evaluate"] is None:
            return []
        metric = arguments.get("metric")
        problems = [] if metric is not None else [_NO_METRIC]
        if isinstance(metric, str) and metric.strip() and not shows_mode(metric):
            problems.append(
                f"metric: the name does not show which value is better. Next: 'max:{metric}' or 'min:{metric}'."
            )
        least, most = arguments.get("min_gain", "0"), arguments.get("ask_below")
        try:
            gain, ask_gain = Gain.parse(str(least)), Gain.parse(str(most))
        except ValueError:
            return problems
        if gain.relative == ask_gain.relative and ask_gain.number <= gain.number:
            problems.append(f"ask_below: must be more than min_gain, which is {str(least)!r}. Received: {most!r}.")
        return problems


_NO_METRIC = (
    'metric: missing. The gate needs the name of the number that decides, one that evaluate returns: "accuracy".'
)
