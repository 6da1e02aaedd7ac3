"""The rules for the machines of a custom job: TPUs, flex-start and quotas. Pure. `sdk.hardware` has the machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ...backends.vertex.checks.job_rules import rows_of
from ...hardware.accelerators import ROWS

# It is not documented for all of them that they lack it.
FLEX_START = frozenset(row.type for row in ROWS if row.family == "gpu" and row.flex is not False)
_QUOTA_PREFIX = "aiplatform.googleapis.com/custom_model_training_"
_QUOTA_TPUS = {"ct5lp": "tpu_v5e", "ct6e": "tpu_v6e", "tpu7x": "tpu_7x"}


def is_tpu(spec: Mapping[str, Any]) -> bool:
    return any(row.family == "tpu" for row in rows_of(spec.get("machineType")))


def hosts(spec: Mapping[str, Any]) -> int:
    if spec.get("machineType") == "cloud-tpu":
        return max(int(spec.get("acceleratorCount", 8)) // 8, 1)
    topology = spec.get("tpuTopology", "")
    return next((row.hosts for row in rows_of(spec.get("machineType")) if row.topology == topology), 1)


def quota_metrics(job: Mapping[str, Any]) -> list[str]:
    spec = job.get("jobSpec", {})
    prefix = _QUOTA_PREFIX
    if spec.get("scheduling", {}).get("strategy") in ("SPOT", "FLEX_START"):
        prefix += "preemptible_"
    pools = filter(None, spec.get("workerPoolSpecs", []))
    return list(dict.fromkeys(prefix + _quota_metric(pool.get("machineSpec", {})) for pool in pools))


def quota_response(project: str, metric: str, *, exceeded: bool) -> dict[str, Any]:
    """Return a metric as Service Usage shows it: unlimited, unless create calls are rejected for a quota."""
    name = f"projects/{project}/services/{metric.partition('/')[0]}/consumerQuotaMetrics/{quote(metric, safe='')}"
    in_region = {
        "name": f"{name}/limits/%2Fproject%2Fregion",
        "metric": metric,
        "unit": "1/{project}/{region}",
        "quotaBuckets": [{"effectiveLimit": "0" if exceeded else "-1"}],
    }
    return {"name": name, "metric": metric, "consumerQuotaLimits": [in_region]}


def _quota_metric(machine: Mapping[str, Any]) -> str:
    accelerator, kind = machine.get("acceleratorType", ""), machine.get("machineType", "")
    if accelerator.startswith("TPU_"):
        return str(accelerator).lower()
    family = kind.partition("-")[0]
    if family in _QUOTA_TPUS:
        return _QUOTA_TPUS[family]
    if accelerator:
        return f"{accelerator.lower().replace('nvidia_tesla_', 'nvidia_')}_gpus"
    return "cpus" if family in ("n1", "e2") else f"{family}_cpus"
