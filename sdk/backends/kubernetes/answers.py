"""Reads the end of a Job, in the words of `records.verdicts`, and the causes for which it waits. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from ...records.verdicts import SUCCEEDED, ServiceAnswer, failed
from ...status import Failure, Reason
from .client import KubernetesJob, PodState

_PREFIX = "podlift: "
_KILLED = (137, 143)
# As the runtimes of containers say it.
_NO_PYTHON = re.compile(r"exec: \\?\"python3\\?\".*(not found|no such file)")
# Reasons of waiting containers, and the next step.
_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")


def of_ended(job: KubernetesJob) -> ServiceAnswer:
    """Return the end of a Job or JobSet as its cluster sees it."""

    def service_answer(
        reason: Reason, message: str, *, knows: Literal["decision", "cause", "exit"] = "exit", traceback: str = ""
    ) -> ServiceAnswer:
        end = failed(reason, Failure(task="", message=message, traceback=traceback))
        return ServiceAnswer(job="ended", end=end, time=job.ended, knows=knows)

    if job.status == "Complete":
        return ServiceAnswer(job="ended", end=SUCCEEDED, time=job.ended)
    if job.reason == "DeadlineExceeded":
        return service_answer(Reason.TIMEOUT, f"The job {job.id} reached its time limit.", knows="decision")
    pod = _guilty(job.pods)
    if pod is None:
        why = job.message or job.reason or "no reason is known"
        return service_answer(Reason.INFRASTRUCTURE, f"The job {job.id} failed: {why}")
    if pod.reason == "OOMKilled":
        text = f"The pod {pod.name} had no memory left. Next: --kubernetes-memory with more."
        return service_answer(Reason.OUT_OF_MEMORY, text, knows="cause")
    if _NO_PYTHON.search(pod.message):
        text = "The image has no python3. Next: --kubernetes-image with Python and TensorFlow."
        return service_answer(Reason.IMAGE, text, knows="cause", traceback=pod.message)
    lines = [line for line in pod.message.splitlines() if line.startswith(_PREFIX)]
    if lines and pod.code not in _KILLED:
        # podlift gave up before it started the program.
        return service_answer(Reason.REFUSED, lines[-1].removeprefix(_PREFIX))
    how = f" with exit code {pod.code}" if pod.code is not None else f" ({pod.reason})" if pod.reason else ""
    text = f"The pod {pod.name} ended{how}, and no task says why."
    return service_answer(Reason.INFRASTRUCTURE, text, traceback=pod.message)


def _guilty(pods: Sequence[PodState]) -> PodState | None:
    """Return the failed pod that explains the end: the one with a final exit code, else any."""
    ended = [pod for pod in pods if pod.code not in (None, 0) or pod.phase == "Failed"]
    return min(
        ended, key=lambda pod: (pod.code in _KILLED or pod.code is None, pod.reason != "OOMKilled"), default=None
    )


def waits_for(job: KubernetesJob, queue: str | None) -> list[str]:
    """Return why a job does not run yet, each as a sentence with its next step."""
    if job.status == "Suspended":
        where = f"the queue {queue} to admit it" if queue else "the end of its suspension (spec.suspend)"
        return [f"The job waits for {where}."]
    texts = [job.hidden] if job.hidden else []
    for pod in job.pods:
        if pod.unschedulable:
            texts.append(f"No node takes the pod {pod.name}: {pod.unschedulable}")
        elif pod.waiting.startswith(_IMAGE):
            texts.append(
                f"The image of the pod {pod.name} cannot be pulled: {pod.waiting} Next: check --kubernetes-image and "
                "--kubernetes-image-pull-secrets."
            )
        elif pod.waiting:
            next_step = (
                " Next: if the process that submitted the run was killed, podlift cancel and then podlift resume."
                if f'secret "{job.id}" not found' in pod.waiting
                else ""
            )
            texts.append(f"The container of the pod {pod.name} does not start: {pod.waiting}.{next_step}")
    return texts
