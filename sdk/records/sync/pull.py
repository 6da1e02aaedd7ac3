"""The local copy of a run in a bucket. Only new objects are downloaded, and the copy has the same layout as a local run."""

from __future__ import annotations

import fcntl
import json
import os
import posixpath
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...clock import Clock
from ...errors import ConflictError, MissingError
from ...spec.layout import RunPaths
from ...status import Progress
from ...storage import posix
from ...storage.trees import put_link
from ..events import Event, parse
from ..recorder import read_file
from .index import KEYS, Heartbeat, SyncedRun, in_parallel

if TYPE_CHECKING:
    from ...storage.gcs.requests import ObjectInfo


class LocalCopy(SyncedRun):
    """The local copy of a run that another machine or a cloud supervises."""

    def __init__(self, paths: RunPaths, url: str, clock: Clock) -> None:
        super().__init__(paths, url, clock)
        self._listed: set[str] = set()
        self._complete: set[str] = set()
        self.progress: Progress | None = None

    def pull_plan(self) -> None:
        """Download the run's plan. Raises MissingError if there is no run."""
        if not os.path.lexists(self.paths.plan):
            os.makedirs(self.paths.events, exist_ok=True)
            self._copy(KEYS.plan)

    def refresh(self, tasks: Sequence[str], *, logs: bool) -> None:
        """Download new records, and logs and metrics with `logs` or at the end of the run."""
        with self._locked():
            # Listed first: everything written before one of these records exists now.
            fresh = self._new_records("")
            if logs or any(key.endswith(".final.json") for key in fresh):
                here = [f"{KEYS.events}/{name}" for name in posix.list_names(self.paths.events)]
                attempts = (int(posixpath.basename(key)[:4]) for key in [*fresh, *here])
                self._pull_logs(max(attempts, default=0), tasks)
            in_parallel(self._copy, fresh)

    def pull_resumes(self) -> list[Event]:
        """Download new records of resumes, and return all of them."""
        with self._locked():
            in_parallel(self._copy, self._new_records("0000.client-"))
        return [parse(name, read_file(f"{self.paths.events}/{name}")) for name in self._resumed()]

    def heartbeat(self) -> Heartbeat:
        """Return the latest heartbeat, and keep its `progress`."""
        beat = self.read_heartbeat()
        self.progress = beat.progress
        return beat

    def heartbeat_age_s(self) -> tuple[float, bool]:
        """Return the age of the latest heartbeat, and whether the run was still supervised then."""
        resumed = self._resumed()
        with suppress(MissingError):
            age_s = self.files.age_s(KEYS.heartbeat)
            beat = self.heartbeat()
            # Not a heartbeat of an earlier supervisor.
            if beat.resumes >= len(resumed):
                return age_s, beat.supervised
        # No heartbeat yet: count from the time of the submit or resume.
        return self.files.age_s(f"{KEYS.events}/{resumed[-1]}" if resumed else KEYS.plan), True

    def request_cancel(self, resumes: int, nonce: str, grace_s: float) -> None:
        """Leave a cancel request for the supervisor after this many resumes."""
        request = json.dumps({"grace_s": float(grace_s)}).encode()
        self.store.put_new(KEYS.remote_cancel_request(resumes, nonce), [request])

    def publish_resume(self, record: str) -> bool:
        """Upload the record of a resume. Return False if another process resumed the run first."""
        try:
            if not self.create(f"{KEYS.events}/{record}"):
                return False
        except ConflictError:
            return False
        # Removing a run deletes its plan first and then searches for this record: one of the two sees the other.
        self.store.stat(KEYS.plan)
        return True

    def upload(self, key: str) -> None:
        """Upload a write-once file, unless another process did."""
        with suppress(ConflictError):
            self.create(key)

    def download(self, folders: Sequence[str]) -> None:
        """Download the program's files in these folders of the run."""
        with self._locked():
            found = {item.name: item for folder in folders for item in self.files.list(f"{folder}/")}
            index = self.outputs_index()
            in_parallel(lambda name: self._download_file(name, found[name]), found)
            for name in index["executable"]:
                with suppress(FileNotFoundError):
                    os.chmod(f"{self.paths.url}/{name}", 0o755)  # noqa: S103
            for name, text in index["links"].items():
                if name.startswith(tuple(f"{folder}/" for folder in folders)) and name not in found:
                    os.makedirs(posixpath.dirname(f"{self.paths.url}/{name}"), exist_ok=True)
                    put_link(text, f"{self.paths.url}/{name}")

    def _download_file(self, name: str, found: ObjectInfo) -> None:
        path = f"{self.paths.url}/{name}"
        # The download compares checksums. Afterwards the object's generation is enough.
        mark = Path(f"{self.paths.sync}/outputs/{found.generation}")
        if os.path.isfile(path) and mark.exists():
            return
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        self.files.download(name, path)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def _new_records(self, prefix: str) -> list[str]:
        here = set(posix.list_names(self.paths.events))
        return [key for key in self.list(f"{KEYS.events}/{prefix}") if posixpath.basename(key) not in here]

    def _resumed(self) -> list[str]:
        return [name for name in posix.list_names(self.paths.events) if name.endswith(".resumed.json")]

    def _copy(self, key: str) -> None:
        """Download a write-once file; before the record of a resume, the plan that it names."""
        data = bytes(self.store.get(key))
        if key.endswith(".resumed.json"):
            name = json.loads(data)["data"].get("plan")
            if name and not os.path.lexists(self.paths.revision(name)):
                self._copy(KEYS.revision(name))
        with suppress(FileExistsError):
            posix.put_copy(f"{self.paths.url}/{key}", data)

    def _pull_logs(self, attempts: int, tasks: Sequence[str]) -> None:
        wanted = [KEYS.supervisor_log, KEYS.environment_log]
        for attempt in range(1, attempts + 1):
            Path(self.paths.attempt(attempt)).mkdir(parents=True, exist_ok=True)
            wanted += [KEYS.log(attempt, task) for task in tasks]
            wanted += [KEYS.log_times(attempt), KEYS.metrics(attempt, tasks[0])]
        in_parallel(self._grow, [key for key in wanted if key not in self._complete])
        # Logs of earlier attempts no longer grow: they were read once more.
        self._complete |= {key for key in wanted if key.startswith("attempts/") and int(key[9:13]) < attempts}

    def _grow(self, file: str) -> None:
        """Append what is new to the copy of a growing file."""
        path = Path(f"{self.paths.url}/{file}")
        size = path.stat().st_size if path.exists() else 0
        if file not in self._listed:
            self.list(f"{file}/")
            self._listed.add(file)
        # An earlier reader may have been killed in the middle of a part.
        start = self.index.part_with(file, size)
        with suppress(MissingError):
            while True:
                data = bytes(self.store.get(KEYS.part(file, start)))
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab", buffering=0) as grown:
                    grown.write(data[size - start :])
                size = start = start + len(data)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other readers from changing the copy."""
        os.makedirs(self.paths.sync, exist_ok=True)
        with open(f"{self.paths.sync}/copying", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
