"""Compares the variables of a saved model with the variables of a program's model: by name and shape, without a library."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from ..errors import CheckpointMismatchError
from ..text import counted

Shape = tuple[int, ...]
_Saved = Mapping[str, Shape] | Mapping[str, str]  # shapes by name, or texts that have the type too
_LISTED = 20
_NUMBERED = re.compile(r"(.*?)(?:_(\d+))?")


def check(
    saved: _Saved, here: _Saved, headline: str, *, others: Sequence[str] = (), where: str = "the saved model"
) -> None:
    """Raise CheckpointMismatchError unless both have the same names and shapes; it lists every difference.

    `headline` is the first sentence, with {} for the number of differences; `others` are differences of another kind.
    """
    missing = [name for name in here if name not in saved]
    extra = [name for name in saved if name not in here]
    different = {
        name: f"{name}: {_words(shape)} in this program, {_words(saved[name])} in {where}"
        for name, shape in here.items()
        if name in saved and saved[name] != shape
    }
    listed = [*others, *different.values()]
    listed += [f"{name} {_words(here[name])}: only in this program.{_near(name, extra)}" for name in missing]
    listed += [f"{name} {_words(saved[name])}: only in {where}.{_near(name, missing)}" for name in extra]
    if not listed:
        return
    problems = [headline.replace("{}", counted(len(listed), "difference")), *listed[:_LISTED]]
    if len(listed) > _LISTED:
        problems.append(f"and {len(listed) - _LISTED} more")
    raise CheckpointMismatchError(problems, missing=missing, extra=extra, different=different)


def _words(shape: Shape | str) -> str:
    return shape if isinstance(shape, str) else str(list(shape))


def _near(name: str, others: Sequence[str]) -> str:
    near = get_close_matches(name, others, n=1)
    return f" Nearest: {near[0]}." if near else ""


def canonical(names: Iterable[str]) -> list[str]:
    """Return the names as the same program has them in every process.

    Keras numbers layers as they are made, also layers of other models: `dense_7/kernel` and `dense_9/kernel` become
    `dense/kernel` and `dense_1/kernel`. A name that occurs again gets `#2`.
    """
    parts = [name.removesuffix(":0").split("/") for name in names]
    numbers: defaultdict[tuple[tuple[str, ...], str], set[int]] = defaultdict(set)
    for path in parts:
        for depth, part in enumerate(path):
            base, number = split(part)
            numbers[tuple(path[:depth]), base].add(number)
    ranks = {key: {number: rank for rank, number in enumerate(sorted(group))} for key, group in numbers.items()}
    uses: Counter[str] = Counter()
    canonical_names = []
    for path in parts:
        words = []
        for depth, part in enumerate(path):
            base, number = split(part)
            rank = ranks[tuple(path[:depth]), base][number]
            words.append(f"{base}_{rank}" if rank else base)
        name = "/".join(words)
        uses[name] += 1
        canonical_names.append(name if uses[name] == 1 else f"{name}#{uses[name]}")
    return canonical_names


def split(name: str) -> tuple[str, int]:
    """Return a name without its number, and the number, -1 for none."""
    match = _NUMBERED.fullmatch(name)
    base, number = match.groups() if match else (name, None)
    return base, -1 if number is None else int(number)
