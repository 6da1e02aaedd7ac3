"""Renders a plan as a Job of Kubernetes, or as a JobSet if its tasks have unequal roles. Pure.

Sources: the reference of batch/v1 (Kubernetes 1.31 to 1.37) and of jobset.x-k8s.io/v1alpha2; labels of GKE's nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...hardware import accelerators
from ...job.cluster import Task
from ...job.container import RESTART_CODE, ContainerTerms
from ...job.findings import Finding, error, note, warning
from ...job.layout import RootPaths
from ...job.plan import Plan
from ...job.raw import leaves, patched
from ...packaging.runtime_archive import loader
from ...storage import emulator
from ...storage.folder_files import in_folder, path_of
from .. import containers
from ..containers import bucket_of, escaped, job_name, key_of
from .options import Kubernetes, toleration

NO_IMAGE, CONTAINER = "<image>", "task"
SPEC_UNKNOWN, ENTRYPOINT_UNKNOWN = "<sha256 of the launch spec>", "<sha256 of the entrypoint>"
JOBSET = "jobset.x-k8s.io/v1alpha2"
LABELS = RUN_LABEL, JOB_LABEL = "podlift-run", "podlift-job"
# By these podlift finds its run again.
_OWN = ("apiVersion", "kind", "metadata.name", "metadata.namespace", *(f"metadata.labels.{name}" for name in LABELS))
INDEX, TASK, HOST = "PODLIFT_POD_INDEX", "PODLIFT_TASK_NAME", "PODLIFT_POD_IP"
# An agent exits with RESTART when its machine is taken away: the Job starts another pod, and counts no failure. The same holds
# for a pod that the cluster itself has disrupted. A pod that the kernel or the node has killed counts towards `backoffLimit`.
# All other codes are final, and end the Job.
RESTART, _KILLED = 134, (137, 143)
TERMS = ContainerTerms(
    restart_code=RESTART,
    restarting_codes=(RESTART, *_KILLED),
    identity=(TASK, INDEX),
    notice_s=8.0,
    host=HOST,
    keeps_logs=False,
    keeps_limit=False,
)
# The deadline of a Job counts the search for nodes, which may take a day.
_NOTICE_MARGIN_S, _DEADLINE_MARGIN_S, _JOB_TTL_S = 20, 86400, 86400
# For the whole life of a run; the budgets in the plan end it before.
_BACKOFF = 100
_USER = 1000
_INDEX_LABEL = "metadata.labels['batch.kubernetes.io/job-completion-index']"
_GPU, _TPU = "nvidia.com/gpu", "google.com/tpu"
_GKE_GPU = "cloud.google.com/gke-accelerator"
# The names of GPUs in that label of GKE, by the family in the table of accelerators.
_GKE_GPUS = {
    "t4": "nvidia-tesla-t4", "v100": "nvidia-tesla-v100", "p100": "nvidia-tesla-p100", "p4": "nvidia-tesla-p4",
    "l4": "nvidia-l4", "a100": "nvidia-tesla-a100", "a100-80gb": "nvidia-a100-80gb", "h100": "nvidia-h100-80gb",
    "h100-mega": "nvidia-h100-mega-80gb", "h200": "nvidia-h200-141gb", "b200": "nvidia-b200",
}  # fmt: skip
_GKE_TPUS = {"v5e": "tpu-v5-lite-podslice"}
_TPU_TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4"}


def missing(target: Kubernetes, root: str) -> list[str]:
    """Return an error for each missing setting, for which the plan shows a placeholder."""
    problems = []
    if not target.image:
        problems.append(
            "No image is configured for kubernetes. Next: --kubernetes-image with an image that has Python and TensorFlow, "
            "such as tensorflow/tensorflow:2.20.0; the code is not in it."
        )
    if root.startswith("gs://<"):
        problems.append(
            "No root is configured for kubernetes. Next: --root gs://BUCKET/PREFIX; or --kubernetes-claim CLAIM:FOLDER and "
            "--root with a folder below FOLDER, where this machine mounts the volume of that claim."
        )
    return problems


def findings(plan: Plan) -> list[Finding]:
    """Return the findings about the root and about `raw`."""
    target, root, plan_findings = Kubernetes.of(plan.target), plan.root, []
    paths = leaves(target.raw)
    if own := [
        path for path in paths if path.endswith(LABELS) or any(f"{name}.".startswith(f"{path}.") for name in _OWN)
    ]:
        text = f"raw= changes the fields by which podlift finds its run. Received: {', '.join(own)}"
        plan_findings.append(error(f"{text}. Next: leave them out; --name and --kubernetes-namespace choose names"))
    elif paths:
        plan_findings.append(note(f"The object is patched by raw=, without checks: {', '.join(paths)}"))
    if plan.facts.online.get("kubernetes", {}).get("user") == 0 and not any(
        path.endswith("runAsUser") for path in paths
    ):
        text = f"You are root here, and the pods run as user {_USER}, who cannot write into folders of root"
        plan_findings.append(warning(f"{text}. Next: submit as another user"))
    row = accelerators.lookup(plan.job.resources.accelerator)
    if (
        target.on_gke
        and row.family == "gpu"
        and _gke_gpu(row) is None
        and not any(_GKE_GPU in path for path in (*target.node_selector, *paths))
    ):
        text = f"podlift does not know GKE's name of {row.name}, so the pods may get nodes with other GPUs"
        plan_findings.append(warning(f"{text}. Next: --kubernetes-node-selector {_GKE_GPU}=NAME"))
    folder = path_of(root) if in_folder(root) else ""
    inside = target.claim_folder and (folder + "/").startswith(target.claim_folder + "/")
    if folder and not target.claim:
        plan_findings.append(
            error(
                f"The pods do not see the folder {folder!r} of this machine. Next: --kubernetes-claim CLAIM:FOLDER, a claim "
                "for ReadWriteMany and the folder at which this machine mounts its volume; or --root gs://BUCKET/PREFIX"
            )
        )
    elif folder and not inside:
        plan_findings.append(
            error(
                f"The root is not in the volume of the claim. Received: root {folder!r}, claim {target.claim!r}. Next: --root "
                f"{target.claim_folder}/podlift"
            )
        )
    return plan_findings


def nodes_without_device(plan: Plan) -> list[Finding]:
    """Return a warning if no node has the accelerator now; a cluster may add nodes by itself."""
    about = plan.facts.online.get("kubernetes", {})
    if "devices" not in about:
        return []
    limits, selector = _hardware(plan, plan.members[0])
    needs = [*limits, *(f"{key}={value}" for key, value in selector.items())]
    lacking = [name for name in needs if name not in (*about["devices"], *about["labels"])]
    if lacking:
        return [warning(f"No node of the cluster has {', '.join(lacking)} now: the job waits unless nodes are added")]
    return []


def has_unequal_roles(plan: Plan) -> bool:
    return any(task.role in ("ps", "evaluator") for task in plan.members)


def kind_of(plan: Plan) -> str:
    return "JobSet" if has_unequal_roles(plan) else "Job"


def hidden_names(plan: Plan) -> list[str]:
    """Return the variables with values in a Secret of the job, which podlift stores nowhere."""
    # With an emulator, its addresses too: the pods reach the bucket of the run through them.
    return [*plan.job.copied, *([emulator.EMULATOR, emulator.STORAGE_EMULATOR] if plan.emulator else [])]


def render(
    plan: Plan, *, number: int = 1, entrypoint: str = ENTRYPOINT_UNKNOWN, spec_digest: str = SPEC_UNKNOWN
) -> dict[str, Any]:
    """Return the Job or the JobSet of a run, as the cluster's API takes it."""
    target, root, name = Kubernetes.of(plan.target), RootPaths(plan.root), job_name(plan.run_id, number)
    spec = root.run(plan.run_id).launch_spec(number)
    arguments = [bucket_of(plan.root), key_of(root.entrypoint(entrypoint)), entrypoint, key_of(spec), spec_digest]
    labels = {RUN_LABEL: plan.run_id, JOB_LABEL: str(number)}
    queue = {"kueue.x-k8s.io/queue-name": target.queue} if target.queue else {}
    metadata = {"name": name, "labels": {**labels, **queue}}
    if target.namespace:
        metadata["namespace"] = target.namespace
    if not has_unequal_roles(plan):
        job = _job(plan, list(plan.members), arguments, labels, name, succeeds=True)
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {**job, "ttlSecondsAfterFinished": _JOB_TTL_S},
        }
    else:
        roles: dict[str, list[Task]] = {}
        for task in plan.members:
            roles.setdefault(task.role, []).append(task)
        jobs = [
            {
                "name": role,
                "replicas": 1,
                "template": {"spec": _job(plan, tasks, arguments, labels, name, role=role, succeeds=False)},
            }
            for role, tasks in roles.items()
        ]
        body = {
            "apiVersion": JOBSET,
            "kind": "JobSet",
            "metadata": metadata,
            "spec": {
                "replicatedJobs": jobs,
                "network": {"enableDNSHostnames": False},
                "successPolicy": {"operator": "All", "targetReplicatedJobs": [plan.members[0].role]},
                # The agents restart their tasks themselves.
                "failurePolicy": {"maxRestarts": 0},
                "ttlSecondsAfterFinished": _JOB_TTL_S,
            },
        }
    request: dict[str, Any] = patched(body, target.raw)
    return request


