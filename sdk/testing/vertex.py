"""A Vertex AI for tests: an emulator of Cloud Storage, custom jobs and training pipelines, their logs and the metadata server.

Tests import it on demand; it imports nothing slow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .gcs import GcsServer

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import JobServiceClient

    from ..spec.policies import Vertex

_LINES = 1000


class Cloud(GcsServer):
    """An emulator in a child process that exits with this one; see `GcsServer` for its methods about buckets.

    Usage: `with Cloud(folder) as cloud: cloud.jobs().create_custom_job(parent=cloud.parent, custom_job=job, timeout=60)`

    Args:
        folder: its data; a second server on the same folder continues with it.
        project: the project of `parent`.
        region: the region of `parent`.
        options: those of `sdk.emulator.server.Options`, `timings` as a dict of the fields of `JobTimings`.
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
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.aiplatform_v1 import JobServiceClient

        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        options = {"api_endpoint": self.url}
        return JobServiceClient(transport="rest", credentials=credentials, client_options=options)

    def backend(self, **more: Any) -> Vertex:
        """Return the value for `backend=` that runs here; call `reset` and `make_bucket` first. `more` overrides fields."""
        from ..spec.policies import Vertex

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
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            answer = self.ask("POST", "/v2/entries:list", {**query, "pageToken": token})
            found += answer.get("entries", [])
            token = answer.get("nextPageToken", "")
            if not token:
                return found

    def preempt(self, job: str, replica: str = "workerpool0-0") -> bool:
        """Preempt a replica: SIGTERM, 15 s, SIGKILL; False if the job is not running."""
        return bool(self._inject("preempt", job, replica))

    def run_out_of_memory(self, job: str, replica: str = "workerpool0-0") -> bool:
        """Kill a replica as the out-of-memory killer does; False if the job is not running."""
        return bool(self._inject("oom", job, replica))

    def fail(self, job: str) -> bool:
        """Fail a job with an internal error of the service; False if the job is not running."""
        return bool(self._inject("internal", job, ""))

    def advance(self, seconds: float) -> None:
        """Advance the jobs' clock."""
        self.ask("POST", "/_vertex/clock", {"advance_s": seconds})

    def _inject(self, verb: str, job: str, replica: str) -> Any:
        answer = self.ask("POST", f"/_vertex/jobs/{job.rpartition('/')[2]}:{verb}", {"replica": replica})
        return answer["happened"]
