"""An emulator in this process with scripts of the test as containers, and Google's own client for it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud.aiplatform_v1 import JobServiceClient
from support import until

from sdk.emulator import server as servers
from sdk.emulator.server import bind, listen
from sdk.emulator.vertex.lifecycle import JobTimings

PARENT = "projects/acme/locations/us-central1"
# One of Google's prebuilt images that is still offered.
EXECUTOR = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"
WAIT_S = 60.0
AT_ONCE = JobTimings(queue_s=0.0, provision_s=0.0, stockout_s=0.0, grace_s=0.0)
TERMINAL = {"JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED"}


def repeated(value: Any) -> Iterator[Any]:
    """Yield a value every hundredth of a second, for as long as a test waits."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        yield value
        pause.wait(0.01)


class FakeReplicas:
    """Replicas that exit when the test says so."""

    def __init__(self, job: dict, job_id: str, project: str, emit: Callable[[str, str, str], None]) -> None:
        self.job, self.job_id, self.project, self.emit = job, job_id, project, emit
        self.codes: dict[str, int] = {}
        self.killed: set[str] = set()
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def start_one(self, replica: str) -> None:
        self.codes.pop(replica)
        self.calls.append(replica)

    def exited(self) -> dict[str, int]:
        return dict(self.codes)

    def out_of_memory(self) -> set[str]:
        return self.killed

    def terminate(self, grace_s: float) -> None:
        self.calls.append("terminate")

    def preempt(self, replica: str) -> None:
        self.calls.append(f"preempt {replica}")
        self.codes[replica] = 143

    def kill(self, replica: str) -> None:
        self.calls.append(f"kill {replica}")
        self.codes[replica] = 137

    def close(self) -> None:
        self.calls.append("close")


class FakeLauncher:
    def __init__(self) -> None:
        self.made: list[FakeReplicas] = []
        self.script: Callable[[FakeReplicas], None] = lambda group: None

    def make(self, job, *, job_id, project, region, emit) -> FakeReplicas:
        group = FakeReplicas(job, job_id, project, emit)
        self.made.append(group)
        self.script(group)
        return group

    def close(self) -> None:
        pass

    def of(self, job: Any) -> list[FakeReplicas]:
        return [group for group in self.made if group.job_id == job.name.rpartition("/")[2]]


