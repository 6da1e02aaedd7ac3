"""The names of the quota metrics that a job uses, as the service tells them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "aiplatform.googleapis.com/custom_model_training_"
_TPUS = {"ct5lp": "tpu_v5e", "ct6e": "tpu_v6e", "tpu7x": "tpu_7x"}


def metrics(job: Mapping[str, Any]) -> list[str]:
    """Return the metrics of a job's machines; those of spot and flex-start are called preemptible."""
    spec = job.get("jobSpec", {})
    preemptible = spec.get("scheduling", {}).get("strategy") in ("SPOT", "FLEX_START")
    found: list[str] = []
    for pool in spec.get("workerPoolSpecs", []):
        if pool:
            found.append(f"{_PREFIX}{'preemptible_' if preemptible else ''}{_metric(pool.get('machineSpec', {}))}")
    return list(dict.fromkeys(found))


def message(job: Mapping[str, Any]) -> str:
    """Return what a create call is refused with."""
    return f"The following quota metrics exceed quota limits: {','.join(metrics(job))}"


def _metric(machine: Mapping[str, Any]) -> str:
    accelerator, kind = machine.get("acceleratorType", ""), machine.get("machineType", "")
    if accelerator.startswith("TPU_"):
        return str(accelerator).lower()
    family = kind.partition("-")[0]
    if family in _TPUS:
        return _TPUS[family]
    if accelerator:
        return f"{accelerator.lower().replace('nvidia_tesla_', 'nvidia_')}_gpus"
    return "cpus" if family in ("n1", "e2") else f"{family}_cpus"
