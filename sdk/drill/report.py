"""What a drill has found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_USER
from .comparison import Difference
from .losses import Killed

Verdict = Literal["passed", "not_equal", "not_reproducible", "kills_missed", "nothing_saved", "failed"]

_SHOWN = 8
_SENTENCES: dict[Verdict, str] = {
    "passed": "passed: killed and restored, the training ended with the very same weights, bit by bit",
    "not_equal": "not equal: killed and restored, the training ended with other weights",
    "not_reproducible": "not reproducible: two undisturbed trainings with the same seed ended with other weights, so that "
    "nothing can be said about one that is killed",
    "kills_missed": "kills missed: the weights are the same, but not every kill has happened",
    "nothing_saved": "nothing saved: the program trains nothing that is protected. A drill compares checkpoints: train with "
    "fit, or protect a loop of your own with sdk.context().checkpoint(...) and its step()",
    "failed": "failed: killed, the training did not get to its end",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A place of the program that asks for random numbers, or an order of things, that no seed decides.

    Args:
        what: is called.
        file: path in the bundle.
        line: counts from 1.
    """

    what: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.what}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a drill has found.

    Attributes:
        verdict: "passed", or why not.
        weights_equal: True where the killed training has ended with the same variables, bit by bit: those of the model, the
            optimizer and the metrics; None where that was not found out.
        weights_sha: sha256 of them at the end of the undisturbed training; None where nothing was saved.
        steps: training steps of the undisturbed training.
        steps_lost: steps that were done again.
        every_steps: the interval of the checkpoints.
        seconds_lost: how much longer the killed training took than the undisturbed ones did on average.
        attempts: how often the killed training was started.
        kills: those that have happened.
        kills_missed: those whose moment never came.
        seed: of everything random, the moments of random kills too.
        differences: the first arrays that differ.
        sources: what of the program no seed decides.
        downgrades: what of the training's state is not restored exactly, as the checkpoints say.
        notes: what else there is to say.
        runs: directories of the runs: "undisturbed", "again" and "killed".
        user_fault: False where it was not the program that made a training fail.
    """

    verdict: Verdict
    weights_equal: bool | None = None
    weights_sha: str | None = None
    steps: int = 0
    steps_lost: int = 0
    every_steps: int = 0
    seconds_lost: float = 0.0
    attempts: int = 0
    kills: tuple[Killed, ...] = ()
    kills_missed: tuple[str, ...] = ()
    seed: int = 0
    differences: tuple[Difference, ...] = ()
    sources: tuple[Source, ...] = ()
    downgrades: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    runs: Mapping[str, str]
    user_fault: bool = True

    @property
    def passed(self) -> bool:
        """True where all is as it should be."""
        return self.verdict == "passed"

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return EXIT_DONE if self.passed else EXIT_USER if self.user_fault else EXIT_INFRASTRUCTURE

    def to_data(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "passed": self.passed, "exit_code": self.exit_code}

    def __str__(self) -> str:
        lines = [_SENTENCES[self.verdict]]
        lines += [f"{name:<12} {text}" for name, text in (*self._about_weights(), *self._about_kills())]
        lines += [f"{name:<12} {text}" for name, text in self._about_doubts()]
        return "\n".join(lines)

    def _about_weights(self) -> Iterator[tuple[str, str]]:
        if self.weights_sha is not None:
            yield "weights", f"sha256 {self.weights_sha}"
            yield "steps", f"{self.steps} in all, {self.steps_lost} done again; saved every {self.every_steps}"
        for number, difference in enumerate(self.differences):
            if number == _SHOWN:
                yield "differs", f"and {len(self.differences) - _SHOWN} more: --json names them all"
                return
            yield "differs", ("first in " if not number else "") + str(difference)

    def _about_kills(self) -> Iterator[tuple[str, str]]:
        if self.attempts:
            yield "attempts", f"{self.attempts}, {self.seconds_lost:.1f} s longer than undisturbed"
        for kill in self.kills:
            yield "kill", str(kill)
        for kill_missed in self.kills_missed:
            yield "missed", f"{kill_missed}: this moment never came"

    def _about_doubts(self) -> Iterator[tuple[str, str]]:
        for sentence in self.downgrades:
            yield "not exact", sentence
        for source in self.sources:
            yield "no seed", str(source)
        for note in self.notes:
            yield "note", note
        yield from self.runs.items()
