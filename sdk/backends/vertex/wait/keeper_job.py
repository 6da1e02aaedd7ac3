"""The request for the job of any keeper: one CPU machine on demand, in the region of the first location. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ....job.targets import Keeper
from ....packaging.runtime_archive import loader
from ..job import body as job_body
from ..options import Vertex


def body(
    options: Vertex, keeper: Keeper, name: str, labels: Mapping[str, str], container: Mapping[str, object]
) -> Mapping[str, object]:
    pool = {
        "machineSpec": {"machineType": keeper.rental.pools[0].machine},
        "replicaCount": "1",
        "diskSpec": {"bootDiskSizeGb": keeper.rental.disk_gb},
        "containerSpec": {**container, "command": ["python3", "-c", loader()]},
    }
    return {
        "displayName": name[:128],
        "labels": {**options.labels, **labels},
        "jobSpec": {
            "workerPoolSpecs": [pool],
            "scheduling": {"timeout": f"{keeper.limit_s:.0f}s"},
            "serviceAccount": keeper.account,
            **job_body.network(options),
        },
        **job_body.encryption(options),
    }
