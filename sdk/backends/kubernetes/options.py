"""The options of a Kubernetes cluster. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from ...job.findings import Facts, Finding
from ...job.policies import Resources
from ...job.targets import Target
from ...job.values import Accepts, JsonObject, Name, Texts, Validator, changed, default

_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_CLAIM = re.compile(r"(?P<name>[a-z0-9]([a-z0-9.-]*[a-z0-9])?):(?P<folder>/.+)")
_TOLERATION = re.compile(
    r"(?P<key>[A-Za-z0-9]([\w./-]*[A-Za-z0-9])?)(=(?P<value>[\w.-]*))?(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)
# The names that gcloud gives to contexts of GKE.
_GKE = "gke_"


def quantity(value: str) -> str:
    if not _QUANTITY.fullmatch(value):
        raise ValueError('must be a quantity of Kubernetes, such as "4", "500m" or "16Gi"')
    return value


def claim_and_folder(value: str) -> str:
    if not _CLAIM.fullmatch(value):
        raise ValueError(
            "must be CLAIM:FOLDER, the name of a PersistentVolumeClaim and the folder at which this machine mounts its volume"
        )
    return value.rstrip("/")


def tolerations(value: tuple[str, ...]) -> tuple[str, ...]:
    bad = [text for text in value if not _TOLERATION.fullmatch(text)]
    if bad:
        raise ValueError(f'must be KEY, KEY=VALUE or KEY=VALUE:EFFECT, as "kubectl taint" writes them, not {bad[0]!r}')
    return value


@dataclass(frozen=True, kw_only=True)
class Kubernetes(Target):
    """Which Kubernetes cluster runs a job, and how: `sdk.submit("train.py", backend=Kubernetes(image="IMAGE"))`.

    Args:
        context: Context of the kubeconfig. By default the current one.
        namespace: Namespace of the job. By default the context's.
        image: Container image with Python and TensorFlow. The code is not in it: the pods fetch it from the root.
        image_pull_secrets: Secrets of the namespace with which the image is pulled.
        queue: LocalQueue of Kueue, which admits the job.
        service_account: ServiceAccount of the pods, through which they reach the bucket of the root.
        node_selector: Labels of the nodes: `{"pool": "training"}`. They replace podlift's own of the same name.
        tolerations: Taints that the pods tolerate, as `kubectl taint` writes them: `["dedicated=training:NoSchedule"]`.
        claim: A PersistentVolumeClaim for ReadWriteMany, and the folder at which this machine mounts its volume:
            "training:/mnt/training". The root is then below that folder, which the pods see at the same path.
        cpu: CPUs of each task, such as "4" or "500m". None asks for none.
        memory: Memory of each task, such as "16Gi", which is its limit, too. None for no limit.
        raw: JSON to merge into the object last, such as `{"spec": {"template": {"spec": {"priorityClassName": "low"}}}}`. A
            list is replaced as a whole, or one of its items by its number; None removes.
    """

    title: ClassVar[str] = "Kubernetes"
    metavars: ClassVar[Mapping[str, str]] = {
        "context": "NAME", "namespace": "NAME", "image": "IMAGE", "image_pull_secrets": "NAME", "queue": "NAME",
        "service_account": "NAME", "node_selector": "JSON", "tolerations": "TAINT", "claim": "CLAIM:FOLDER", "cpu": "N",
        "memory": "SIZE", "raw": "JSON",
    }  # fmt: skip

    context: Name | None = None
    namespace: Name | None = None
    image: Name | None = None
    image_pull_secrets: Accepts[Texts, Sequence[str]] = default(())
    queue: Name | None = None
    service_account: Name | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: Accepts[Annotated[Texts, Validator(tolerations)], Sequence[str]] = default(())
    claim: Annotated[str, Validator(claim_and_folder)] | None = None
    cpu: Annotated[str, Validator(quantity)] | None = None
    memory: Annotated[str, Validator(quantity)] | None = None
    raw: Annotated[dict[str, object], JsonObject()] = field(default_factory=dict)

    @property
    def claim_name(self) -> str:
        return "" if self.claim is None else self.claim.partition(":")[0]

    @property
    def claim_folder(self) -> str:
        return "" if self.claim is None else self.claim.partition(":")[2]

    @property
    def on_gke(self) -> bool:
        return (self.context or "").startswith(_GKE)

    def located(self, resources: Resources, facts: Facts) -> tuple[Target, list[Finding]]:
        """Name the context and the namespace, so that a later change of the kubeconfig does not move the job."""
        about = facts.online.get("kubernetes", {})
        return changed(
            self, context=self.context or about.get("context"), namespace=self.namespace or about.get("namespace")
        ), []

    def lines(self, resources: Resources) -> list[tuple[str, str]]:
        queue = f", queue {self.queue}" if self.queue else ""
        return [
            ("cluster", f"{self.context or 'no context'}, namespace {self.namespace or 'default'}{queue}"),
            ("image", self.image or "none yet"),
        ]


def toleration(text: str) -> dict[str, str]:
    """Return a taint that is tolerated as Kubernetes writes it."""
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    about = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **about, **({"effect": effect} if effect else {})}
