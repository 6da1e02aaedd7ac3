"""What the project's own rules leave out: `.gitignore`, `.podliftignore`, and the `exclude` setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from ..checks import Finding
from ..errors import InputError

# The later one wins.
_FILES = (".gitignore", ".podliftignore")


@dataclass(frozen=True)
class _Rule:
    """The patterns of one place, which count below `prefix`."""

    rank: int
    prefix: str
    spec: GitIgnoreSpec
    name: str

    def verdict(self, path: str) -> bool | None:
        """Return whether its patterns leave a path out; None where none of them says anything."""
        inside = path[len(self.prefix) :]
        if not path.startswith(self.prefix) or not self._any.search(inside):
            return None
        return self.spec.check_file(inside).include

    @cached_property
    def _any(self) -> re.Pattern[str]:
        """All patterns as one, which most files do not match: asking one by one takes four times as long."""
        parts: list[Any] = [getattr(pattern, "regex", None) for pattern in self.spec.patterns]
        texts = [re.sub(r"\(\?P<\w+>", "(?:", part.pattern) for part in parts if part is not None]
        return re.compile("|".join(f"(?:{text})" for text in texts) or "(?!)")


class Rules:
    """The rules that hold in one folder; `enter` returns those of a folder in it.

    A rule of `exclude` wins over `.podliftignore`, that over `.gitignore`, and of one kind the deepest file wins; "!" brings
    back what a weaker rule leaves out. The user's own git settings do not count: they differ from machine to machine.
    """

    def __init__(self, rules: Sequence[_Rule] = ()) -> None:
        self._rules = tuple(rules)

    @staticmethod
    def of(exclude: Sequence[str], base: str) -> Rules:
        """Return the rules of the setting alone.

        Args:
            exclude: patterns, relative to the project.
            base: the project's place in the bundle, "" for its top.

        Raises:
            InputError: a pattern is none.
        """
        try:
            spec = GitIgnoreSpec.from_lines(exclude)
        except ValueError as error:
            raise InputError(f"exclude: {error} Expected patterns as in a .gitignore.") from None
        return Rules([_Rule(len(_FILES), f"{base}/" if base else "", spec, "exclude")]) if exclude else Rules()

    def enter(self, folder: Path, prefix: str, names: Sequence[str], notes: list[Finding]) -> Rules:
        """Return the rules that hold in a folder.

        Args:
            folder: the folder.
            prefix: its path in the bundle with "/" at its end, "" for the top.
            names: what the folder holds.
            notes: takes a warning for each line of its files that is no pattern.
        """
        found = [
            _Rule(rank, prefix, _spec(folder / name, f"{prefix}{name}", notes), name)
            for rank, name in enumerate(_FILES)
            if name in names
        ]
        if not found:
            return self
        # Python's sort is stable: of one rank, the deeper one comes first.
        return Rules(sorted([*found, *self._rules], key=lambda rule: -rule.rank))

    def why(self, path: str) -> str | None:
        """Return what leaves a path out, None if nothing does; a folder's path ends in "/"."""
        for rule in self._rules:
            verdict = rule.verdict(path)
            if verdict is not None:
                return f"in {rule.name}" if verdict else None
        return None


def _spec(path: Path, shown: str, notes: list[Finding]) -> GitIgnoreSpec:
    try:
        # A link to nothing holds no rules, nor does a pipe, which would be waited for.
        regular = path.is_file()
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if regular else []
    except FileNotFoundError:
        lines = []
    except OSError as error:
        # Without its rules, what they keep out would be packaged.
        said = f"The rules of what is not packaged cannot be read: {str(path)!r} ({error.strerror})."
        raise InputError(f"{said} Next: let this user read them, or name a smaller project= (--project).") from None
    good = []
    for number, line in enumerate(lines, 1):
        try:
            GitIgnoreSpec.from_lines([line])
            good.append(line)
        except ValueError:
            notes.append(Finding("warning", f"{shown}:{number} is no pattern, and leaves nothing out: {line!r}."))
    return GitIgnoreSpec.from_lines(good)
