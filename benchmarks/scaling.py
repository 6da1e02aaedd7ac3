"""What two workers reach of two independent processes: unchanged `fit`, a custom loop with podlift's helpers, and by hand.

All processes stay, and the ways take turns: a round takes half a minute, and the machine's drift meets all of them.
`SCALING_NETS` and `SCALING_WAYS` choose what is measured, and `SCALING_STEPS` how many steps a turn has.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import sdk

TITLE = "Two workers relative to two independent processes"
PROGRAM = Path(__file__).parent / "programs" / "scaling_steps.py"
CHAR_LM = Path(__file__).parent.parent / "jobs" / "char_lm" / "train.py"
STEPS = 30
NETS = {
    "bench": "A convolutional net with BatchNormalization, 64 images a worker",
    "char_lm": "`jobs/char_lm`, 10 texts a worker",
}
ALONE = "alone"
NAMES = {
    ALONE: "two independent processes, `fit`, each pinned to a core",
    "fit": "`fit` through podlift",
    "helpers": "a custom loop with podlift's helpers",
    "hand": "a custom loop, MultiWorkerMirroredStrategy started by hand",
}
_START_S, _TURN_S = 300, 300


@dataclass(frozen=True)
class Turn:
    """Both workers together: examples per second inside the steps and from call to return; milliseconds of one step."""

    inside: float
    returned: float
    took_s: float
    step_ms: float
    cpu_ms: float
    parameters: int


@dataclass(frozen=True)
class Rounds:
    """The first turn of each way, in which it traces, and the later ones, round by round."""

    first: dict[str, Turn]
    later: list[dict[str, Turn]]


def run(count: int) -> list[str]:
    """Return the section's lines."""
    ways = (os.environ.get("SCALING_WAYS") or " ".join(NAMES)).split()
    steps = int(os.environ.get("SCALING_STEPS") or STEPS)
    lines: list[str] = []
    for net in (os.environ.get("SCALING_NETS") or " ".join(NETS)).split():
        lines += section(NETS[net], _measured(net, ways, steps, count), steps)
    return [*lines, *_said()]


def section(title: str, rounds: Rounds, steps: int) -> list[str]:
    """Return the lines about one net."""
    parameters = rounds.first[ALONE].parameters
    heads = ("step, ms", "inside the steps", "from call to return", "CPU of a step, ms", "the first call, s")
    lines = [f"{title}, {parameters / 1e6:.2f} million parameters, {len(rounds.later)} rounds of {steps} steps.", ""]
    lines += [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for way, first in rounds.first.items():
        turns = [each[way] for each in rounds.later]
        against = [each[ALONE].inside for each in rounds.later]
        inside = [turn.inside / ceiling for turn, ceiling in zip(turns, against, strict=True)]
        returned = [turn.returned / ceiling for turn, ceiling in zip(turns, against, strict=True)]
        step, cpu = (statistics.median(getattr(turn, name) for turn in turns) for name in ("step_ms", "cpu_ms"))
        numbers = f"{step:.0f} | {_spread(inside)} | {_spread(returned)} | {cpu:.0f} | {first.took_s:.1f}"
        lines.append(f"| {NAMES[way]} | {numbers} |")
    return [*lines, ""]


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _said() -> list[str]:
    return [
        "Ratios are examples per second of both workers relative to the two independent processes *inside their steps* in the "
        "same round, in wall time: medians, smallest and largest. Inside the steps: from the end of "
        "the first one to the end of the last one. From call to return, a call of `fit` or one pass of the loop counts as a "
        "whole, with its checkpoint at the end. All processes stay and take turns; their first call, which traces, warms up."
    ]


def _measured(net: str, ways: Sequence[str], steps: int, count: int) -> Rounds:
    with ExitStack() as stack:
        lines = {way: stack.enter_context(started(net, way, steps)) for way in ways}
        first = {way: turn(lines[way]) for way in ways}
        # Every other round in the opposite order.
        orders = [ways if number % 2 else ways[::-1] for number in range(count)]
        return Rounds(first, [{way: turn(lines[way]) for way in order} for order in orders])


def turn(lines: Sequence[TextIO]) -> Turn:
    """Let both workers of one way train once."""
    for each in lines:
        print("go", file=each, flush=True)
    answers = [each.readline() for each in lines]
    if not all(answers):
        raise RuntimeError("a worker of the benchmark has ended: its log is above, or in the run directory")
    found = [json.loads(answer) for answer in answers]
    return Turn(
        inside=sum(one["examples"] * (one["steps"] - 1) / one["inside_s"] for one in found),
        returned=sum(one["examples"] * one["steps"] / one["took_s"] for one in found),
        took_s=statistics.mean(one["took_s"] for one in found),
        step_ms=statistics.mean(1000 * one["inside_s"] / (one["steps"] - 1) for one in found),
        cpu_ms=statistics.mean(1000 * one["cpu_s"] / one["steps"] for one in found),
        parameters=int(found[0]["parameters"]),
    )


@contextmanager
def started(net: str, way: str, steps: int) -> Iterator[list[TextIO]]:
    """Start the two workers of one way; yield their connections."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("localhost", 0)))
        listening.settimeout(_START_S)
        port = str(listening.getsockname()[1])

        def words(core: str) -> list[str]:
            return [net, way, core, str(steps), port, str(CHAR_LM)]

        if way in ("fit", "helpers"):
            stack.enter_context(_by_podlift(words("any")))
        else:
            stack.enter_context(_by_hand(way, words))
        lines = []
        for _ in range(2):
            connection = stack.enter_context(listening.accept()[0])
            connection.settimeout(_TURN_S)
            lines.append(stack.enter_context(connection.makefile("rw")))
            lines[-1].readline()
        yield lines  # then the connections are closed, which ends the workers


@contextmanager
def _by_hand(way: str, words: Callable[[str], list[str]]) -> Iterator[None]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("", 0))) for _ in range(2)]
        workers = [f"localhost:{one.getsockname()[1]}" for one in held]
    children = []
    for index in range(2):
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **({} if way == ALONE else {"TF_CONFIG": config})}
        command = [sys.executable, str(PROGRAM), *words(str(index) if way == ALONE else "any")]
        children.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
    try:
        yield
        for child in children:
            child.wait(_START_S)
    finally:
        for child in children:
            child.kill()
            child.wait()


@contextmanager
def _by_podlift(words: list[str]) -> Iterator[None]:
    job = sdk.Job(PROGRAM, args=words, resources=sdk.Resources(workers=2), code=sdk.Code(project=PROGRAM.parent))
    with tempfile.TemporaryDirectory() as root:
        run = sdk.submit(job, root=root)
        try:
            yield
            run.result(_START_S)
        finally:
            run.cancel()
            run.wait(_START_S)
