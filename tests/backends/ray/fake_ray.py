"""A fake of Ray's Jobs API: five routes, and no cluster. Jobs have the state that a test gives them.

Usage: `with FakeRay() as ray: sdk.submit("train.py", backend=sdk.Ray(address=ray.address), root=folder)`
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler

from support import serving
from typing_extensions import Self

_HTML = "<!doctype html><title>Another page</title>"


class FakeRay:
    """A server on loopback.

    Args:
        version: the version of Ray that it tells.
        token: of `Authorization: Bearer TOKEN` in each request; "" for nothing.
        old: it is older than the Jobs API.
        foreign: it is not Ray's dashboard, and answers everything with a page.

    Attributes:
        jobs: its answers about each job, by name.
        logs: the output of the driver of a job.
        bodies: the bodies of all requests that asked for a job.
        lost: how many of the next such requests are executed without an answer.
        failing: how many of the next such requests fail with status 500, without being executed.
        rejects: the status and the text with which such requests are rejected, if not None.
        tokens: the `Authorization` headers that came, None for a request without one.
    """

    def __init__(self, *, version: str = "2.60.0", token: str = "", old: bool = False, foreign: bool = False) -> None:
        self.jobs: dict[str, dict[str, object]] = {}
        self.logs: dict[str, str] = {}
        self.bodies: list[dict[str, object]] = []
        self.stopped: list[str] = []
        self.tokens: set[str | None] = set()
        self.lost = self.failing = 0
        self.rejects: tuple[int, str] | None = None
        self._version, self._token, self._old, self._foreign = version, token, old, foreign

    def __enter__(self) -> Self:
        self._serving = serving(self._encoded)
        self.address = f"http://{self._serving.__enter__()}"
        return self

    def __exit__(self, *error: object) -> None:
        self._serving.__exit__(None, None, None)

    def set(self, name: str, status: str, **about: object) -> None:
        """Give a job a state: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
        self.jobs[name] = {**self.jobs[name], "status": status, **about}

    def _encoded(self, request: BaseHTTPRequestHandler) -> tuple[int, bytes] | None:
        found = self._answer(request.command, request.path, request.headers.get("Authorization"), request.body)
        if found is None:
            return None
        status, content = found
        return status, content.encode() if isinstance(content, str) else json.dumps(content).encode()

    def _answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, object] | None:
        """Return the status and the content of an answer, a text or JSON; None for no answer."""
        self.tokens.add(token)
        if self._foreign:
            return 200, _HTML
        if self._token and token != f"Bearer {self._token}":
            return (401, "Unauthorized: Missing token") if token is None else (403, "Forbidden: Invalid token")
        if path == "/api/version":
            return 200, {"version": "4", "ray_version": self._version, "ray_commit": "", "session_name": "fake"}
        if self._old or not path.startswith("/api/jobs/"):
            return 404, "404: Not Found"
        name, _, action = path.removeprefix("/api/jobs/").partition("/")
        if not name:
            return self._create(json.loads(body)) if method == "POST" else (200, list(self.jobs.values()))
        if name not in self.jobs:
            return 404, f"Job {name} does not exist"
        if action == "logs":
            return 200, {"logs": self.logs.get(name, "")}
        if action == "stop":
            self.stopped.append(name)
            going = self.jobs[name]["status"] in ("PENDING", "RUNNING")
            self.set(name, "STOPPED" if going else str(self.jobs[name]["status"]))
            return 200, {"stopped": going}
        return 200, self.jobs[name]

    def _create(self, body: dict[str, object]) -> tuple[int, object] | None:
        self.bodies.append(body)
        name = str(body["submission_id"])
        if self.rejects is not None:
            return self.rejects
        if self.failing:
            self.failing -= 1
            return 500, "No available agent to submit job, please try again later."
        if name in self.jobs:
            return 500, f"ValueError: Job with submission_id {name} already exists. Use a different submission_id."
        about = {"entrypoint": body["entrypoint"], "metadata": body["metadata"], "start_time": 1_700_000_000_000}
        self.jobs[name] = {"type": "SUBMISSION", "submission_id": name, "status": "PENDING", "message": "", **about}
        if self.lost:
            self.lost -= 1
            return None
        return 200, {"job_id": name, "submission_id": name}
