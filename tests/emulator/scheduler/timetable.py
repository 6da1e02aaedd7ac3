"""An emulator in this process, with Google's own client of Cloud Scheduler."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from google.cloud.scheduler_v1 import CloudSchedulerClient
from google.cloud.scheduler_v1.types import Job
from served import PARENT, WAIT_S, FakeLauncher, Served, body

JOBS = "https://us-central1-aiplatform.googleapis.com/v1/projects/acme/locations/us-central1/customJobs"
ACCOUNT = "runner@acme.iam.gserviceaccount.com"
DAY_S, WEEK_S = 86400, 7 * 86400


class Timetable(Served):
    api = "scheduler"

    def __init__(self, folder: Path, launcher: FakeLauncher, **options: Any) -> None:
        super().__init__(folder, launcher, **options)
        self.scheduler = self.connect(CloudSchedulerClient)

    def add(self, name: str = "weekly", **changes: Any) -> Job:
        return self.scheduler.create_job(parent=PARENT, job=job(name, **changes), timeout=WAIT_S)

    def look(self, name: str = "weekly") -> Job:
        return self.scheduler.get_job(name=full(name), timeout=WAIT_S)

    def now(self) -> datetime:
        now = self.ask("GET", "/_clock").json()["now"]
        # In microseconds, as the API shows times.
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=round(now * 1e6))

    def custom_jobs(self) -> list[Any]:
        return list(self.client.list_custom_jobs(parent=PARENT, timeout=WAIT_S))[::-1]


def full(name: str) -> str:
    return f"{PARENT}/jobs/{name}"


def job(name: str = "weekly", *, target: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A job that creates a custom job each Monday at three in the morning."""
    given = {
        "name": full(name),
        "schedule": "0 3 * * 1",
        "time_zone": "Europe/Berlin",
        "http_target": {
            "uri": JOBS,
            "http_method": "POST",
            "headers": {"Content-Type": "application/json"},
            "body": json.dumps(body()).encode(),
            "oauth_token": {"service_account_email": ACCOUNT},
            **(target or {}),
        },
        **changes,
    }
    given["http_target"] = {field: value for field, value in given["http_target"].items() if value is not None}
    return {field: value for field, value in given.items() if value is not None}
