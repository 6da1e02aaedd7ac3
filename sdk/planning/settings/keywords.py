"""Every setting of a call as a keyword, with its type: made from the table of settings by `scripts/reference`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from ...backends.kubernetes.options import Kubernetes as Kubernetes
from ...backends.local.options import Local as Local
from ...backends.ray.options import Ray as Ray
from ...backends.vertex.options import Vertex as Vertex
from ...job.job import FromCaller, JsonArgs
from ...job.secrets import Secret

Texts = Sequence[str | Path]
Inputs = Mapping[str, str | Path]
Env = Mapping[str, str | FromCaller | Secret]


class CommonJobKeywords(TypedDict, total=False):
    """The settings of a job that are parameters. None counts as a value if the setting accepts it, else as not given."""

    args: JsonArgs | None
    workers: int | None
    accelerator: str | None
    env: Env | None
    model: str | None
    checkpoint_every: str | float | None
    max_steps: int | None
    timeout: str | float | None
    max_cost_usd: float | None


class CommonKeywords(CommonJobKeywords, total=False):
    """The settings that are parameters of `plan` and `submit`: those of the target too."""

    backend: str | Kubernetes | Local | Ray | Vertex | None
    name: str | None
    root: str | Path | None


class MoreJobKeywords(TypedDict, total=False):
    """The other settings of a job, and those of local mode."""

    inputs: Inputs | None
    warm_start: Literal["champion", "last"] | None
    ps: int | None
    evaluator: bool | None
    checkpoint_keep_last: int | None
    checkpoint_best: str | None
    checkpoint_on_busy: Literal["skip", "block"] | None
    checkpoint_auto: bool | None
    checkpoint_resume_from: str | Path | None
    retry_user_errors: int | None
    retry_infrastructure: int | None
    retry_preemptions: int | None
    limit_hang: str | float | None
    limit_idle_accelerator: str | float | None
    limit_grace: str | float | None
    limit_exit_wait: str | float | None
    limit_allow_unknown_price: bool | None
    code_project: str | Path | None
    code_include: Texts | None
    code_exclude: Texts | None
    code_requirements: str | Path | Texts | None
    code_isolated: bool | None
    code_keras: Literal["auto", "legacy"] | None
    code_writes: Literal["chief", "all"] | None
    allow_secret: Texts | None
    gate_evaluate: str | None
    gate_data: str | None
    gate_metric: str | None
    gate_min_gain: str | float | None
    gate_guards: Texts | None
    gate_ask_below: str | float | None
    local_network: Literal["host", "isolated"] | None
    local_start: Literal["auto", "fork", "spawn", "standby", "anew"] | None
    local_cluster: Literal["chief", "workers"] | None
    local_gpus: Literal["stand-in", "real"] | None
    local_cores: str | int | None


class JobKeywords(CommonJobKeywords, MoreJobKeywords, total=False):
    """The settings of a job and of local mode."""


class MoreKeywords(MoreJobKeywords, total=False):
    """The other keywords of `plan` and `submit`: those of the other backends and of the target too."""

    vertex_project: str | None
    vertex_regions: str | Texts | None
    vertex_bucket: str | None
    vertex_service_account: str | None
    vertex_image: str | dict[str, str] | None
    vertex_machine: str | None
    vertex_disk_gb: int | None
    vertex_provisioning: Literal["standard", "spot", "flex"] | None
    vertex_keeper: bool | str | float | None
    vertex_keeper_service_account: str | None
    vertex_own_tensorflow: bool | None
    vertex_network: str | None
    vertex_kms_key: str | None
    vertex_tensorboard: str | None
    vertex_persistent_resource: str | None
    vertex_labels: dict[str, str] | None
    vertex_raw: dict[str, Any] | None
    ray_address: str | None
    ray_pending_timeout: str | float | None
    ray_headers: dict[str, str] | None
    ray_raw: dict[str, Any] | None
    kubernetes_context: str | None
    kubernetes_namespace: str | None
    kubernetes_image: str | None
    kubernetes_image_pull_secrets: Texts | None
    kubernetes_queue: str | None
    kubernetes_service_account: str | None
    kubernetes_node_selector: dict[str, str] | None
    kubernetes_tolerations: Texts | None
    kubernetes_claim: str | None
    kubernetes_cpu: str | None
    kubernetes_memory: str | None
    kubernetes_raw: dict[str, Any] | None
    online: bool | None
