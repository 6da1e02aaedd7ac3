"""The quota metrics that a job uses, as the services tell them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

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


def quota_response(project: str, metric: str, *, exceeded: bool) -> dict[str, Any]:
    """Return a metric as Service Usage shows it: here nothing is limited, unless create calls are refused for a quota.

    Args:
        project: whose.
        metric: its full name.
        exceeded: whether they are.
    """
    name = f"projects/{project}/services/{metric.partition('/')[0]}/consumerQuotaMetrics/{quote(metric, safe='')}"
    limit = {"effectiveLimit": "0" if exceeded else "-1"}
    in_region = {
        "name": f"{name}/limits/%2Fproject%2Fregion",
        "metric": metric,
        "unit": "1/{project}/{region}",
        "quotaBuckets": [limit],
    }
    return {"name": name, "metric": metric, "consumerQuotaLimits": [in_region]}


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
