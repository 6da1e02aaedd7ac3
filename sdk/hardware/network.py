"""The bandwidth of machines, per machine and in each direction.

Source: documentation of Compute Engine, network-bandwidth, gpu-network-bandwidth and the pages of the machine families: the
largest egress rate inside a network, without Tier_1. A machine that is not listed has no known bandwidth. A row is confirmed
if a stored copy of these pages states its number; the others were written from memory, and predict what a run has to show.
"""

from __future__ import annotations

from .machines import vcpus

# From this number of vCPUs on, Gbit/s; the last row that fits counts.
_BY_VCPUS: dict[str, tuple[tuple[int, float], ...]] = {
    "n1": ((2, 10), (8, 16), (16, 32)),  # confirmed: 16 for n1-standard-8, and at most 32
    "n2": ((2, 10), (8, 16), (16, 32)),  # unconfirmed
    "c2": ((4, 10), (8, 16), (16, 32)),  # unconfirmed
    "e2": ((2, 4), (4, 8), (8, 16)),  # unconfirmed
    "g2": ((4, 10), (8, 16), (16, 32), (48, 50), (96, 100)),  # confirmed: at most 100
}
# On an N1 machine these have up to 100 Gbit/s, by the number of GPUs and vCPUs; P100 and P4 have what the machine has. The
# pages that were read do not hold that table, so no number is claimed: one that is too low would warn without need.
_FASTER_ON_N1 = ("t4", "v100")
# Unconfirmed, but that A2 has at most 100.
_BY_NAME = {
    "a2-highgpu-1g": 24.0,
    "a2-highgpu-2g": 32.0,
    "a2-highgpu-4g": 50.0,
    "a2-highgpu-8g": 100.0,
    "a2-megagpu-16g": 100.0,
}


def gbit(machine: str, accelerator: str = "cpu") -> float | None:
    """Return the bandwidth of a machine type with this accelerator in Gbit/s; None if it is not known."""
    if machine.startswith("n1-") and accelerator.partition(":")[0] in _FASTER_ON_N1:
        return None
    count = vcpus(machine)
    rows = _BY_VCPUS.get(machine.partition("-")[0], ())
    fitting = [rate for least, rate in rows if count is not None and count >= least]
    return _BY_NAME.get(machine, float(fitting[-1]) if fitting else None)