def _job(
    plan: Plan,
    tasks: list[Task],
    arguments: list[str],
    labels: Mapping[str, str],
    name: str,
    *,
    role: str = "",
    succeeds: bool,
) -> dict[str, object]:
    """Return the specification of a Job with a pod for each task; the first one decides about its success if it `succeeds`."""
    rules: list[dict[str, object]] = [
        {"action": "Ignore", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [RESTART]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [RESTART, *_KILLED]},
        },
    ]
    limit = plan.job.limits.timeout_s
    # The agents end the run at its limit, from its first attempt on.
    deadline = {} if limit is None else {"activeDeadlineSeconds": math.ceil(limit) + _DEADLINE_MARGIN_S}
    success = {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}} if succeeds and len(tasks) > 1 else {}
    return {
        "completions": len(tasks),
        "parallelism": len(tasks),
        "completionMode": "Indexed",
        "backoffLimit": _BACKOFF,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": rules},
        **success,
        **deadline,
        "template": {"metadata": {"labels": dict(labels)}, "spec": _pod(plan, tasks[0], arguments, name, role)},
    }


def _pod(plan: Plan, task: Task, arguments: list[str], name: str, role: str) -> dict[str, object]:
    target = Kubernetes.of(plan.target)
    limits, selector = _hardware(plan, task)
    grace_s = math.ceil(plan.job.limits.grace_s + TERMS.notice_s) + _NOTICE_MARGIN_S
    user = plan.facts.online.get("kubernetes", {}).get("user") or _USER
    volumes: list[dict[str, object]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if target.claim:
        volumes.append({"name": "root", "persistentVolumeClaim": {"claimName": target.claim_name}})
    optional = {
        "serviceAccountName": target.service_account,
        "imagePullSecrets": [{"name": secret} for secret in target.image_pull_secrets],
        "nodeSelector": {**selector, **target.node_selector},
        "tolerations": [toleration(text) for text in target.tolerations],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **{key: value for key, value in optional.items() if value},
        "containers": [_container(plan, arguments, name, role, limits)],
        "volumes": volumes,
    }


def _container(plan: Plan, arguments: list[str], name: str, role: str, devices: Mapping[str, str]) -> dict[str, object]:
    target = Kubernetes.of(plan.target)
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    if target.claim:
        mounts.append({"name": "root", "mountPath": target.claim_folder})
    memory = {"memory": target.memory} if target.memory else {}
    limits = {**memory, **devices}
    requests = {**({"cpu": target.cpu} if target.cpu else {}), **limits}
    return {
        "name": CONTAINER,
        "image": target.image or NO_IMAGE,
        "command": ["python3", "-c", loader()],
        "args": arguments,
        "env": _variables(plan, name, role),
        "resources": {key: value for key, value in (("requests", requests), ("limits", limits)) if value},
        # Output of a container before it can write records.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": mounts,
    }


def _hardware(plan: Plan, task: Task) -> tuple[dict[str, str], dict[str, str]]:
    """Return the devices of a task, as limits, and the labels of the nodes that have them."""
    row, on_gke = accelerators.lookup(plan.job.resources.accelerator), Kubernetes.of(plan.target).on_gke
    if row.family == "cpu" or row.name not in accelerators.names("kubernetes") or task.role in ("ps", "evaluator"):
        return {}, {}
    if row.family == "gpu":
        kind = _gke_gpu(row)
        selector = {_GKE_GPU: kind} if on_gke and kind else {}
        return {_GPU: str(row.count or row.chips)}, selector
    generation = row.name.partition("-")[0]
    return {_TPU: str(row.chips)}, {
        "cloud.google.com/gke-tpu-accelerator": _GKE_TPUS[generation],
        "cloud.google.com/gke-tpu-topology": _TPU_TOPOLOGIES[row.chips],
    }


def _gke_gpu(row: accelerators.Accelerator) -> str | None:
    return _GKE_GPUS.get(row.name.partition(":")[0])


def _variables(plan: Plan, name: str, role: str) -> list[dict[str, object]]:
    def field(path: str) -> dict[str, object]:
        return {"fieldRef": {"fieldPath": path}}

    hidden = hidden_names(plan)
    plain = {key: value for key, value in containers.variables(plan, {}).items() if key not in hidden}
    # The image's own home may be read-only, or belong to another user.
    values = {"HOME": "/tmp", **plain, RESTART_CODE: str(RESTART)}  # noqa: S108
    variables: list[dict[str, object]] = [
        {"name": INDEX, "valueFrom": field(_INDEX_LABEL)},
        {"name": HOST, "valueFrom": field("status.podIP")},
    ]
    if role:
        variables.append({"name": TASK, "value": f"{role}-$({INDEX})"})
    variables += [{"name": key, "value": escaped(value)} for key, value in values.items()]
    for key in hidden:
        variables.append({"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}})
    return variables
