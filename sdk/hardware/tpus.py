"""TPUs of Vertex AI's training machines.

Sources, read 2026-11-20: documentation of Vertex AI, training/configure-compute (machines, topologies),
general/locations (regions), training/training-with-tpu-vm (TensorFlow); memory of a chip from the vendor's data sheets.
A name counts what the generation counts: cores for v2 and v3 (four chips are v2-8), chips from v5e on.
"""

from __future__ import annotations

from math import prod

from . import Accelerator, Rate, rates

_REGIONS = {
    "v2": ("us-central1", "europe-west4", "asia-east1"),
    "v3": ("us-central1", "europe-west4"),
    # europe-west4 and us-south1 have them too, but not for training.
    "v5e": ("us-central1", "us-east1", "us-west1", "us-west4"),
    "v6e": (
        "us-central1", "us-east1", "us-east5", "us-south1", "europe-west4", "asia-northeast1", "southamerica-west1",
    ),
    "tpu7x": ("us-central1",),
}  # fmt: skip
# The newest release of tensorflow-tpu; the oldest are those of the documentation.
_NEWEST = (2, 20)
_OLDEST = {"v2": (2, 11), "v3": (2, 11), "v5e": (2, 15)}
_MEMORY_GIB = {"v2": 16, "v3": 32, "v5e": 16, "v6e": 32, "tpu7x": None}
_FLOPS = {"v5e": 197e12}  # docs.cloud.google.com/tpu/docs/v5e
_NO_TENSORFLOW = {
    "v6e": "TensorFlow is not supported on v6e",
    "tpu7x": "TensorFlow is not supported on tpu7x: it is documented for JAX only",
}
_PJRT = (("NEXT_PLUGGABLE_DEVICE_USE_C_API", "true"), ("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "/lib/libtpu.so"))
# Chips in one machine: machine type, CPUs, memory in GB.
_V5E = {1: ("ct5lp-hightpu-1t", 24, 48), 4: ("ct5lp-hightpu-4t", 112, 192), 8: ("ct5lp-hightpu-8t", 224, 384)}
_V6E = {1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"}
_PODS = ("4x4", "4x8", "8x8", "8x16", "16x16")


def _many_hosts(hosts: int) -> str:
    return (
        f"it spans {hosts} machines, and TensorFlow on several TPU machines needs images that are no longer maintained"
    )


def _row(generation: str, name: str, *, hosts: int, chips: int, instead: str, **more: object) -> Accelerator:
    oldest = _OLDEST.get(generation)
    why = _NO_TENSORFLOW.get(generation) or (_many_hosts(hosts) if hosts > 1 else "")
    facts: dict[str, object] = {"title": f"TPU {generation.removeprefix('tpu')}", **more}
    return Accelerator(
        name=name,
        family="tpu",
        # TPUs of one machine have a stand-in on CPUs.
        backends=("vertex",) if why else ("local", "vertex"),
        chips=chips,
        hosts=hosts,
        memory_gib=_MEMORY_GIB[generation],
        flops=_FLOPS.get(generation),
        regions=_REGIONS[generation],
        runs_tensorflow=oldest is not None,
        tensorflow=(oldest, _NEWEST) if oldest else None,
        refused=why,
        instead=instead if why else "",
        **facts,  # type: ignore[arg-type]
    )


def _by_cores() -> list[Accelerator]:
    """v2 and v3: one machine has 8 cores in 4 chips, a pod a multiple of 32 cores."""
    prices = {"v2": rates(4.50, 1.35), "v3": rates(8.00, 2.04)}
    return [
        _row(
            generation, f"{generation}-{cores}", hosts=cores // 8, chips=cores // 2, instead=f"{generation}-8",
            aliases=(f"tpu-{generation}-{cores}",), machine="cloud-tpu", machines=("cloud-tpu",), count=cores,
            type=f"TPU_{generation.upper()}", rates=price if cores == 8 else (), includes_machine=True,
            quota=f"tpu_{generation}",
        )
        for generation, price in prices.items()
        for cores in (8, 32, 64, 128, 256, 512)
    ]  # fmt: skip


def _v5e_rates(chips: int) -> tuple[Rate, ...]:
    return (
        *rates(1.20, 0.245, times=chips),
        *rates(None, 0.245, times=chips, regions=("us-east1", "us-west1")),
        *rates(None, 0.48, times=chips, regions=("us-west4",)),
    )


def _v5e() -> list[Accelerator]:
    shapes = [("v5e-1", 1, "1x1"), ("v5e-4", 4, "2x2"), ("v5e-8", 8, "2x4"), ("v5e-8@4t", 4, "2x4")]
    shapes += [(f"v5e-{_chips(pod)}", 4, pod) for pod in _PODS]
    rows = []
    for name, each, topology in shapes:
        chips = _chips(topology)
        machine, vcpus, ram_gb = _V5E[each]
        rows.append(
            _row(
                "v5e", name, hosts=chips // each, chips=chips, instead="v5e-8", machine=machine, machines=(machine,),
                topology=topology, vcpus=vcpus, ram_gb=ram_gb, rates=_v5e_rates(chips), includes_machine=True, env=_PJRT,
                aliases=(f"tpu-{name}", name.replace("v5e", "v5litepod")), quota="tpu_v5e",
            )
        )  # fmt: skip
    return rows


def _v6e() -> list[Accelerator]:
    shapes = [("v6e-1", 1, "1x1"), ("v6e-4", 4, "2x2"), ("v6e-8", 8, "2x4"), ("v6e-8@4t", 4, "2x4")]
    shapes += [(f"v6e-{_chips(pod)}", 4, pod) for pod in _PODS]
    nearest = {1: "v5e-1", 4: "v5e-4"}
    return [
        _row(
            "v6e", name, hosts=_chips(topology) // each, chips=_chips(topology),
            instead=nearest.get(_chips(topology), "v5e-8"), machine=_V6E[each], machines=(_V6E[each],), topology=topology,
            rates=rates(2.70, 0.544, times=_chips(topology)), includes_machine=True, aliases=(f"tpu-{name}",),
        )
        for name, each, topology in shapes
    ]  # fmt: skip


def _seventh() -> list[Accelerator]:
    machine = "tpu7x-standard-4t"
    return [
        _row(
            "tpu7x", f"tpu7x-{_chips(topology)}", hosts=_chips(topology) // 4, chips=_chips(topology),
            instead="v5e-4" if hosts == 1 else "v5e-8", machine=machine, machines=(machine,), topology=topology,
            includes_machine=True, aliases=(f"v7x-{_chips(topology)}",),
        )
        for topology, hosts in (("2x2x1", 1), ("8x8x16", 256))
    ]  # fmt: skip


def _chips(topology: str) -> int:
    return prod(int(side) for side in topology.split("x"))


ROWS = (*_by_cores(), *_v5e(), *_v6e(), *_seventh())
# Generations that are not available for training.
ABSENT = {"v4": "v3-8", "v5p": "v5e-8"}
