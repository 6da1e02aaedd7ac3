"""The bandwidth of machines, per machine and in each direction.

Source: documentation of Compute Engine, network-bandwidth and the pages of the machine families: the largest egress rate
inside a network, without Tier_1. A machine that is not listed has no known bandwidth.
"""

from __future__ import annotations

from .machines import vcpus

# From this number of vCPUs on, Gbit/s; the last row that fits counts.
_BY_VCPUS: dict[str, tuple[tuple[int, float], ...]] = {
    "n1": ((2, 10), (8, 16), (16, 32)),
    "n2": ((2, 10), (8, 16), (16, 32)),
    "c2": ((4, 10), (8, 16), (16, 32)),
    "e2": ((2, 4), (4, 8), (8, 16)),
    "g2": ((4, 10), (8, 16), (16, 32), (48, 50), (96, 100)),
}
_BY_NAME = {
    "a2-highgpu-1g": 24.0,
    "a2-highgpu-2g": 32.0,
    "a2-highgpu-4g": 50.0,
    "a2-highgpu-8g": 100.0,
    "a2-megagpu-16g": 100.0,
}


def gbit(machine: str) -> float | None:
    """Return the bandwidth of a machine type in Gbit/s; None if it is not known."""
    count = vcpus(machine)
    rows = _BY_VCPUS.get(machine.partition("-")[0], ())
    fitting = [rate for least, rate in rows if count is not None and count >= least]
    return _BY_NAME.get(machine, float(fitting[-1]) if fitting else None)
