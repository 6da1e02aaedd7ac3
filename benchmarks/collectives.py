"""What the sum of the gradients costs in each step: on this machine, and over links that are shaped to a bandwidth.

Processes of one machine sum vectors of several sizes; then each has a network namespace, whose link the kernel shapes to 1 and
10 Gbit/s in both directions (needs root). The costs of sdk/checks/scaling.py are fitted to what was found.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sdk.checks.scaling import Costs, Network, exchange_s

TITLE = "The sum of the gradients"
PROGRAM = Path(__file__).parent / "programs" / "collective.py"
SIZES = (4, 65_536, 1_048_576, 4_194_304, 16_777_216)
# The bucket of a shaped link lets this much pass at once: smaller sums would not be shaped.
_BURST = 512 * 1024
_LIMIT_S = 300
# (workers, Gbit/s of each link, parameters of networks that are trained too)
CASES: tuple[tuple[int, float | None, Sequence[int]], ...] = (
    (2, None, (1_000_000, 4_000_000)),
    (4, None, (1_000_000, 4_000_000)),
    (8, None, ()),
    (16, None, ()),
    (32, None, ()),
    (2, 1.0, (1_000_000, 4_000_000)),
    (2, 10.0, (1_000_000, 4_000_000)),
    (4, 1.0, (1_000_000, 4_000_000)),
    (4, 10.0, (1_000_000, 4_000_000)),
)


@dataclass(frozen=True)
class Sum:
    """One size in one cluster: the seconds that a tenth of the sums needed at most, and the CPU seconds of one worker."""

    workers: int
    network: Network
    size: int
    fast_s: float
    cpu_s: float

    @property
    def fitted(self) -> bool:
        """True unless the bucket of the shaped link lets most of it pass at once."""
        return self.network.gbit is None or self.size >= 8 * _BURST


@dataclass(frozen=True)
class Step:
    """A training step of a dense network, alone in each worker and with the sum of its gradients."""

    workers: int
    network: Network
    size: int
    alone_s: float
    together_s: float


def run(count: int) -> list[str]:
    """Return the section's lines."""
    can_shape = os.geteuid() == 0
    sums: list[Sum] = []
    steps: list[Step] = []
    for workers, gbit, parameters in CASES:
        if gbit is None or can_shape:
            found = _measured(workers, gbit, parameters, count)
            network = Network(gbit=gbit, per_core=workers / (os.cpu_count() or 1))
            for size, one in found["sums"].items():
                sums.append(Sum(workers, network, int(size), one["fast_s"], one["cpu_s"]))
            for one in found.get("steps", ()):
                steps.append(Step(workers, network, one["bytes"], one["alone"]["fast_s"], one["together"]["fast_s"]))
    return section(sums, steps, "" if can_shape else "Links were not shaped, which needs root.")


def section(sums: Sequence[Sum], steps: Sequence[Step], said: str = "") -> list[str]:
    """Return the lines about what was found, with the costs that fit it best and what they predict."""
    costs = fit([each for each in sums if each.fitted])
    lines = [
        "| workers | link | bytes | a sum, ms | predicted, ms | | CPU of each, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(each, costs) for each in sums]
    lines += ["", "| workers | link | gradients, MB | step alone, ms | with the sum, ms | predicted, ms | |"]
    lines += ["|---|---|---|---|---|---|---|", *(_step_row(each, costs) for each in steps)]
    message_us, byte_ns = costs.message_s * 1e6, costs.byte_s * 1e9
    text = f"{costs.sum_s * 1e3:.2f} ms, {message_us:.0f} us for each message and {byte_ns:.2f} ns for each byte"
    spread = math.exp(math.sqrt(_error([each for each in sums if each.fitted], costs)))
    fitted = f"Fitted: {text}; typical residual: a factor of {spread:.2f}. Times are the fastest tenth. {said}"
    return [*lines, "", fitted.rstrip()]


def _row(each: Sum, costs: Costs) -> str:
    expected = exchange_s(each.size, each.workers, each.network, costs)
    note = f"{expected / each.fast_s - 1:+.0%}" if each.fitted else "not shaped"
    times = f"{each.fast_s * 1e3:.1f} | {expected * 1e3:.1f} | {note} | {each.cpu_s * 1e3:.1f}"
    return f"| {each.workers} | {_link(each.network)} | {each.size} | {times} |"


def _step_row(each: Step, costs: Costs) -> str:
    expected = each.alone_s + exchange_s(each.size, each.workers, each.network, costs)
    times = f"{each.alone_s * 1e3:.1f} | {each.together_s * 1e3:.1f} | {expected * 1e3:.1f}"
    change = f"{expected / each.together_s - 1:+.0%}"
    return f"| {each.workers} | {_link(each.network)} | {each.size / 1e6:.1f} | {times} | {change} |"


def _link(network: Network) -> str:
    return "none" if network.gbit is None else f"{network.gbit:g} Gbit/s"


def fit(sums: Sequence[Sum]) -> Costs:
    """Return the costs whose predictions are nearest, by their ratios to what was measured."""
    found, step = [1e-3, 1e-4, 1e-9], 2.0

    def made(values: Sequence[float]) -> Costs:
        return Costs(sum_s=values[0], message_s=values[1], byte_s=values[2])

    while step > 1.001:
        tried = [[*found[:at], found[at] * by, *found[at + 1 :]] for at in range(3) for by in (step, 1 / step)]
        best = min([found, *tried], key=lambda values: _error(sums, made(values)))
        if best is found:
            step = 1 + (step - 1) / 2
        found = best
    return made(found)


def _error(sums: Sequence[Sum], costs: Costs) -> float:
    ratios = [exchange_s(each.size, each.workers, each.network, costs) / each.fast_s for each in sums]
    return sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios)


