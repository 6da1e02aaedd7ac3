"""The space of a sweep: the range or the choices of each parameter, as Python values, as options and as TOML. Pure."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import InputError, Problems
from ..text import shown

Value: TypeAlias = str | int | float | bool | None

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})(?::({_NUMBER}))?")
_FORMS = "log:1e-5..1e-1, 0.0..0.5, 1..8, 16..128:16 or 32,64"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A range of numbers, or choices if there are any."""

    low: int | float = 0
    high: int | float = 0
    step: int | float | None = None  # None for any number between the bounds
    log: bool = False
    options: tuple[Value, ...] | None = None

    def __str__(self) -> str:
        if self.options is not None:
            return ",".join(value if isinstance(value, str) else json.dumps(value) for value in self.options)
        step = "" if self.step is None or (self.step == 1 and isinstance(self.step, int)) else f":{self.step}"
        return f"{'log:' if self.log else ''}{self.low}..{self.high}{step}"


Space: TypeAlias = Mapping[str, Parameter]


def LogUniform(low: float, high: float) -> Parameter:
    """A number whose logarithm is uniform: `sdk.LogUniform(1e-5, 1e-1)`, as an option `lr=log:1e-5..1e-1`.

    Args:
        low: the smallest value, above 0.
        high: the largest value.
    """
    return Parameter(low=float(low), high=float(high), log=True)


def Uniform(low: float, high: float, step: float | None = None) -> Parameter:
    """A number between two bounds: `sdk.Uniform(0.0, 0.5)`, as an option `dropout=0.0..0.5`, or `0.0..0.5:0.1` with a step.

    Args:
        low: the smallest value.
        high: the largest value.
        step: the distance of two values; None for any number.
    """
    return Parameter(low=float(low), high=float(high), step=None if step is None else float(step))


def IntUniform(low: int, high: int, step: int = 1, log: bool = False) -> Parameter:
    """A whole number: `sdk.IntUniform(1, 8)`, as an option `layers=1..8`, `16..128:16` with a step or `log:16..1024`.

    Args:
        low: the smallest value.
        high: the largest value, which belongs to the range.
        step: the distance of two values.
        log: whether the logarithm is uniform.
    """
    return Parameter(low=low, high=high, step=step, log=log)


def Choice(*options: Value) -> Parameter:
    """One of some values: `sdk.Choice(32, 64)` or `sdk.Choice("adam", "sgd")`, as an option `units=32,64`.

    Args:
        *options: texts, numbers, True, False or None, in any order.
    """
    return Parameter(options=options)


def is_whole(parameter: Parameter) -> bool:
    return all(isinstance(number, int) for number in (parameter.low, parameter.high, parameter.step))


def values(parameter: Parameter) -> Sequence[Value] | None:
    """Return the values of a parameter; None if there are too many to count."""
    if parameter.options is not None or parameter.step is None:
        return parameter.options
    # A bound that the steps nearly reach belongs to them: 0.1 has no exact double.
    count = math.floor((parameter.high - parameter.low) / parameter.step + 1e-9) + 1
    return [parameter.low + number * parameter.step for number in range(count)]


def _problems(parameter: Parameter) -> list[str]:
    low, high, step, options = parameter.low, parameter.high, parameter.step, parameter.options
    if options is not None:
        strange = [value for value in options if not isinstance(value, str | int | float | None)]
        texts = [] if strange else [json.dumps(value) for value in options]
        # Optuna takes the first one for both.
        equal = [pair for pair in itertools.combinations(options, 2) if pair[0] == pair[1] and not strange]
        faults = [f"a choice has texts, numbers, True, False or None, not {shown(value)}" for value in strange]
        faults += [] if options else ["a choice needs at least one value"]
        faults += [f"{json.dumps(a)} and {json.dumps(b)} are equal" for a, b in equal if json.dumps(a) != json.dumps(b)]
        return faults + [f"{text} is there twice" for text in dict.fromkeys(texts) if texts.count(text) > 1]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in (low, high, step or 0)):
        return ["the bounds and the step must be finite numbers"]
    if parameter.log and low <= 0:
        return [f"a logarithm needs a lower bound above 0, and it is {low}"]
    if parameter.log and step not in (None, 1):
        return ["a logarithm and a step exclude each other"]
    if low >= high:
        return [f"the range is empty: the lower bound {low} is not below the upper bound {high}"]
    return [] if step is None or step > 0 else [f"the step must be above 0, and it is {step}"]


def parse(name: str, value: object) -> Parameter:
    """Return a parameter from a value of this module, a text as of an option, or a list of choices; InputError else."""
    domain = Choice(*value) if isinstance(value, list | tuple) else _parsed(value) if isinstance(value, str) else value
    if not isinstance(domain, Parameter):
        raise InputError(f"space: {name}: not a range or a choice. Received: {shown(value)}. Known forms: {_FORMS}.")
    if problems := _problems(domain):
        raise InputError([f"space: {name}: {problem}. Received: {str(value)!r}." for problem in problems])
    return domain


def _parsed(text: str) -> Parameter | None:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        parts = [part.strip() for part in text.split(",")]
        mistaken = ".." in text or text.strip().startswith("log:") or not all(parts)
        return None if mistaken else Choice(*map(_value, parts))
    log, numbers = bool(match[1]), [number for number in match.groups()[1:] if number]
    if all(re.fullmatch(r"[+-]?\d+", number) for number in numbers):
        low, high, *steps = map(int, numbers)
        return Parameter(low=low, high=high, step=steps[0] if steps else 1, log=log)
    start, end, *distance = map(float, numbers)
    return Parameter(low=start, high=end, step=distance[0] if distance else None, log=log)


def _value(text: str) -> Value:
    """Return the value of an option: a number, true, false, null or a text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text.strip()
    return value if isinstance(value, str | int | float | None) else text


def of(definition: object) -> Space:
    """Return a checked space; InputError with every mistake."""
    if not isinstance(definition, Mapping) or not definition:
        raise InputError(f'space: name a parameter, such as {{"lr": "log:1e-5..1e-1"}}. Received: {shown(definition)}.')
    problems, space = Problems(), dict[str, Parameter]()
    for name, value in definition.items():
        with problems.collect():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise InputError(f"space: not the name of an argument. Received: {shown(name)}. Example: lr.")
            space[name] = parse(name, value)
    problems.raise_if_any()
    return space


def from_options(texts: Iterable[str], table: Mapping[str, object]) -> Space:
    """Return the space of repeated options NAME=RANGE, added to the table of a file."""
    problems, definition = Problems(), dict(table)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            problems.add(f"--space takes NAME=RANGE or FILE.toml. Received: {text!r}. Known ranges: {_FORMS}.")
        elif name in definition:
            problems.add(f"--space: {name} is there twice.")
        definition[name] = value
    problems.raise_if_any()
    return of(definition)


def point(space: Space, number: int) -> dict[str, Value]:
    """Return a point of a space that can be counted: the last parameter changes first."""
    params = dict[str, Value]()
    for name, each in reversed([*space.items()]):
        among = values(each) or ()
        number, at = divmod(number, len(among))
        params[name] = among[at]
    return {name: params[name] for name in space}
