"""Every setting of a call as a keyword, with its type: made from the table of settings by `scripts/reference`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from ...spec.job import FromCaller, JsonArgs
from ...spec.policies import Vertex

Texts = Sequence[str | Path]
Inputs = Mapping[str, str | Path]
Env = Mapping[str, str | FromCaller]


class JobKeywords(TypedDict, total=False):
    """The settings of a job, but for its entry. None is a value where the setting has one, and else as if not given."""

    args: JsonArgs | None
    env: Env | None
    inputs: Inputs | None
    workers: int | None
    accelerator: str | None
    ps: int | None
    evaluator: bool | None
    provisioning: Literal["standard", "spot", "flex"] | None
    machine: str | None
    disk_gb: int | None
    cluster: Literal["chief", "workers"] | None
    network: Literal["host", "isolated"] | None
    project: str | Path | None
    include: Texts | None
    exclude: Texts | None
    requirements: str | Path | Texts | None
    isolated: bool | None
    keras: Literal["auto", "legacy"] | None
    writes: Literal["chief", "all"] | None
    start: Literal["auto", "fork", "spawn"] | None
    timeout_s: float | None
    max_steps: int | None
    hang_s: float | None
    grace_s: float | None
    exit_wait_s: float | None
    max_cost_usd: float | None
    allow_unknown_price: bool | None
    user: int | None
    infrastructure: int | None
    preemption: int | None
    every_steps: int | None
    every_s: float | None
    keep_last: int | None
    best: str | None
    on_busy: Literal["skip", "block"] | None
    auto: bool | None
    resume_from: str | Path | None


class Keywords(JobKeywords, total=False):
    """What `plan` and `submit` take: those of a job, of a backend's value, and where the run goes."""

    vertex_project: str | None
    vertex_regions: str | Path | Texts | None
    vertex_bucket: str | None
    vertex_service_account: str | None
    vertex_image: str | None
    vertex_labels: dict[str, str] | None
    vertex_raw: dict[str, Any] | None
    backend: str | Vertex | None
    root: str | Path | None
    name: str | None
    online: bool | None