def _measured(workers: int, gbit: float | None, parameters: Sequence[int], count: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as measured:
        env = {**os.environ, "SIZES": json.dumps(SIZES), "BUDGET_S": str(count / 5), "MEASURED": measured}
        env |= {
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "STEP_PARAMETERS": json.dumps(list(parameters)),
        }
        if gbit is None:
            _by_podlift(workers, env)
        else:
            with shaped(workers, gbit) as enter:
                _by_hand(workers, env, enter)
        first = next(path for name in ("chief0", "worker0") if (path := Path(measured, f"{name}.json")).exists())
        return json.loads(first.read_text())


def _by_podlift(workers: int, env: dict[str, str]) -> None:
    words = [sys.executable, "-m", "benchmarks.submit_and_account", str(PROGRAM), str(workers)]
    with tempfile.TemporaryDirectory() as root:
        names = ("SIZES", "BUDGET_S", "MEASURED", "STEP_PARAMETERS")
        done = subprocess.run([*words, *names], env={**env, "PODLIFT_ROOT": root}, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])


def _by_hand(workers: int, env: dict[str, str], enter: Callable[[int], list[str]]) -> None:
    hosts = [f"{_address(number)}:9000" for number in range(workers)]
    children = []
    for number in range(workers):
        config = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": number}})
        # As podlift does: each worker has its share of the cores.
        pinned = ["taskset", "-c", str(number % (os.cpu_count() or 1))]
        words = [*enter(number), *pinned, sys.executable, str(PROGRAM)]
        given = {**env, "TF_CONFIG": config, "TF_NUM_INTRAOP_THREADS": "1"}
        children.append(subprocess.Popen(words, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        codes = [child.wait(_LIMIT_S) for child in children]
    finally:
        for child in children:
            child.kill()
    if any(codes):
        raise RuntimeError(f"workers in namespaces ended with {codes}")


def _address(number: int) -> str:
    return f"10.77.0.{number + 1}"


@contextmanager
def shaped(workers: int, gbit: float) -> Iterator[Callable[[int], list[str]]]:
    """Make a network namespace for each worker, on a bridge, by links with a bandwidth; yield the command that enters one."""
    mark = f"p{os.getpid() % 10_000}"
    spaces = [f"{mark}-{number}" for number in range(workers)]
    rate = ["root", "tbf", "rate", f"{gbit}gbit", "burst", str(_BURST), "latency", "100ms"]
    _ip("link", "add", f"{mark}b", "type", "bridge")
    try:
        _ip("link", "set", f"{mark}b", "up")
        for number, space in enumerate(spaces):
            _ip("netns", "add", space)
            _ip("link", "add", f"{mark}v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", f"{mark}v{number}", "master", f"{mark}b", "up")
            _ip("-n", space, "addr", "add", f"{_address(number)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", space, "link", "set", device, "up")
            # What it sends is shaped in the namespace, and what it receives before it gets there.
            for inside, device in ((["ip", "netns", "exec", space], "eth0"), ([], f"{mark}v{number}")):
                subprocess.run([*inside, "tc", "qdisc", "add", "dev", device, *rate], check=True)
        yield lambda number: ["ip", "netns", "exec", spaces[number]]
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False)
        subprocess.run(["ip", "link", "del", f"{mark}b"], check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
