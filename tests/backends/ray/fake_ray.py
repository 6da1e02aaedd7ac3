"""A fake of Ray's Jobs API: five routes, and no cluster. Jobs have the state that a test gives them.

Usage: `with FakeRay() as ray: sdk.submit("train.py", backend=sdk.Ray(address=ray.address), root=folder)`
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def set(self, name: str, status: str, **about: object) -> None:
        """Give a job a state: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
        self.jobs[name] = {**self.jobs[name], "status": status, **about}

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, object] | None:
        """Return the status and the content of an answer, a text or JSON; None if the connection is closed without one."""
        self.tokens.add(headers.get("Authorization"))
        if self._foreign:
            return 200, _HTML
        if self._token and headers.get("Authorization") != f"Bearer {self._token}":
            missing = "Authorization" not in headers
            return (401, "Unauthorized: Missing authentication token") if missing else (403, "Forbidden: Invalid token")
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
            return (
                500,
                f"ValueError: Job with submission_id {name} already exists. Please use a different submission_id.",
            )
        own = {"entrypoint": body["entrypoint"], "metadata": body["metadata"]}
        times = {"start_time": 1_700_000_000_000, "end_time": None}
        self.jobs[name] = {
            "type": "SUBMISSION",
            "submission_id": name,
            "status": "PENDING",
            "message": "",
            **own,
            **times,
        }
        if self.lost:
            self.lost -= 1
            return None
        return 200, {"job_id": name, "submission_id": name}


def _handler(ray: FakeRay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = ray.answer(self.command, self.path, dict(self.headers.items()), body)
            if found is None:
                self.close_connection = True
                return
            status, content = found
            is_text = isinstance(content, str)
            data = str(content).encode() if is_text else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if is_text else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler
