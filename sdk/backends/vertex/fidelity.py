"""What Vertex AI does, as far as it is known, and which tests show that local runs and the emulator do the same.

fidelity.json is written by scripts/reference from the marks of the tests. A behaviour without a test counts as not reproduced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...hardware import accelerators
from ...spec.plan import Plan
from ...spec.policies import Vertex
from ..fidelity import Behaviour, Concern, Where

_DOCUMENTED = "cloud.google.com/vertex-ai/docs/training/"
_SERVICE = f"{_DOCUMENTED}understanding-training-service"
_CODE = f"{_DOCUMENTED}code-requirements"
_DISTRIBUTED = f"{_DOCUMENTED}distributed-training"
_SPOT = f"{_DOCUMENTED}use-spot-vms"
_FLEX = f"{_DOCUMENTED}schedule-jobs-dws"
_OBSERVED = "reports of users"
_SUBMIT = "podlift submit jobs/digits/train.py --backend vertex"


@cache
def _shown_by() -> Mapping[str, Mapping[Where, Sequence[str]]]:
    found: Mapping[str, Mapping[Where, Sequence[str]]] = json.loads(
        Path(__file__).with_name("fidelity.json").read_bytes()
    )
    return found


def _made(name: str, text: str, source: str, concern: Concern = "every job", attempt: str = "") -> Behaviour:
    shown_by = _shown_by().get(name, {})
    return Behaviour(name=name, text=text, source=source, concern=concern, attempt=attempt, shown_by=shown_by)


def behaviours() -> list[Behaviour]:
    """Return all of them: how jobs live, what their programs find, what is taken away, and what only the cloud has."""
    return [*_life(), *_program(), *_taken_away(), *_cloud_only()]


def of_plan(plan: Plan) -> list[Behaviour]:
    """Return those that concern a plan."""
    target, resources = Vertex.of(plan.target), plan.job.resources
    families = {accelerators.lookup(place.accelerator or "cpu").family for place in target.places_for(resources)}
    provisioning = {place.provisioning or target.provisioning for place in target.places_for(resources)}
    concerns: dict[Concern, bool] = {
        "every job": True,
        "several tasks": len(plan.tasks) > 1,
        "gpus": "gpu" in families,
        "tpus": "tpu" in families,
        "spot": "spot" in provisioning,
        "flex": "flex" in provisioning,
        "schedules": False,
    }
    return [each for each in behaviours() if concerns[each.concern]]


def _life() -> list[Behaviour]:
    return [
        _made(
            "states", "A job is queued, pending and running, then SUCCEEDED, FAILED, CANCELLED or EXPIRED.", _SERVICE
        ),
        _made("chief-decides", "The exit code of the first task decides whether the job succeeds.", _SERVICE),
        _made("permanent-errors", "An ordinary exit code, such as 1, ends the job; no retry follows.", _SERVICE),
        _made(
            "container-restarts",
            "A container that crashes (exit codes 134 and 139) is restarted up to 5 times, the whole job up to 3 times.",
            _SERVICE,
        ),
        _made(
            "whole-job-restarts",
            "With restartJobOnWorkerRestart, one restarted container restarts all.",
            _SERVICE,
            "several tasks",
        ),
        _made("timeout", "The timeout is for running time, and ends the job.", _SERVICE),
        _made("cancel", "A job can be cancelled in every phase.", _SERVICE),
        _made("late-errors", "The error of a job may appear later than its final state.", _SERVICE),
        _made("lost-replies", "A request may be carried out although its reply is lost; lists may be late.", _OBSERVED),
        _made("late-logs", "Log lines may arrive late, and some never.", _OBSERVED),
    ]


def _program() -> list[Behaviour]:
    return [
        _made("cluster-variables", "Tasks get CLUSTER_SPEC, and several tasks TF_CONFIG.", _DISTRIBUTED),
        _made("environment", "Tasks get AIP_* and CLOUD_ML_* variables, and nothing of the submitting machine.", _CODE),
        _made(
            "tasks-by-name",
            "Tasks reach each other by name at the port of their cluster.",
            _DISTRIBUTED,
            "several tasks",
        ),
        _made("gcs-folder", "Buckets are folders below /gcs.", f"{_DOCUMENTED}cloud-storage-file-system"),
        _made("metadata-server", "Google's client libraries get a token from the metadata server.", _CODE),
        _made("pip-packages", "Google's wrappers install a Python package before the program starts.", _CODE),
        _made("denied-rights", "Without a right, a request is refused with the permission's name.", _OBSERVED),
        _made(
            "gpu-devices",
            "A program finds its GPUs, and each is a replica of a strategy.",
            _DISTRIBUTED,
            "gpus",
        ),
        _made(
            "tpu-devices",
            "A program finds the TPU's devices and its topology.",
            f"{_DOCUMENTED}training-with-tpu-vm",
            "tpus",
        ),
    ]


def _taken_away() -> list[Behaviour]:
    return [
        _made("quota", "A request above a quota is refused; one that has to wait for quota is queued.", _SERVICE),
        _made("stockout", "Without machines in a region, a job is tried 3 times and fails.", _SERVICE),
        _made(
            "machine-replaced",
            "After maintenance the program starts again from its beginning, on another machine.",
            _CODE,
        ),
        _made("memory", "A task that uses too much memory is killed, and the job fails.", _SERVICE),
        _made("internal-errors", "After an internal error the job is tried twice more.", _SERVICE),
        _made(
            "spot-preemption", "A spot job is restarted up to 6 times after its machine was taken away.", _SPOT, "spot"
        ),
        _made("flex-start", "A flex-start job waits until machines are free.", _FLEX, "flex"),
        _made(
            "deliveries",
            "Cloud Scheduler may deliver a slot twice, late, or after errors.",
            "cloud.google.com/scheduler/docs",
            "schedules",
        ),
    ]


def _cloud_only() -> list[Behaviour]:
    return [
        _made(
            "images",
            "The image is pulled, and its packages and its platform are those of the program.",
            _SERVICE,
            attempt=_SUBMIT,
        ),
        _made(
            "image-builds",
            "Cloud Build runs the lines of a Dockerfile, and pushes the image: an emulator only computes a digest.",
            "cloud.google.com/build/docs",
            attempt="podlift image cpu --submit",
        ),
        _made(
            "machine-size",
            "A task has the cores, the memory and the disk of its machine type.",
            _SERVICE,
            attempt=_SUBMIT,
        ),
        _made(
            "sigterm",
            "How long a task has between SIGTERM and SIGKILL is not documented.",
            "not documented",
            attempt=f"{_SUBMIT} --vertex-provisioning spot, then podlift why RUN",
        ),
        _made(
            "network",
            "Bandwidth and latency between tasks, and to a bucket.",
            "not documented",
            "several tasks",
            f"{_SUBMIT} --workers 2",
        ),
        _made(
            "gpus",
            "Programs compute on GPUs: their memory, their speed, NCCL and the driver.",
            _DISTRIBUTED,
            "gpus",
            f"{_SUBMIT} --accelerator t4 --workers 2",
        ),
        _made(
            "tpu-compiler",
            "Programs are compiled for the TPU: what XLA refuses there, its memory and its speed.",
            f"{_DOCUMENTED}training-with-tpu-vm",
            "tpus",
            f"{_SUBMIT} --accelerator v5e-1",
        ),
        _made(
            "bill", "The job is billed.", "cloud.google.com/vertex-ai/pricing", attempt=f"{_SUBMIT} --max-cost-usd 1"
        ),
    ]
