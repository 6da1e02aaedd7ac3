"""The report of a drill, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_USER
from .comparison import ArrayDifference
from .kills import Killed

Verdict = Literal["passed", "not_equal", "not_reproducible", "kills_missed", "nothing_saved", "failed"]

_SHOWN = 8
_SENTENCES: dict[Verdict, str] = {
    "passed": "passed: killed and restored, the training ended with exactly the same weights",
    "not_equal": "not equal: killed and restored, the training ended in a different state",
    "not_reproducible": "not reproducible: two undisturbed trainings with the same seed ended in different states, so "
    "a killed one cannot be compared",
    "kills_missed": "kills missed: the weights are the same, but not every kill happened",
    "nothing_saved": "nothing saved: the program has no training with checkpoints, which a drill compares. Next: train with "
    "fit, or add sdk.context().checkpoint(...) and its step() to your own loop",
    "failed": "failed: after the kills the training did not finish",
}


@dataclass(frozen=True, kw_only=True)
class UnseededCall:
    """A line of the program with random numbers, or an order, that no seed determines."""

    what: str  # the called function
    file: str  # path in the bundle
    line: int  # from 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.what}"


@dataclass(frozen=True, kw_only=True)
class DrillReport:
    verdict: Verdict
    # True if the killed training ended with the same variables (model, optimizer, metrics), bit by bit; None if not compared.
    weights_equal: bool | None = None
    weights_sha: str | None = None  # sha256 of them after the undisturbed training; None if nothing was saved
    steps: int = 0  # training steps of the undisturbed training
    steps_lost: int = 0  # repeated steps
    every_steps: int = 0  # interval of the checkpoints
    seconds_lost: float = 0.0  # how much longer the killed training took than the undisturbed ones on average
    attempts: int = 0  # of the killed training
    kills: tuple[Killed, ...] = ()  # the kills that happened
    kills_missed: tuple[str, ...] = ()  # the kills at points that were never reached
    seed: int = 0  # of everything random, including random kills
    differences: tuple[ArrayDifference, ...] = ()  # the first arrays that differ
    sources: tuple[UnseededCall, ...] = ()  # calls in the program that no seed determines
    downgrades: tuple[str, ...] = ()  # state that is not restored exactly, according to the checkpoints
    notes: tuple[str, ...] = ()
    runs: Mapping[str, str]  # directories of the runs: "undisturbed", "again" and "killed"
    user_fault: bool = True  # False if a training failed for a reason other than the program

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    @property
    def exit_code(self) -> int:
        if self.passed:
            return EXIT_DONE
        return EXIT_USER if self.user_fault else EXIT_INFRASTRUCTURE

    def to_data(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed, "exit_code": self.exit_code}

    def __str__(self) -> str:
        lines = [_SENTENCES[self.verdict]]
        lines += [f"{name:<12} {text}" for name, text in (*self._about_weights(), *self._about_kills())]
        lines += [f"{name:<12} {text}" for name, text in self._about_doubts()]
        return "\n".join(lines)

    def _about_weights(self) -> Iterator[tuple[str, str]]:
        if self.weights_sha is not None:
            yield "weights", f"sha256 {self.weights_sha}"
            yield "steps", f"{self.steps} in all, {self.steps_lost} repeated; saved every {self.every_steps}"
        for number, difference in enumerate(self.differences):
            if number == _SHOWN:
                yield "differs", f"and {len(self.differences) - _SHOWN} more: --json names them all"
                return
            yield "differs", ("first in " if not number else "") + str(difference)

    def _about_kills(self) -> Iterator[tuple[str, str]]:
        if self.attempts:
            # On a busy machine the undisturbed trainings may be the slower ones.
            longer = "longer" if self.seconds_lost >= 0 else "shorter"
            yield "attempts", f"{self.attempts}, {abs(self.seconds_lost):.1f} s {longer} than undisturbed"
        for kill in self.kills:
            yield "kill", str(kill)
        for kill_missed in self.kills_missed:
            yield "missed", f"{kill_missed}: this point was never reached"

    def _about_doubts(self) -> Iterator[tuple[str, str]]:
        for sentence in self.downgrades:
            yield "not exact", sentence
        for source in self.sources:
            yield "no seed", str(source)
        for note in self.notes:
            yield "note", note
        yield from self.runs.items()
