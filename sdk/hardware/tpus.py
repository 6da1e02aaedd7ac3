"""TPUs of Vertex AI's training machines.

Sources, read 2026-11-20 and 2026-11-28: documentation of Vertex AI, training/configure-compute (machines, topologies) and
training/training-with-tpu-vm (TensorFlow), of Cloud TPU, runtimes (newest TensorFlow and libtpu); memory of a chip from the
vendor's data sheets.
A name counts what the generation counts: cores for v2 and v3 (four chips are v2-8), chips from v5e on.
"""

from __future__ import annotations

from math import prod

from . import Accelerator, Rate, rates
from .regions import ACCELERATORS

# The newest release of tensorflow-tpu; the oldest, and the newest documented one, come from the documentation.
_NEWEST, _DOCUMENTED = (2, 20), (2, 18)
_OLDEST = {"v2": (2, 11), "v3": (2, 11), "v5e": (2, 15)}
_MEMORY_GIB = {"v2": 16, "v3": 32, "v5e": 16, "v6e": 32, "tpu7x": None}
_NO_TENSORFLOW = {
    "v6e": (
        "Google's pages contradict each other: training-with-tpu-vm ends TensorFlow's support before v6e, "
        "configure-compute lets tf-nightly from 2.18 on run; no released TensorFlow is documented for training on it"
    ),
    "tpu7x": "TensorFlow is not supported on tpu7x: it is documented for JAX only",
}
_PJRT = (("NEXT_PLUGGABLE_DEVICE_USE_C_API", "true"), ("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "/lib/libtpu.so"))
# Chips in one machine: machine type, CPUs, memory in GB.
_V5E = {1: ("ct5lp-hightpu-1t", 24, 48), 4: ("ct5lp-hightpu-4t", 112, 192), 8: ("ct5lp-hightpu-8t", 224, 384)}
# From v5e on: the end of the name, the chips in one machine, the topology.
_SHAPES = (
    ("1", 1, "1x1"), ("4", 4, "2x2"), ("8", 8, "2x4"), ("8@4t", 4, "2x4"),
    ("16", 4, "4x4"), ("32", 4, "4x8"), ("64", 4, "8x8"), ("128", 4, "8x16"), ("256", 4, "16x16"),
)  # fmt: skip


def _row(
    generation: str, end: str, *, hosts: int, chips: int, machine: str, instead: str, **facts: object
) -> Accelerator:
    name, oldest = f"{generation}-{end}", _OLDEST.get(generation)
    several = "TensorFlow on several TPU machines needs images that are no longer maintained"
    refused = _NO_TENSORFLOW.get(generation) or (f"it spans {hosts} machines, and {several}" if hosts > 1 else "")
    return Accelerator(
        name=name,
        family="tpu",
        # TPUs of one machine have a stand-in on CPUs.
        backends=("vertex",) if refused else ("local", "vertex", *(("kubernetes",) if generation == "v5e" else ())),
        title=f"TPU {generation.removeprefix('tpu')}",
        machine=machine,
        machines=(machine,),
        chips=chips,
        hosts=hosts,
        memory_gib=_MEMORY_GIB[generation],
        regions=ACCELERATORS[f"{generation} pod" if hosts > 1 and f"{generation} pod" in ACCELERATORS else generation],
        includes_machine=True,
        runs_tensorflow=oldest is not None,
        tensorflow=(oldest, _NEWEST) if oldest else None,
        documented=_DOCUMENTED if oldest else None,
        refused=refused,
        instead=instead if refused else "",
        **facts,  # type: ignore[arg-type]
    )


def _by_cores(generation: str, price: tuple[Rate, ...]) -> list[Accelerator]:
    """v2 and v3: one machine has 8 cores in 4 chips, a pod a multiple of 32 cores."""
    return [
        _row(
            generation, f"{cores}", hosts=cores // 8, chips=cores // 2, machine="cloud-tpu", instead=f"{generation}-8",
            aliases=(f"tpu-{generation}-{cores}",), type=f"TPU_{generation.upper()}", count=cores,
            rates=price if cores == 8 else (), quota=f"tpu_{generation}",
        )
        for cores in (8, 32, 64, 128, 256, 512)
    ]  # fmt: skip


def _v5e(end: str, per_host: int, topology: str) -> Accelerator:
    chips = _chips(topology)
    machine, vcpus, ram_gb = _V5E[per_host]
    price = (
        *rates(1.20, 0.245, times=chips),
        *rates(None, 0.245, times=chips, regions=("us-east1", "us-west1"), on_demand=1.20),
        *rates(None, 0.48, times=chips, regions=("us-west4",), on_demand=1.20),
    )
    return _row(
        "v5e", end, hosts=chips // per_host, chips=chips, machine=machine, instead="v5e-8", topology=topology, vcpus=vcpus,
        ram_gb=ram_gb, rates=price, env=_PJRT, aliases=(f"tpu-v5e-{end}", f"v5litepod-{end}"), quota="tpu_v5e",
    )  # fmt: skip


def _v6e(end: str, per_host: int, topology: str) -> Accelerator:
    chips = _chips(topology)
    return _row(
        "v6e", end, hosts=chips // per_host, chips=chips, machine=f"ct6e-standard-{per_host}t", instead=f"v5e-{min(chips, 8)}",
        topology=topology, rates=rates(2.70, 0.544, times=chips), aliases=(f"tpu-v6e-{end}",),
    )  # fmt: skip


def _tpu7x(topology: str, instead: str) -> Accelerator:
    chips = _chips(topology)
    return _row(
        "tpu7x", f"{chips}", hosts=chips // 4, chips=chips, machine="tpu7x-standard-4t", instead=instead, topology=topology,
        aliases=(f"v7x-{chips}",),
    )  # fmt: skip


def _chips(topology: str) -> int:
    return prod(int(side) for side in topology.split("x"))


ROWS = (
    *_by_cores("v2", rates(4.50, 1.35)),
    *_by_cores("v3", rates(8.00, 2.04)),
    *(_v5e(*shape) for shape in _SHAPES),
    *(_v6e(*shape) for shape in _SHAPES),
    _tpu7x("2x2x1", "v5e-4"),
    *(
        _tpu7x(topology, "v5e-8")
        for topology in ("2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
    ),
)
# Generations that are not available for training.
ABSENT = {"v4": "v3-8", "v5p": "v5e-8"}
