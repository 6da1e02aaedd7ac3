"""What two workers reach of two independent processes: unchanged `fit`, a custom loop with podlift's helpers, and by hand.

`SCALING_ROUNDS` names a file that keeps the rounds, so that they can be measured in several sittings; `SCALING_NETS` and
`SCALING_WAYS` choose what is measured.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import sdk

TITLE = "Two workers relative to two independent processes"
PROGRAM = Path(__file__).parent / "programs" / "scaling_steps.py"
CHAR_LM = Path(__file__).parent.parent / "jobs" / "char_lm" / "train.py"
STEPS = 60
NETS = {"bench": "a convolutional net with BatchNormalization", "char_lm": "`jobs/char_lm`"}
ALONE = "alone"
NAMES = {
    ALONE: "two independent processes, `fit`, each pinned to a core",
    "hand": "a custom loop by hand",
    "pinned": "a custom loop by hand, each worker pinned to a core",
    "fit": "`fit` through podlift",
    "helpers": "a custom loop with podlift's helpers",
}


@dataclass(frozen=True)
class Found:
    """Both workers together: examples per second inside the steps and from call to return, one step, CPU seconds of a step."""

    inside: float
    returned: float
    step_ms: float
    first_s: float
    cpu_ms: float
    parameters: int


def run(count: int) -> list[str]:
    """Return the section's lines."""
    kept = Path(
        os.environ.get("SCALING_ROUNDS") or tempfile.mkdtemp(), "" if os.environ.get("SCALING_ROUNDS") else "rounds"
    )
    ways = (os.environ.get("SCALING_WAYS") or " ".join(NAMES)).split()
    for _ in range(count):
        for net in (os.environ.get("SCALING_NETS") or " ".join(NETS)).split():
            found = {way: asdict(_measure(net, way)) for way in ways}
            with kept.open("a") as file:
                file.write(json.dumps({"net": net, "ways": found}) + "\n")
    rounds = [json.loads(line) for line in kept.read_text().splitlines()]
    lines: list[str] = []
    for net, title in NETS.items():
        lines += _table(
            title, [{way: Found(**one) for way, one in each["ways"].items()} for each in rounds if each["net"] == net]
        )
    return [*lines, *_said()]


def _table(title: str, rounds: Sequence[dict[str, Found]]) -> list[str]:
    if not rounds:
        return []
    first = rounds[0][ALONE]
    said = f"{title[0].upper()}{title[1:]}, {first.parameters / 1e6:.2f} million parameters."
    heads = ("step, ms", "inside the steps", "from call to return", "first step, s", "CPU per step, ms")
    lines = [said, "", f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for way, name in NAMES.items():
        both = [(each[way], each[ALONE]) for each in rounds if way in each]
        if both:
            inside = statistics.median(ours.inside / alone.inside for ours, alone in both)
            returned = statistics.median(ours.returned / alone.returned for ours, alone in both)
            step, first_s, cpu = (
                statistics.median(getattr(ours, field) for ours, _ in both)
                for field in ("step_ms", "first_s", "cpu_ms")
            )
            lines.append(
                f"| {name} ({len(both)}) | {step:.0f} | {inside:.2f} | {returned:.2f} | {first_s:.1f} | {cpu:.0f} |"
            )
    return [*lines, ""]


def _said() -> list[str]:
    return [
        f"{STEPS} steps of 64 images, or of 10 texts, for each worker. Ratios are examples per second of both workers relative "
        "to the two independent processes of the same round, in wall time; medians, with the number of rounds in parentheses. "
        "Inside the steps, the first one is left out, because it traces. From call to return, everything counts on both "
        "sides: tracing, the steps, and the end of the data."
    ]


def _measure(net: str, way: str) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder, "measured")
        measured.mkdir()
        if way in ("fit", "helpers"):
            _by_podlift(net, way, folder, str(measured))
        else:
            _by_hand(net, way, str(measured))
        return _found([json.loads(file.read_text()) for file in measured.glob("*.json")])


def _found(workers: Sequence[dict[str, list[float]]]) -> Found:
    rates: dict[str, float] = {"inside": 0.0, "returned": 0.0}
    steps: list[float] = []
    for one in workers:
        took = [end - begin for begin, end in zip(one["begun"], one["ended"], strict=True)]
        steps += took[1:]
        share = one["examples"][0]
        rates["inside"] += share * len(took[1:]) / sum(took[1:])
        rates["returned"] += share * len(took) / (one["returned"][0] - one["called"][0])
    return Found(
        **rates,
        step_ms=1000 * statistics.median(steps),
        first_s=statistics.mean(one["ended"][0] - one["called"][0] for one in workers),
        cpu_ms=1000 * sum(one["cpu_s"][0] for one in workers) / len(steps),
        parameters=int(workers[0]["parameters"][0]),
    )


def _words(name: str, net: str, way: str, core: str) -> list[str]:
    return [name, net, way, str(STEPS), core]


def _by_hand(net: str, way: str, measured: str) -> None:
    held = [socket.socket() for _ in range(2)]
    for one in held:
        one.bind(("", 0))
    workers = [f"localhost:{one.getsockname()[1]}" for one in held]
    for one in held:
        one.close()
    children = []
    for index in range(2):
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "MEASURED": measured, "CHAR_LM": str(CHAR_LM)}
        if way != ALONE:
            env["TF_CONFIG"] = config
        core = "any" if way == "hand" else str(index)
        words = [sys.executable, str(PROGRAM), *_words(str(index), net, ALONE if way == ALONE else "loop", core)]
        children.append(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    said = [child.communicate()[1] for child in children]
    if any(child.returncode for child in children):
        raise RuntimeError(b"".join(said)[-2000:].decode(errors="replace"))


def _by_podlift(net: str, way: str, root: str, measured: str) -> None:
    job = sdk.Job(
        PROGRAM,
        args=_words("", net, way, "any"),
        env={"MEASURED": measured, "CHAR_LM": str(CHAR_LM)},
        resources=sdk.Resources(workers=2),
        code=sdk.Code(project=PROGRAM.parent),
    )
    sdk.submit(job, root=root).result(600)
