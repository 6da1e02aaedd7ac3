"""docs/reference/tensorflow-tutorials.md, from the catalogue and from what a test run measured."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from support import REPO

from .assemblies import PROGRAMS
from .cells import CELLS, SHELL, Cell
from .equivalents import EQUIVALENTS
from .parts import Fails, Ours, Outcome, Part, Program

MODES = ("keras3", "legacy")
DOCUMENT = REPO / "docs" / "reference" / "tensorflow-tutorials.md"
MEASURED = Path(__file__).parent / "measured.json"
_PACKAGES = ("tensorflow", "keras", "tf_keras")
# Notes that say why a program cannot run; others say what was added to it.
_REASONS = ("needs", "no ", "jobs", "an outline")
_SEEDS = {
    "000": "Keras guide to several GPUs and workers",
    "002": "Ray Train guide for TensorFlow",
    "003": "overview of strategies",
    "004": "TensorFlow's multi-worker tutorial",
}
_HEAD = """# The tutorials, cell by cell

Written by the tests (`tests/e2e/tutorials`, where the tutorials lie beside the repository) once each program has been
measured: do not edit. Measured with {versions}, on CPUs. Each program was run by `sdk.submit`, as
a job of its own, once as it is (Keras 3) and once with `keras="legacy"`; a failure below is one that was seen.

The cells are named by their place in the tutorials, with titles of ours. Where a tutorial downloads MNIST, data were generated:
images and labels of the same shapes and types, fewer, because the download is not possible offline. A cell that only goes
wrong after an earlier one has failed is "not reached". Two habits of these programs, `task_id == 0` and
`len(cluster["worker"])`, assume a cluster without a chief: they were run with `cluster="workers"`.

"runs" means that a program went past the cell and, for a training that came to its end, that the log of every task shows
it. The fifth text, a talk of 2018, has no code: what it describes is among the programs of our own, at the end.
"""


class Measurements:
    """What the tests of one session measured."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}

    def add(self, name: str, mode: str, outcome: Outcome) -> None:
        """Note an outcome that was as expected."""
        self.outcomes[f"{name} / {mode}"] = outcome

    def write(self) -> None:
        """Add to measured.json what was measured with the same packages, and write the document once that is everything."""
        before = json.loads(MEASURED.read_text()) if MEASURED.exists() else {"versions": None, "outcomes": {}}
        versions = {package: version(package) for package in _PACKAGES}
        known = before["outcomes"] if before["versions"] == versions else {}
        found = {**known, **{name: as_json(outcome) for name, outcome in self.outcomes.items()}}
        complete = set(expected()) <= set(found)
        # Half a session with other packages must not take the place of a whole one.
        if not complete and before["versions"] not in (None, versions):
            return
        outcomes = {name: found[name] for name in expected() if name in found}
        MEASURED.write_text(json.dumps({"versions": versions, "outcomes": outcomes}, indent=1) + "\n")
        if complete:
            DOCUMENT.write_text(render(versions))


def expected() -> dict[str, Outcome]:
    """Return the outcome that the catalogue states for each program and mode."""
    everything = [*PROGRAMS.values(), *EQUIVALENTS]
    return {f"{program.name} / {mode}": getattr(program, mode) for program in everything for mode in MODES}


def as_json(outcome: Outcome) -> list[str] | None:
    """Return an outcome as measured.json holds it."""
    return [outcome.type, outcome.fragment, outcome.cell] if isinstance(outcome, Fails) else None


def verdict(cell: Cell, mode: str) -> str:
    """Return "runs", "fails", "not reached" or "-" for a cell in the programs as written."""
    found = [_in_program(cell, program, mode) for program in PROGRAMS.values() if not program.changed]
    return next((word for word in ("runs", "fails", "not reached") if word in found), "-")


def _in_program(cell: Cell, program: Program, mode: str) -> str:
    outcome: Outcome = getattr(program, mode)
    if cell.id not in program.cells:
        return "-"
    if outcome is None:
        return "runs"
    culprits = outcome.cell.split()
    if cell.id in culprits:
        return "fails"
    order = [part.cell for part in program.parts if isinstance(part, Part)]
    if outcome.type == "InputError" or cell.id not in order:
        return "not reached"
    last = len(order) - 1 - order[::-1].index(cell.id)
    return "runs" if last < order.index(culprits[0]) else "not reached"


def reason(cell: Cell) -> str:
    """Return why a cell does not run, what makes it run, or what stands in its place."""
    said: list[str] = []
    for mode in MODES:
        if verdict(cell, mode) != "fails":
            continue
        outcomes = [getattr(p, mode) for p in PROGRAMS.values() if not p.changed and cell.id in p.cells]
        said += [_error(outcome) for outcome in outcomes if outcome is not None and cell.id in outcome.cell.split()]
    if any(verdict(cell, mode) != "runs" for mode in MODES):
        said += [f"runs if {p.changed}" for p in PROGRAMS.values() if p.changed and cell.id in p.cells]
        said += [p.notes for p in PROGRAMS.values() if p.notes.startswith(_REASONS) and cell.id in p.cells]
    if cell.instead:
        said.append(f"instead: {cell.instead}")
    return "; ".join(dict.fromkeys(said))


def _error(outcome: Fails) -> str:
    fragment = outcome.fragment.replace("`", "'")
    return f"`{outcome.type}: {fragment}`"


def render(versions: dict[str, str]) -> str:
    """Return the document."""
    lines = [_HEAD.format(versions=", ".join(f"{package} {number}" for package, number in versions.items()))]
    for seed, title in _SEEDS.items():
        lines += [f"## {seed}: {title}", ""]
        lines += ["| cell | what | technique | Keras 3 | legacy | why, or what instead |", "|---|---|---|---|---|---|"]
        for cell in CELLS.values():
            if cell.seed == seed:
                words = [verdict(cell, mode) for mode in MODES]
                if cell.kind == SHELL and words == ["-", "-"]:
                    words = ["not Python"] * 2
                lines.append(_row(cell.id, cell.title, cell.technique, *words, reason(cell)))
        lines.append("")
    lines += ["## The programs that the cells make", ""]
    lines += ["| program | cells | tasks | Keras 3 | legacy | not the tutorial's |", "|---|---|---|---|---|---|"]
    for program in PROGRAMS.values():
        lines_of_ours = sum(len(part.code.strip().splitlines()) for part in program.parts if isinstance(part, Ours))
        notes = [f"changed: {program.changed}"] if program.changed else []
        notes += [program.notes] if program.notes else []
        notes += [f"lines of ours: {lines_of_ours}"] if lines_of_ours else []
        words = [_outcome(getattr(program, mode)) for mode in MODES]
        cells = f"{program.cells[0].partition('-')[0]}: " + ", ".join(cell.partition("-")[2] for cell in program.cells)
        lines.append(_row(program.name, cells, _tasks(program.workers, program.cluster), *words, "; ".join(notes)))
    lines += ["", "## Programs of our own (`tests/programs/tutorials`)", ""]
    lines += ["| program | technique | tasks | Keras 3 | legacy | notes |", "|---|---|---|---|---|---|"]
    for own in EQUIVALENTS:
        words = [_outcome(getattr(own, mode)) for mode in MODES]
        lines.append(_row(own.name, own.technique, _tasks(own.workers, own.cluster), *words, own.notes))
    return "\n".join(lines) + "\n"


def _tasks(workers: int, cluster: str) -> str:
    return "1" if workers == 1 else f"chief + {workers - 1}" if cluster == "chief" else f"{workers} workers"


def _outcome(outcome: Outcome) -> str:
    return "runs" if outcome is None else _error(outcome)


def _row(*words: str) -> str:
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"
