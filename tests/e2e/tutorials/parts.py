"""The parts of programs, and their ends."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """A cell, or some of its lines, in a program."""

    cell: str
    lines: tuple[int, int] | None = None  # first and last line of the cell's text, from 1
    indent: int = 0
    edits: tuple[tuple[str, str], ...] = ()  # (old, new)


@dataclass(frozen=True)
class Ours:
    """Lines of our own that the tutorial asks for in prose, or that stand in for a download."""

    code: str


@dataclass(frozen=True)
class Fails:
    """An expected end: the error's type, a piece of its message, the cell that raises it (or cells: tasks race)."""

    type: str
    fragment: str
    cell: str = ""


RUNS = None
Outcome = Fails | None


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program and its two outcomes, with `keras="auto"` and with `code_keras="legacy"`."""

    name: str
    parts: tuple[Part | Ours, ...]
    files: dict[str, tuple[Part | Ours, ...]] = field(default_factory=dict)  # beside it
    keras3: Outcome = RUNS
    legacy: Outcome = RUNS
    workers: int = 1
    ps: int = 0
    cluster: str = "workers"
    accelerator: str = "cpu"  # "t4:2" where the text has GPUs, for which logical CPU devices stand in
    network: str = "host"  # "isolated" where the tutorial's own port numbers are used
    says: str = ""  # must stand in the log of every task of a run that succeeds
    notes: str = ""  # the changes to the tutorial, for the table
    absent: str = ""  # a package without which the outcome was measured; with it, another one is due
    changed: str = ""  # the one change without which it would fail; "" for a program as written

    @property
    def cells(self) -> list[str]:
        """The cells that have a part in it."""
        parts = [*self.parts, *(part for extra in self.files.values() for part in extra)]
        return sorted({part.cell for part in parts if isinstance(part, Part)})
