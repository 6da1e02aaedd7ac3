"""The handle of a run on Kubernetes. Its agents agree on its end in the root: the verdict needs no job and no pods."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ...clock import Clock
from ...errors import PodliftError, UnavailableError
from ...job.plan import Plan
from ...records.recorder import has_ended
from ...records.timeline import NOW, Moment
from ...records.verdicts import ServiceAnswer
from ...status import Reason, State
from ..job_run import JobRun, RejectedError
from . import answers
from .client import Cluster, KubernetesJob
from .objects import kind_of
from .options import Kubernetes

SERVICE = "Kubernetes"


class KubernetesRun(JobRun[KubernetesJob]):
    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._target = Kubernetes.of(plan.target)
        self._client = Cluster(self._target, clock=clock)
        super().__init__(plan, clock, f"The Kubernetes cluster {self._target.context or ''}".rstrip())

    def _ask(self, *, within_s: float) -> KubernetesJob:
        return self._client.job(kind_of(self._plan), self._name, within_s=within_s)

    def _why_lost(self) -> str:
        # A job that was cancelled before its first pod ran is deleted at once.
        loss = super()._why_lost()
        return loss or ("The job was cancelled." if self._stopped == self._name else "")

    def _stop(self) -> None:
        self._client.delete(kind_of(self._plan), self._name)
        self._stopped = self._name

    def _answer(self, job: KubernetesJob) -> ServiceAnswer:
        return answers.of_ended(job)

    def _write_verdict(self, answer: ServiceAnswer, job: KubernetesJob | None = None) -> None:
        super()._write_verdict(answer, job)
        if has_ended(self._plan.paths) and self._cancel_keys():
            # A cancelled run leaves nothing on the cluster.
            with suppress(UnavailableError, RejectedError):
                self._stop()

    def _waits_for(self, job: KubernetesJob) -> tuple[State, Reason] | None:
        if job.status == "Suspended":
            return State.PENDING, Reason.QUEUED
        if any(pod.unschedulable for pod in job.pods) or not (job.pods or job.hidden):
            return State.PENDING, Reason.PROVISIONING
        return State.PENDING, Reason.PREPARING

    @property
    def _where(self) -> str:
        return f"{SERVICE}, {self._client.name}"

    def history(self) -> Sequence[Moment]:
        """Return the start and the end of the job on the cluster, and the causes for which it waits."""
        moments, job = [], self._job
        if job is not None and job.started is not None:
            moments.append(Moment(time=job.started, source=SERVICE, text=f"started job {job.id}"))
        if job is not None and job.over and job.ended is not None:
            causes = tuple(filter(None, (job.message,)))
            moments.append(Moment(time=job.ended, source=SERVICE, text=f"the job ended: {job.status}", causes=causes))
        if self._unreachable:
            moments.append(Moment(time=NOW, source=SERVICE, text=self._unreachable))
        elif job is not None and not job.over and not has_ended(self._plan.paths):
            causes = (*answers.waits_for(job, self._target.queue), *self._warnings(job))
            if causes:
                moments.append(Moment(time=NOW, source=SERVICE, text="the job waits", causes=causes))
        return moments

    def _warnings(self, job: KubernetesJob) -> list[str]:
        """Return why the cluster creates no pods, as its events say, and why Kueue does not admit the job."""
        texts = []
        try:
            if not (job.pods or job.hidden):
                for event in self._client.listed(
                    "Event", fields={"involvedObject.name": job.id, "type": "Warning"}, within_s=0.0
                ):
                    text = f"{event.get('reason')}: {' '.join(str(event.get('message')).split())}"
                    texts += [text] if text not in texts else []
            if job.status == "Suspended" and self._target.queue:
                texts += self._admission(job)
        except PodliftError as error:
            texts.append(str(error))
        return texts

    def _admission(self, job: KubernetesJob) -> list[str]:
        """Return the conditions of the job's Workload, which Kueue writes."""
        texts = []
        for workload in self._client.listed("Workload", within_s=0.0):
            owners = workload["metadata"].get("ownerReferences") or []
            if any(owner.get("name") == job.id for owner in owners):
                conditions = (workload.get("status") or {}).get("conditions") or []
                texts += [f"{entry['type']} {entry['status']}: {entry.get('message', '')}" for entry in conditions]
        return texts
