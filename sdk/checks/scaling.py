"""What it costs to sum the gradients of all workers in each step, and when that dominates.

A ring: each worker sends and receives 2 (n-1)/n times the bytes of the gradients, in 2 (n-1) messages one after the other.
The costs are fitted to measurements (decisions/scaling.md); `scripts/bench collectives` fits them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..job.findings import Finding, warning

# A warning names communication from this share of a step on.
DOMINATES = 0.5
# What takes less per step needs no warning: it is a toy.
_NOTICED_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of one core: of each sum, of each of its messages, and of each byte that a worker sends and receives."""

    sum_s: float
    message_s: float
    byte_s: float


FITTED = Costs(sum_s=1.05e-3, message_s=6.8e-5, byte_s=3.08e-9)


@dataclass(frozen=True, kw_only=True)
class Network:
    """What connects the workers.

    Args:
        gbit: bandwidth of each worker's machine, in Gbit/s and each direction; None if all of them are on one machine.
        per_core: workers for each core of that machine; at most 1 counts as 1.
        grpc: False if GPUs exchange through NCCL, of which only the wire is predicted.
    """

    gbit: float | None = None
    per_core: float = 1.0
    grpc: bool = True


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What a run has shown of a program.

    Args:
        run: its id.
        gradient_bytes: bytes of the gradients that its workers exchange in each step.
        step_s: seconds from one step to the next, everything in between included.
        workers: number of its workers.
        network: what connected them; None if unknown.
        accelerator: what it computed on.
    """

    run: str
    gradient_bytes: int
    step_s: float
    workers: int
    network: Network | None
    accelerator: str = "cpu"


def exchange_s(size: int, workers: int, network: Network, costs: Costs = FITTED) -> float:
    """Return the seconds for which a step waits for the sum of `size` bytes of gradients."""
    if workers < 2:
        return 0.0
    sent = 2 * (workers - 1) / workers * size
    own = costs.sum_s + 2 * (workers - 1) * costs.message_s + sent * costs.byte_s if network.grpc else 0.0
    wire = 0.0 if network.gbit is None else sent * 8 / (network.gbit * 1e9)
    # A worker handles bytes before and after they travel. On shared cores, others work while one waits for the network.
    return max(own + wire, own * network.per_core)


def computing_s(pace: Pace) -> float:
    """Return what a step of a run took besides the exchange, at least a tenth of it."""
    waited = exchange_s(pace.gradient_bytes, pace.workers, pace.network) if pace.network is not None else 0.0
    return max(pace.step_s - waited, pace.step_s / 10)


def share(pace: Pace, workers: int, network: Network) -> float:
    """Return the part of a step that the exchange would take, if each worker computes as much in a step as in that run."""
    waits = exchange_s(pace.gradient_bytes, workers, network)
    return waits / (waits + computing_s(pace)) if waits else 0.0


def dominating(pace: Pace | None, workers: int, network: Network | None) -> Iterator[Finding]:
    """Yield a warning if communication would take most of a step."""
    if pace is None or network is None or (part := share(pace, workers, network)) < DOMINATES:
        return
    waits, size = exchange_s(pace.gradient_bytes, workers, network), pace.gradient_bytes / 1e6
    if waits < _NOTICED_S:
        return
    over = "on this machine" if network.gbit is None else f"over {network.gbit:g} Gbit/s"
    seen = f"the rest of a step took {computing_s(pace):.2g} s in the run {pace.run} ({pace.accelerator})"
    yield warning(
        f"Communication would take about {part:.0%} of each step: summing {size:.3g} MB of gradients over {workers} workers "
        f"takes about {waits:.2g} s {over}, and {seen}. Larger batches per worker, fewer workers or machines with more "
        "bandwidth reduce it"
    )
