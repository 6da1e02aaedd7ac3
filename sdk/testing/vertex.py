"""A Vertex AI for tests: an emulator of Cloud Storage, custom jobs and training pipelines, their logs,
Cloud Scheduler and the metadata server.

Tests import it on demand; it imports nothing slow.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ..emulator.scheduler.attempts import Attempt
from .gcs import GcsServer

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import JobServiceClient, PipelineServiceClient
    from google.cloud.scheduler_v1 import CloudSchedulerClient

    from ..backends.vertex.options import Vertex
    from ..run import Run

_LINES = 1000
# How long to wait for a step, and how often to look.
_STEP_S, _POLL_S = 600.0, 0.2


class Cloud(GcsServer):
    """An emulator in a child process that exits with this one; see `GcsServer` for its methods about buckets.

    Usage: `with Cloud(folder) as cloud: cloud.jobs().create_custom_job(parent=cloud.parent, custom_job=job, timeout=60)`

    Args:
        folder: its data; a second server on the same folder continues with it.
        project: the project of `parent`.
        region: the region of `parent`.
        options: as for `sdk.emulator.server.Options`, `timings` as a dict of the fields of `JobTimings`.
    """

    def __init__(self, folder: Path, *, project: str = "podlift", region: str = "us-central1", **options: Any) -> None:
        super().__init__(folder)
        self.project, self.region, self.bucket = project, region, "podlift-runs"
        self._options = json.dumps(options)

    @property
    def parent(self) -> str:
        """The `parent` of new jobs."""
        return f"projects/{self.project}/locations/{self.region}"

    def jobs(self) -> JobServiceClient:
        """Return Google's client of the job service; pass each call a `timeout`, as it has no default."""
        from google.cloud.aiplatform_v1 import JobServiceClient

        return JobServiceClient(**self._client_options())

    def pipelines(self) -> PipelineServiceClient:
        """Return Google's client of the pipeline service, for training pipelines."""
        from google.cloud.aiplatform_v1 import PipelineServiceClient

        return PipelineServiceClient(**self._client_options())

    def scheduler(self) -> CloudSchedulerClient:
        """Return Google's client of Cloud Scheduler (google-cloud-scheduler); `parent` is the parent of new jobs."""
        from google.cloud.scheduler_v1 import CloudSchedulerClient

        return CloudSchedulerClient(**self._client_options())

    def _client_options(self) -> dict[str, Any]:
        from google.auth.credentials import AnonymousCredentials

        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        return {"transport": "rest", "credentials": credentials, "client_options": {"api_endpoint": self.url}}

    def backend(self, **more: Any) -> Vertex:
        """Return the value for `backend=` that runs here; call `reset` and `make_bucket` first. `more` overrides fields."""
        from ..backends.vertex.options import Vertex

        fields = {
            "project": self.project,
            "regions": (self.region,),
            "bucket": self.bucket,
            "image": "podlift/emulated",
        }
        return Vertex(**{**fields, **more})

    def make_bucket(self) -> None:
        """Create the bucket for runs in the region."""
        self.ask("POST", f"/storage/v1/b?project={self.project}", {"name": self.bucket, "location": self.region})

    def entries(self, job: str, task: str | None = None) -> list[dict[str, Any]]:
        """Return the log entries of a job, the oldest first.

        Args:
            job: its number or full name.
            task: "service" or a replica such as "workerpool0-0"; all by default.
        """
        text = f'resource.type="ml_job" AND resource.labels.job_id="{job.rpartition("/")[2]}"'
        if task is not None:
            text += f' AND resource.labels.task_name="{task}"'
        query = {"resourceNames": [f"projects/{self.project}"], "filter": text, "pageSize": _LINES}
        entries: list[dict[str, Any]] = []
        token = ""
        while True:
            answer = self.ask("POST", "/v2/entries:list", {**query, "pageToken": token})
            entries += answer.get("entries", [])
            token = answer.get("nextPageToken", "")
            if not token:
                return entries

    def preempt(self, job: str, replica: str = "workerpool0-0") -> bool:
        """Preempt a replica: SIGTERM, 15 s, SIGKILL; False if the job is not running."""
        return bool(self._inject("preempt", job, replica))

    def preempt_at_step(self, run: Run, step: int, replica: str = "workerpool0-0", timeout_s: float = _STEP_S) -> bool:
        """Preempt a replica of a run once its first task reports this step; False if the run ends before.

        A run reports its step every ten seconds. For an exact moment, let the program print its steps and use a fault:
        `{"api": "vertex", "kind": "preempt", "replica": "workerpool1-0", "writer": "workerpool1-0", "log": "step 12$"}`.
        """
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if run.status().state.terminal:
                return False
            position = run.progress()
            if position is not None and position.step >= step:
                return self.preempt(self._newest_job(run), replica)
            time.sleep(_POLL_S)
        raise TimeoutError(f"The run {run.id} has not reported step {step} within {timeout_s:g} s.")

    def _newest_job(self, run: Run) -> str:
        from ..backends.vertex.options import Vertex

        query = urlencode({"filter": f'labels.podlift-run="{run.id}"'})
        parents = [f"/v1/projects/{self.project}/locations/{name}" for name in Vertex.of(run.plan.target).region_names]
        pages = [self.ask("GET", f"{parent}/customJobs?{query}") for parent in parents]
        jobs = [job for page in pages for job in page.get("customJobs", ())]
        return str(max(jobs, key=lambda job: str(job["createTime"]))["name"])

    def kill_replica(self, job: str, replica: str = "workerpool0-0") -> bool:
        """Kill the container of a replica with SIGKILL; False if the job is not running."""
        return bool(self._inject("kill", job, replica))

    def run_out_of_memory(self, job: str, replica: str = "workerpool0-0") -> bool:
        """Kill a replica as the out-of-memory killer does; False if the job is not running."""
        return bool(self._inject("oom", job, replica))

    def fail(self, job: str) -> bool:
        """Fail a job with an internal error of the service; False if the job is not running."""
        return bool(self._inject("internal", job, ""))

    def expire(self, job: str) -> bool:
        """Let the service give up on a job: JOB_STATE_EXPIRED, also while it waits; False if it has ended."""
        return bool(self._inject("expire", job, ""))

    def advance(self, seconds: float, *, jobs: bool = False) -> list[Attempt]:
        """Advance the clock, and return the attempts of scheduled jobs: each was made at its own instant, and has ended.

        The times of new jobs and of all events follow the clock. Containers run in the time of the machine. `advance(0)`
        waits for outstanding attempts.

        Args:
            seconds: how far.
            jobs: whether custom jobs grow older by that, so that their time limits run out.
        """
        answer = self.ask("POST", "/_clock", {"advance_s": seconds, "jobs": jobs}, timeout_s=_STEP_S)
        return [Attempt(**attempt) for attempt in answer["attempts"]]

    def _inject(self, verb: str, job: str, replica: str) -> Any:
        answer = self.ask("POST", f"/_vertex/jobs/{job.rpartition('/')[2]}:{verb}", {"replica": replica})
        return answer["happened"]
