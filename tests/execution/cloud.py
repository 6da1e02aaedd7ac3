"""The work of a client and of Vertex AI around a container, by hand: orders in a bucket, and processes for containers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import sdk
from sdk.backends.containers import bucket_of, key_of
from sdk.backends.vertex.job import request
from sdk.errors import AlreadyExistsError
from sdk.job import cluster
from sdk.job.container import RESTART_CODE
from sdk.job.layout import RootPaths, RunPaths
from sdk.job.plan import Plan
from sdk.packaging import bundle
from sdk.packaging.runtime_archive import entrypoint_file, loader, runtime_archive
from sdk.process.ports import PortReservation
from sdk.records.events import Event, parse
from sdk.storage.registry import open_files, open_store
from sdk.storage.store import Store
from sdk.testing.gcs import GcsServer

BUCKET, ROOT = "mine", "gs://mine/podlift"
WAIT_S = 120.0
RANGES = {"tensorflow": [], "python": ["3.10", "3.13"]}


class Container:
    """A container that was started, with its output in a file."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text()

    def code(self) -> int:
        """Return its exit code when it is over."""
        return self.process.wait(WAIT_S)


class Cloud:
    """A bucket, and containers that know it: `folder` has their files, `remembered` is the client's cache.

    The root of runs is in the bucket or in a folder that all containers see.
    """

    def __init__(self, gcs: GcsServer, folder: Path, remembered: Path, root: str = ROOT) -> None:
        self.gcs, self.folder, self.root, self._remembered = gcs, folder, root, remembered
        self._started: list[Container] = []
        self._reservations: dict[str, PortReservation] = {}
        gcs.client().create_bucket(BUCKET)

    def plan(self, entry: str, **settings) -> Plan:
        return sdk.plan(sdk.Job(entry, **settings), root=self.root, name="run")

    def order(self, plan: Plan, job: int = 1, **changes) -> list[str]:
        """Upload the files that the containers of a vendor's job need; return the arguments after the loader."""
        files = open_files(self.root)
        archive = self.folder / "bundle.tar"
        archive.unlink(missing_ok=True)
        packed = bundle.Bundle(plan.code.digest, plan.code.files, generated=plan.code.generated)
        bundle.write(packed, Path(plan.code.project), archive)
        podlift = runtime_archive(self._remembered)
        place = RootPaths(key_of(self.root))
        files.upload(f"bundles/{plan.code.digest}.tar", str(archive), None)
        files.upload(f"runtime/{podlift.digest}.tar", str(podlift.path), None)
        entrypoint = entrypoint_file()
        stage = f"entrypoints/{entrypoint.digest}.py"
        files.upload(stage, str(entrypoint.path), None)
        payload = dataclasses.replace(plan.payload(0), run_url="", bundle="", store=RunPaths(plan.url).store)
        order = {
            "version": 1,
            "run": plan.url,
            "job": job,
            "payload": dataclasses.asdict(payload),
            "bundle": {"key": place.bundle(plan.code.digest), "sha256": plan.code.digest},
            "runtime": {"key": place.runtime(podlift.digest), "sha256": podlift.digest},
            "requirements": {"lines": [], "options": [], "constraints": []},
            "retry": dataclasses.asdict(plan.job.retry),
            "container": dataclasses.asdict(request.terms(plan.tasks)),
            "preload": plan.preload,
            **RANGES,
            **changes,
        }
        data = json.dumps(order).encode()
        key = RunPaths("").launch_spec(job)
        digest = hashlib.sha256(open_files(plan.url).create(key, data)).hexdigest()
        entry = place.entrypoint(entrypoint.digest)
        return [bucket_of(self.root), entry, entrypoint.digest, f"{key_of(plan.url)}/{key}", digest]

    def environment(self, plan: Plan, task: cluster.Task) -> dict[str, str]:
        """Return the variables that Vertex AI sets in a container; here each one has its own port."""
        if plan.run_id not in self._reservations:
            self._reservations[plan.run_id] = PortReservation(plan.tasks)
        ports = self._reservations[plan.run_id].ports
        addresses = {name: f"localhost:{port}" for name, port in ports.items()}
        return cluster.environment(task, plan.members, addresses, {})

    def start(
        self, plan: Plan, words: list[str], task: str = "chief-0", *, python: str = sys.executable, **env
    ) -> Container:
        """Start the container of a task."""
        member = next(member for member in plan.members if member.name == task)
        own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        number = len(self._started)
        log, temporary = self.folder / f"{number}-{task}.log", self.folder / f"tmp-{number}"
        temporary.mkdir()
        found = {
            **own,
            **self.environment(plan, member),
            "STORAGE_EMULATOR_HOST": self.gcs.url,
            "TMPDIR": str(temporary),
            "TF_GRPC_REUSE_PORT": "true",
            RESTART_CODE: str(request.CONTAINER.restart_code),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **env,
        }
        with log.open("wb") as output:
            command = [python, "-c", loader(), *words]
            process = subprocess.Popen(command, env=found, cwd=temporary, stdout=output, stderr=output)
        self._started.append(Container(process, log))
        return self._started[-1]

    def start_all(self, plan: Plan, words: list[str], **env) -> dict[str, Container]:
        return {task: self.start(plan, words, task, **env) for task in plan.tasks}

    def close(self) -> None:
        for container in self._started:
            if container.process.poll() is None:
                container.process.kill()
                container.process.wait()
        for reservation in self._reservations.values():
            reservation.close()

    def store(self, plan: Plan) -> Store:
        return open_store(plan.url)

    def events(self, plan: Plan, *kinds: str) -> list[Event]:
        return stored_events(plan, *kinds)

    def objects(self, plan: Plan, prefix: str = "") -> dict[str, bytes]:
        """Return the objects of a run whose names in its directory begin so."""
        from google.api_core.exceptions import NotFound

        place = f"{key_of(plan.url)}/"
        for _ in range(50):
            blobs = self.gcs.client().list_blobs(BUCKET, prefix=place + prefix)
            with suppress(NotFound):  # one was removed or replaced since it was listed
                return {blob.name.removeprefix(place): blob.download_as_bytes() for blob in blobs}
        raise AssertionError("the objects of the run change all the time")

    def until(self, holds, what: str, *containers: Container) -> None:
        """Wait until something is so, while the containers run."""
        until = time.monotonic() + WAIT_S
        while not holds():
            gone = [container.said for container in containers if container.process.poll() is not None]
            assert not gone, gone[0]
            assert time.monotonic() < until, f"not so within {WAIT_S:g} s: {what}"
            time.sleep(0.05)


def lose_answers(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Let the store write new objects, and answer that they were there."""
    put_new = store.put_new

    def lose(key: str, data: list[bytes]) -> None:
        put_new(key, data)
        raise AlreadyExistsError(key)

    monkeypatch.setattr(store, "put_new", lose)


def stored_events(plan: Plan, *kinds: str) -> list[Event]:
    """Return the records in a run's store."""
    store = open_store(plan.url)
    names = [found.key for found in store.list("events/")]
    found = [parse(name.rpartition("/")[2], bytes(store.get(name))) for name in names]
    return sorted((event for event in found if event.kind in kinds), key=lambda event: (event.attempt, event.time))
