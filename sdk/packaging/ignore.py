"""The rules that exclude files of a project: `.gitignore`, `.podliftignore`, and the `exclude` setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import Finding
from ..errors import InputError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# The later one wins.
_FILES = (".gitignore", ".podliftignore")


@dataclass(frozen=True)
class _IgnoreRule:
    """The patterns of one file or setting, which apply below `prefix`."""

    rank: int
    prefix: str
    spec: GitIgnoreSpec
    name: str

    def verdict(self, path: str) -> bool | None:
        """Return whether its patterns exclude a path, None if none of them matches."""
        inside = path[len(self.prefix) :]
        if not path.startswith(self.prefix) or not self._any.search(inside):
            return None
        return self.spec.check_file(inside).include

    @cached_property
    def _any(self) -> re.Pattern[str]:
        """All patterns as one: most files match none of them, and asking one by one takes four times as long."""
        parts: list[Any] = [getattr(pattern, "regex", None) for pattern in self.spec.patterns]
        texts = [re.sub(r"\(\?P<\w+>", "(?:", part.pattern) for part in parts if part is not None]
        return re.compile("|".join(f"(?:{text})" for text in texts) or "(?!)")


class IgnoreRules:
    """The rules that apply in one folder.

    `exclude` has precedence over `.podliftignore`, which has precedence over `.gitignore`; a deeper file has precedence over
    one above it; "!" cancels a weaker rule. The user's global git settings do not count: they differ between machines.
    """

    def __init__(self, rules: Sequence[_IgnoreRule] = ()) -> None:
        self._rules = tuple(rules)

    @staticmethod
    def of(exclude: Sequence[str], base: str) -> IgnoreRules:
        """Return the rules of the setting; its patterns are relative to the project, `base` in the bundle."""
        try:
            spec = _parsed(exclude)
        except ValueError as error:
            raise InputError(f"exclude: {error} Expected patterns as in a .gitignore.") from None
        prefix = f"{base}/" if base else ""
        return IgnoreRules([_IgnoreRule(len(_FILES), prefix, spec, "exclude")]) if exclude else IgnoreRules()

    def enter(self, folder: Path, prefix: str, names: Sequence[str], notes: list[Finding]) -> IgnoreRules:
        """Return the rules that apply in a folder with these files; `prefix` is its path in the bundle, with "/"."""
        new = [
            _IgnoreRule(rank, prefix, _spec(folder / name, f"{prefix}{name}", notes), name)
            for rank, name in enumerate(_FILES)
            if name in names
        ]
        if not new:
            return self
        # The sort is stable: of one rank, the deeper rule stays first.
        return IgnoreRules(sorted([*new, *self._rules], key=lambda rule: -rule.rank))

    def why(self, path: str) -> str | None:
        """Return which rule excludes a path, None if none does; a folder's path ends in "/"."""
        for rule in self._rules:
            verdict = rule.verdict(path)
            if verdict is not None:
                return f"in {rule.name}" if verdict else None
        return None


def _parsed(lines: Sequence[str]) -> GitIgnoreSpec:
    # The container of a keeper executes plans without it.
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _spec(path: Path, label: str, notes: list[Finding]) -> GitIgnoreSpec:
    try:
        # A broken link has no rules. A pipe must not be opened: that would block.
        regular = path.is_file()
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if regular else []
    except FileNotFoundError:
        lines = []
    except OSError as error:
        # Without the rules, files that they exclude would be packaged.
        raise InputError(
            f"The ignore file cannot be read: {str(path)!r} ({error.strerror}). Next: let this user read it, or name a smaller "
            "code_project= (--code-project)."
        ) from None
    good = []
    for number, line in enumerate(lines, 1):
        try:
            _parsed([line])
            good.append(line)
        except ValueError:
            notes.append(Finding("warning", f"{label}:{number} is not a pattern, and excludes nothing: {line!r}."))
    return _parsed(good)