class Served:
    # The API of its fault rules.
    api = "vertex"

    def __init__(self, folder: Path, launcher: FakeLauncher, **options: Any) -> None:
        self.launcher, self.folder = launcher, folder
        self._ready = threading.Event()
        self._listener = bind(0)
        self._thread = threading.Thread(target=self._run, args=(folder, options))
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        self._clients: list[Any] = []
        self.client = self.connect(JobServiceClient)

    def connect(self, kind: type[Any]) -> Any:
        options = {"api_endpoint": self.url}
        self._clients.append(kind(transport="rest", credentials=AnonymousCredentials(), client_options=options))
        return self._clients[-1]

    def _run(self, folder: Path, options: dict[str, Any]) -> None:
        port = self._listener.getsockname()[1]
        with servers.prepared(folder, port, launcher=lambda *_: self.launcher, **options) as (self._server, self.url):
            listen(self._listener)
            self._ready.set()
            self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        self._listener.close()
        for client in self._clients:
            client.transport.close()

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> requests.Response:
        return requests.request(method, self.url + path, json=body, timeout=WAIT_S, **more)

    def store(self, database: str, statement: str) -> None:
        """Change the stored state without the emulator, as a kill or a full disk would."""
        with closing(sqlite3.connect(self.folder / f"{database}.sqlite")) as db, db:
            db.execute(statement)

    def faults(self, *rules: dict[str, Any]) -> None:
        answer = self.ask("POST", "/_faults", [{"api": self.api, **rule} for rule in rules])
        assert answer.status_code == 200, answer.text

    def create(self, job: dict | None = None) -> Any:
        return self.client.create_custom_job(parent=PARENT, custom_job=job or body(), timeout=WAIT_S)

    def get(self, job: Any) -> Any:
        return self.client.get_custom_job(name=job.name, timeout=WAIT_S)

    def until(self, job: Any, *states: str) -> Any:
        for found in map(self.get, repeated(job)):
            if found.state.name in states:
                return found
            assert found.state.name not in TERMINAL, found
        raise AssertionError(f"still {found.state.name}")

    def runs(self, job: dict | None = None) -> tuple[Any, FakeReplicas]:
        made = self.create(job)
        return made, self.running(made, 1)

    def advance(self, seconds: float, **more: Any) -> list[dict[str, Any]]:
        """Move the clock, and return the attempts of scheduled jobs."""
        answer = self.ask("POST", "/_clock", {"advance_s": seconds, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["attempts"]

    def request(self, job: Any, what: str, **more: Any) -> requests.Response:
        return self.ask("POST", f"/_vertex/jobs/{job.name.rpartition('/')[2]}:{what}", more or None)

    def running(self, job: Any, tries: int) -> FakeReplicas:
        """The group of that try of the whole job, as soon as it runs."""
        for _ in repeated(job):
            if len(self.launcher.of(job)) == tries and self.get(job).state.name == "JOB_STATE_RUNNING":
                return self.launcher.of(job)[-1]
        raise AssertionError(f"{len(self.launcher.of(job))} tries")

    def over(self, job: Any) -> Any:
        return self.until(job, *TERMINAL)

    def finish(self, job: Any, code: int = 0, replica: str = "workerpool0-0") -> Any:
        """Let a replica exit as soon as the job runs, and return the job when it is over."""
        self.until(job, "JOB_STATE_RUNNING")
        self.launcher.of(job)[-1].codes[replica] = code
        return self.over(job)

    def lines(self, job: Any, more: str = "") -> list[dict]:
        job_id = job.name.rpartition("/")[2]
        text = f'resource.type="ml_job" AND resource.labels.job_id="{job_id}"{more}'
        asked = {"resourceNames": ["projects/acme"], "filter": text, "orderBy": "timestamp asc", "pageSize": 1000}
        answer = self.ask("POST", "/v2/entries:list", asked)
        assert answer.status_code == 200, answer.text
        return answer.json().get("entries", [])


@contextmanager
def serving(kind: type[Served], folder: Path) -> Iterator[Callable[..., Any]]:
    """Start an emulator of the test's own, again and again on the same folder."""
    started: list[Served] = []

    def start(**options: Any) -> Served:
        started.append(kind(folder, FakeLauncher(), **{"timings": AT_ONCE, **options}))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def full(what: str) -> str:
    """The statement that makes the disk too full for a change, such as INSERT ON jobs, until the trigger is dropped."""
    return f"CREATE TRIGGER disk BEFORE {what} BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"


def body(workers: int = 0, **spec: Any) -> dict[str, Any]:
    pools = [pool(1), *([pool(workers)] if workers else [])]
    return {"display_name": "digits", "job_spec": {"worker_pool_specs": pools, **spec}}


def pool(count: int = 1, **more: Any) -> dict[str, Any]:
    container = {"image_uri": "us-docker.pkg.dev/acme/train/image:1", "command": ["python3"], "args": ["train.py"]}
    machine = {"machine_type": "n1-standard-4"}
    return {"machine_spec": machine, "replica_count": count, "container_spec": container, **more}


def created(cloud: Any, *containers: dict[str, Any], **spec: Any) -> Any:
    pools = [pool(container_spec={"image_uri": "any", **container}) for container in containers]
    job = {"display_name": "real", "job_spec": {"worker_pool_specs": pools, **spec}}
    with cloud.jobs() as client:
        return client.create_custom_job(parent=cloud.parent, custom_job=job, timeout=WAIT_S)


def reached(cloud: Any, job: Any, *states: str) -> Any:
    """The job as soon as it is in one of these states, or has ended."""
    with cloud.jobs() as client:
        until(lambda: client.get_custom_job(name=job.name, timeout=WAIT_S).state.name in (states or TERMINAL))
        return client.get_custom_job(name=job.name, timeout=WAIT_S)


def texts(cloud: Any, job: Any, task: str = "workerpool0-0") -> list[str]:
    return [each["textPayload"] for each in cloud.entries(job.name, task)]
