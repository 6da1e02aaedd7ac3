"""What a preflight has found, as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

VERSION = 2
Level = Literal["refused", "warning"]
# Who ended a look before its end: the program by an error, a program without a training step, a limit, or podlift itself.
StoppedBy = Literal["", "program", "no step", "limit", "podlift"]
Outcome = Literal["passed", "refused", "failed", "no step", "unfinished"]


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that a TPU refuses, or does at a price.

    Args:
        path: the program's file, as the bundle has it, or a notebook's cell ("train.ipynb, cell 3"); "" where no line of the
            program is to blame.
        line: counts from 1, in a notebook from the first line of its cell; 0 for none.
        level: "refused" where a TPU would refuse the program.
        rule: a short name of it: docs/how-to/preflight.md has them all.
        what: what stands there.
        why: what a TPU makes of it.
        instead: what to do.
    """

    path: str
    line: int
    level: Level
    rule: str
    what: str
    why: str
    instead: str

    def __str__(self) -> str:
        where = place(self.path, self.line)
        return f"{where}: {self.level}: {self.what}: {self.why}. Instead: {self.instead} [{self.rule}]"


def place(path: str, line: int) -> str:
    """Return a line of a file as editors read it, and a line of a notebook's cell in words."""
    return f"{path}, line {line}" if ".ipynb, cell " in path else f"{path or '-'}:{line}"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One matrix product or convolution of the step.

    Args:
        name: as the compiler knows it, which is by layers.
        flops: floating point operations of one step of one replica.
        padded: the share of what the matrix unit computes for it that is padding, from 0 to 1.
        shape: rows, depth and columns of the product.
    """

    name: str
    flops: int
    padded: float
    shape: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of it.

    Args:
        accelerator: what the program was looked at for.
        findings: in the order of the program's lines.
        reached: how far the program came: the last stage that was reached.
        stopped: why it came no further, one sentence; "" where it was looked at wholly.
        stopped_by: what stopped it: "program" for its own error, "no step", "limit" or "podlift"; "" where nothing did.
        replicas: how many there are.
        programs: that the training steps were compiled to, as far as the program went.
        batch: examples of one replica's step; None where nobody knows.
        state_bytes: variables of one replica: parameters, slots of optimizers, metrics.
        step_bytes: all that the compiled step holds at its peak, the state included; None where it was not compiled.
        memory_bytes: what one core of the accelerator has; None where that is unknown.
        largest_batch: of one replica that would fit; None where nobody knows.
        examples_per_step: what the host has to feed for each step of all replicas.
        wanted_per_s: examples a second that all cores would take if they computed at their peak; None where that is
            unknown.
        feed_per_s: examples a second that this machine's input pipeline has made; None where it was not measured.
        layers: matrix products and convolutions, the most expensive first.
        seconds: how long it took.
    """

    accelerator: str
    findings: tuple[Finding, ...] = ()
    reached: str = "nothing"
    stopped: str = ""
    stopped_by: StoppedBy = ""
    replicas: int = 1
    programs: int = 0
    batch: int | None = None
    state_bytes: int = 0
    step_bytes: int | None = None
    memory_bytes: int | None = None
    largest_batch: int | None = None
    examples_per_step: int | None = None
    wanted_per_s: float | None = None
    feed_per_s: float | None = None
    layers: tuple[Layer, ...] = field(default=())
    seconds: float = 0.0

    @property
    def refused(self) -> bool:
        """True where a TPU would refuse the program."""
        return any(finding.level == "refused" for finding in self.findings)

    @property
    def outcome(self) -> Outcome:
        """The verdict in one word; only "passed" says that all was looked at and nothing is refused."""
        if self.refused:
            return "refused"
        if self.stopped_by == "program":
            return "failed"
        if self.stopped_by == "no step":
            return "no step"
        return "unfinished" if self.stopped or self.stopped_by else "passed"

    @property
    def passed(self) -> bool:
        """True where the training steps were looked at wholly, and a TPU would refuse nothing of them."""
        return self.outcome == "passed"

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps({"version": VERSION, "outcome": self.outcome, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str | bytes) -> Report:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is no report, or one of another podlift.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            if data.pop("version") != VERSION:
                raise ValueError("another version")
            data.pop("outcome")
            data["findings"] = tuple(Finding(**found) for found in data["findings"])
            data["layers"] = tuple(Layer(**{**each, "shape": tuple(each["shape"])}) for each in data["layers"])
            return Report(**data)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"This is no report of a preflight: {error!r}") from None


def tidy(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, in the order of the program's lines; one rule says one thing of one line."""
    first: dict[tuple[str, int, str], Finding] = {}
    for found in findings:
        first.setdefault((found.path, found.line, found.rule), found)
    return tuple(sorted(first.values()))


def read(place: Path) -> Report | None:
    """Return a report that was kept; None where there is none, or one of another podlift."""
    try:
        return Report.from_json(place.read_bytes())
    except (OSError, ValueError):
        return None
