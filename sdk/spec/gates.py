"""The gate of a job: how its model is compared with the champion, and what decides. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ..errors import InputError, nearest
from ..text import shown
from .values import Accepts, Name, Texts, Validator, Value, default

_FUNCTION = re.compile(r"([A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*", re.ASCII)
_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"
_GAIN = re.compile(rf"({_NUMBER})\s*(%?)")
_GUARD = re.compile(r"([^\s<>=!]+)\s*([<>=!]+)\s*(.*)", re.DOTALL)
_ABSOLUTE = re.compile(rf"[-+]?{_NUMBER}")
_RELATIVE = re.compile(rf"champion(?:\s*([-+*])\s*({_NUMBER}))?")
_OPERATORS = (">=", ">", "<=", "<")
_EXAMPLES = "'accuracy >= 0.9', 'accuracy[eights] >= champion - 0.01' or 'loss <= champion * 1.05'"


@dataclass(frozen=True)
class Gain:
    """How much better than the champion: a number, or a fraction of the champion's own value."""

    number: float
    relative: bool = False

    @staticmethod
    def parse(text: str) -> Gain:
        """Return the gain of "0.01" or "1%"; ValueError for anything else."""
        found = _GAIN.fullmatch(text.strip())
        if found is None or not math.isfinite(float(found[1])):
            raise ValueError('a number that is not negative, such as "0.01", or with % a part of the champion\'s value: "1%"')
        return Gain(float(found[1]) / 100, relative=True) if found[2] else Gain(float(found[1]))

    def over(self, champion: float) -> float:
        """Return the difference that it means for a champion of this value."""
        return self.number * abs(champion) if self.relative else self.number


@dataclass(frozen=True)
class Guard:
    """A condition on one metric of the challenger: `metric operator factor * champion + offset`."""

    text: str
    metric: str
    operator: str
    offset: float
    factor: float = 0.0  # 0 if the champion does not matter

    @staticmethod
    def parse(text: str) -> Guard:
        """Return the guard of a text such as "loss <= champion * 1.05"; InputError if it is none."""
        found = _GUARD.fullmatch(text.strip())
        if found is None:
            raise InputError(f"guards: not a guard. Received: {shown(text)}. Expected: {_EXAMPLES}.")
        metric, operator, bound = found.groups()
        if operator not in _OPERATORS:
            raise InputError(
                f"guards: unknown comparison {operator!r} in {shown(text)}. {nearest(operator, _OPERATORS)}"
            )
        made = _bound(bound.strip())
        if made is None:
            raise InputError(
                f"guards: not a bound: {shown(bound)} in {shown(text)}. Expected: a number, or champion, with + - or * and a "
                f"number if need be: {_EXAMPLES}."
            )
        return Guard(text.strip(), metric, operator, *made)

    def bound(self, champion: float | None) -> float | None:
        """Return the bound for a champion of this value; None if it needs a champion and there is none."""
        if not self.factor:
            return self.offset
        return None if champion is None else self.factor * champion + self.offset

    def holds(self, value: float, bound: float) -> bool:
        """Return whether a value keeps to a bound; NaN never does."""
        return {">=": value >= bound, ">": value > bound, "<=": value <= bound, "<": value < bound}[self.operator]


def _bound(text: str) -> tuple[float, float] | None:
    """Return the offset and the factor of a bound, None if it is none."""
    found = _RELATIVE.fullmatch(text)
    if found is None:
        numbers = (float(text), 0.0) if _ABSOLUTE.fullmatch(text) else None
    else:
        sign, number = found[1], float(found[2] or 0)
        numbers = (0.0, number) if sign == "*" else (-number if sign == "-" else number, 1.0)
    return numbers if numbers and all(map(math.isfinite, numbers)) else None


def _function(text: str) -> str:
    if _FUNCTION.fullmatch(text):
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
    problems = []
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
    """What promotes the model of a run: `Gate(evaluate="quality:measure", data="test", metric="accuracy")`.

    When the program has succeeded, its model and the champion are evaluated on the same data. See docs/how-to/models.md.

    Args:
        evaluate: Function of the packaged code that measures a model, as `module:function`. It is called with the folder of a
            model and the place of the data, and returns numbers by name. Without it there is no gate, and nothing is promoted.
        data: Name of the input with the data for the evaluation.
        metric: Which of the numbers decides.
        mode: Whether a high or a low value is better.
        min_gain: How much better than the champion the model must be. "0.01": a difference; "1%": a part of the champion's own
            value. A model that is equal is never promoted.
        guards: Conditions that must hold as well, such as "accuracy >= 0.9", "accuracy[eights] >= champion - 0.01" or
            "loss <= champion * 1.05".
        ask_below: A gain from `min_gain` up to this one needs an approval by a person. Written like `min_gain`; None for no
            approval.
        where: Evaluate on the machine of the chief, at the end of the run, or in the keeper of a schedule. "keeper": needs no
            accelerator while it evaluates.
    """

    evaluate: Annotated[str, Validator(_function)] | None = None
    data: Name | None = None
    metric: Name | None = None
    mode: Literal["max", "min"] = "max"
    min_gain: Accepts[GainText, str | float] = default("0")
    guards: Accepts[Annotated[Texts, Validator(_guards)], Sequence[str]] = default(())
    ask_below: Accepts[GainText | None, str | float | None] = default(None)
    where: Literal["job", "keeper"] = "job"

    @classmethod
    def conflicts(cls, given: Mapping[str, object]) -> list[str]:
        """Return what is wrong with these fields together."""
        if "evaluate" not in given:
            return [f"{name}: no effect without evaluate, the function of the gate." for name in given]
        if given["evaluate"] is None:
            return []
        found = [] if given.get("metric") is not None else [_NO_METRIC]
        least, most = given.get("min_gain", "0"), given.get("ask_below")
        try:
            wanted, asked = Gain.parse(str(least)), Gain.parse(str(most))
        except ValueError:
            return found
        if wanted.relative == asked.relative and asked.number <= wanted.number:
            found.append(f"ask_below: must be more than min_gain, which is {str(least)!r}. Received: {most!r}.")
        return found


_NO_METRIC = 'metric: missing. The gate needs the name of the number that decides, one that evaluate returns: "accuracy".'
