"""What programs are made of, and how they end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """A cell, or some of its lines, in a program.

    Args:
        cell: its id.
        lines: first and last line of the cell's text, from 1; None for all.
        indent: spaces before each line.
        edits: replacements, (old, new).
    """

    cell: str
    lines: tuple[int, int] | None = None
    indent: int = 0
    edits: tuple[tuple[str, str], ...] = ()


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
    """A program and its two outcomes.

    Args:
        name: ours.
        parts: what it is made of, in order.
        files: other files beside it, by name.
        keras3: what happens with `keras="auto"`.
        legacy: what happens with `code_keras="legacy"`.
        workers: tasks.
        ps: parameter servers beside them.
        cluster: shape of the cluster.
        accelerator: "t4:2" where the text has GPUs, for which logical CPU devices stand in.
        network: "isolated" where the tutorial's own port numbers are used.
        says: must stand in the log of every task of a run that succeeds.
        notes: what is not the tutorial's, for the table.
        absent: a package without which the outcome was measured; with it, another one is due.
        changed: the one change without which it would fail; "" for a program as written.
    """

    name: str
    parts: tuple[Part | Ours, ...]
    files: dict[str, tuple[Part | Ours, ...]] = field(default_factory=dict)
    keras3: Outcome = RUNS
    legacy: Outcome = RUNS
    workers: int = 1
    ps: int = 0
    cluster: str = "workers"
    accelerator: str = "cpu"
    network: str = "host"
    says: str = ""
    notes: str = ""
    absent: str = ""
    changed: str = ""

    @property
    def cells(self) -> list[str]:
        """The cells that have a part in it."""
        parts = [*self.parts, *(part for extra in self.files.values() for part in extra)]
        return sorted({part.cell for part in parts if isinstance(part, Part)})
