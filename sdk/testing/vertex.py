"""A Vertex AI for tests: a running emulator of Cloud Storage, custom jobs, their logs and the metadata server on one port.

It is imported by those who ask for it only, and imports nothing that takes time.
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
    """An emulator in a process of its own, which ends with this one; see `GcsServer` for what it does about buckets.

    Usage: `with Cloud(folder) as cloud: cloud.jobs().create_custom_job(parent=cloud.parent, custom_job=job, timeout=60)`

    Args:
        folder: where it keeps its data; a second server on the same folder goes on with them.
        project: in which `parent` is.
        region: in which `parent` is.
        options: of `sdk.emulator.server.serve`, `timings` as a dict of the fields of `JobTimings`.
    """

    def __init__(self, folder: Path, *, project: str = "podlift", region: str = "us-central1", **options: Any) -> None:
        super().__init__(folder)
        self.project, self.region, self.bucket = project, region, "podlift-runs"
        self._options = json.dumps(options)

    @property
    def parent(self) -> str:
        """Where jobs are created, as the client names it."""
        return f"projects/{self.project}/locations/{self.region}"

    def jobs(self) -> JobServiceClient:
        """Return Google's client of the job service; give each of its calls a `timeout`, for it has none."""
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.aiplatform_v1 import JobServiceClient

        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        options = {"api_endpoint": self.url}
        return JobServiceClient(transport="rest", credentials=credentials, client_options=options)

    def backend(self, **more: Any) -> Vertex:
        """Return the value for `backend=` with which runs go here; `reset` and `make_bucket` come before.

        Args:
            more: further fields of the value, or other ones.
        """
        from ..spec.policies import Vertex

        place = {"project": self.project, "regions": (self.region,), "bucket": self.bucket, "image": "podlift/emulated"}
        return Vertex(**{**place, **more})

    def make_bucket(self) -> None:
        """Make the bucket in which runs live, as one of the region."""
        self.ask("POST", f"/storage/v1/b?project={self.project}", {"name": self.bucket, "location": self.region})

    def entries(self, job: str, task: str | None = None) -> list[dict[str, Any]]:
        """Return the log entries of a job, the oldest first.

        Args:
            job: its number, or its whole name.
            task: "service" or a replica such as "workerpool0-0"; all of them by default.
        """
        text = f'resource.type="ml_job" AND resource.labels.job_id="{job.rpartition("/")[2]}"'
        if task is not None:
            text += f' AND resource.labels.task_name="{task}"'
        asked = {"resourceNames": [f"projects/{self.project}"], "filter": text, "pageSize": _LINES}
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            answer = self.ask("POST", "/v2/entries:list", {**asked, "pageToken": token})
            found += answer.get("entries", [])
            token = answer.get("nextPageToken", "")
            if not token:
                return found

    def preempt(self, job: str, replica: str = "workerpool0-0") -> bool:
        """Take the machine of a replica away: SIGTERM, 15 s, SIGKILL; False if the job does not run."""
        return bool(self._let("preempt", job, replica))

    def run_out_of_memory(self, job: str, replica: str = "workerpool0-0") -> bool:
        """Let the kernel end a replica; False if the job does not run."""
        return bool(self._let("oom", job, replica))

    def fail(self, job: str) -> bool:
        """Let the service itself fail with a job; False if the job does not run."""
        return bool(self._let("internal", job, ""))

    def advance(self, seconds: float) -> None:
        """Move the time of the jobs ahead: what is due then happens at once."""
        self.ask("POST", "/_vertex/clock", {"advance_s": seconds})

    def _let(self, verb: str, job: str, replica: str) -> Any:
        answer = self.ask("POST", f"/_vertex/jobs/{job.rpartition('/')[2]}:{verb}", {"replica": replica})
        return answer["happened"]
