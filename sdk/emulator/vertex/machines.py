"""The machines that custom jobs may use, with accelerators, regions and quotas, as Google documents them. Pure.

This knowledge is deliberately separate from podlift's own: a test compares the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any
from urllib.parse import quote

_TABLE = json.loads(resources.files(__package__).joinpath("machines.json").read_text())
# Rows of machine types, accelerator types and counts.
_ATTACHED: list[tuple[str, str, list[int]]] = _TABLE["accelerators"]
# By machine type: topology -> number of machines.
_TOPOLOGIES: dict[str, dict[str, int]] = _TABLE["tpu_topologies"]
# By accelerator or family of machines.
_REGIONS: dict[str, list[str]] = _TABLE["regions"]
FLEX_START = frozenset(_TABLE["flex_start"])
_CPU = re.compile(
    r"e2-standard-(4|8|16|32)|e2-highmem-(2|4|8|16)|e2-highcpu-(16|32)"
    r"|n1-standard-(4|8|16|32|64|96)|n1-highmem-(2|4|8|16|32|64|96)|n1-highcpu-(16|32|64|96)"
    r"|n[24]-(standard|highmem|highcpu)-[1-9][0-9]{0,2}|c2-standard-(4|8|16|30|60)|m1-[a-z]+-[1-9][0-9]{0,2}"
)
_7X = re.compile(r"(\d{1,2})x(\d{1,2})x(\d{1,2})", re.ASCII)
_POD_CORES = 32
_QUOTA_PREFIX = "aiplatform.googleapis.com/custom_model_training_"
_QUOTA_TPUS = {"ct5lp": "tpu_v5e", "ct6e": "tpu_v6e", "tpu7x": "tpu_7x"}


def is_tpu(spec: Mapping[str, Any]) -> bool:
    kind = spec.get("machineType", "")
    return kind == "cloud-tpu" or kind in _TOPOLOGIES or kind == "tpu7x-standard-4t"


def hosts(spec: Mapping[str, Any]) -> int:
    kind, topology = spec.get("machineType", ""), spec.get("tpuTopology", "")
    if kind == "cloud-tpu":
        return max(int(spec.get("acceleratorCount", 8)) // 8, 1)
    if kind == "tpu7x-standard-4t" and (match := _7X.fullmatch(topology)):
        return max(int(match[1]) * int(match[2]) * int(match[3]) // 4, 1)
    return _TOPOLOGIES.get(kind, {}).get(topology, 1)


def problem(spec: Mapping[str, Any], region: str) -> str | None:
    """Return what is wrong with a machine spec, as a sentence; None if the region has such machines."""
    kind = spec.get("machineType", "")
    accelerator, count = spec.get("acceleratorType", ""), spec.get("acceleratorCount", 0)
    if kind == "cloud-tpu":
        found = _old_tpu(accelerator, count, spec)
    elif is_tpu(spec):
        found = _new_tpu(kind, accelerator, spec.get("tpuTopology", ""))
    else:
        found = _gpu(kind, accelerator, count, spec.get("tpuTopology", ""))
    if found is None:
        for key in (accelerator, kind.partition("-")[0]):
            if key in _REGIONS and region not in _REGIONS[key]:
                with_accelerator = f" with accelerator {accelerator}" if accelerator else ""
                return f'Machine type "{kind}"{with_accelerator} is not supported in region {region}.'
    return found


def _old_tpu(accelerator: str, count: int, spec: Mapping[str, Any]) -> str | None:
    if accelerator not in ("TPU_V2", "TPU_V3"):
        return f'Machine type "cloud-tpu" requires accelerator type TPU_V2 or TPU_V3. Received: {accelerator!r}.'
    if spec.get("tpuTopology"):
        return 'Machine type "cloud-tpu" has no TPU topology.'
    if count != 8 and (count < _POD_CORES or count % _POD_CORES):
        return f"Accelerator count {count} is not supported for {accelerator}; it is 8 or a multiple of {_POD_CORES}."
    return None


def _new_tpu(kind: str, accelerator: str, topology: str) -> str | None:
    if accelerator:
        return f'Machine type "{kind}" requires a TPU topology and no accelerator type. Received: {accelerator!r}.'
    known = ", ".join(_TOPOLOGIES.get(kind, ["2x2x1"]))
    fits = topology in _TOPOLOGIES[kind] if kind in _TOPOLOGIES else _7X.fullmatch(topology)
    return None if fits else f'TPU topology {topology!r} is not supported for machine type "{kind}": {known}.'


def _gpu(kind: str, accelerator: str, count: int, topology: str) -> str | None:
    rows = [row for row in _ATTACHED if re.fullmatch(row[0], kind)]
    if not rows and not _CPU.fullmatch(kind):
        return f'Machine type "{kind}" is not supported.'
    if topology:
        return f'Machine type "{kind}" has no TPU topology.'
    if not accelerator:
        if count:
            return f"Accelerator count {count} needs an accelerator type."
        # The accelerator is optional only for machines that exist without one.
        return None if _CPU.fullmatch(kind) else f'Machine type "{kind}" requires accelerator type {rows[0][1]}.'
    counts = {each for _, kinds, counts in rows if re.fullmatch(kinds, accelerator) for each in counts}
    if not counts:
        return f'Accelerator type {accelerator} is not supported for machine type "{kind}".'
    if count not in counts:
        known = ", ".join(map(str, sorted(counts)))
        return f'Accelerator count {count} of {accelerator} is not supported for machine type "{kind}": {known}.'
    return None


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
