"""The local copy of a run in a bucket. Only new objects are downloaded, and the copy has the same layout as a local run."""

from __future__ import annotations

import fcntl
import json
import os
import posixpath
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ...clock import Clock
from ...errors import AlreadyExistsError, MissingError
from ...spec.layout import RunPaths
from ...status import Progress
from ...storage import posix
from ...storage.gcs.files import BucketFiles
from ...storage.gcs.store import GcsStore
from ...storage.trees import put_link
from ..events import Event, parse
from ..recorder import read_file
from . import heartbeats
from .push import KEYS, OUTPUTS_INDEX, SYNC_RETRY

_T = TypeVar("_T")
_R = TypeVar("_R")
_THREADS = 16


class LocalCopy:
    """The local copy of a run that another machine or a cloud supervises."""

    def __init__(self, paths: RunPaths, url: str, clock: Clock) -> None:
        self._paths = paths
        self._store = GcsStore(url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
        self._files = BucketFiles(url, retry=SYNC_RETRY, clock=clock)
        self._listed: set[str] = set()
        self._complete: set[str] = set()
        self.progress: Progress | None = None

    def pull_plan(self) -> None:
        """Download the run's plan. Raises MissingError if there is no run."""
        if not os.path.lexists(self._paths.plan):
            data = bytes(self._store.get(KEYS.plan))
            os.makedirs(self._paths.events, exist_ok=True)
            with suppress(FileExistsError):
                posix.put_copy(self._paths.plan, data)

    def refresh(self, tasks: Sequence[str], *, logs: bool) -> None:
        """Download new records, and logs and metrics with `logs` or at the end of the run."""
        with self._locked():
            here = set(posix.list_names(self._paths.events))
            # Listed first: everything written before one of these records exists now.
            fresh = [stat.key for stat in self._store.list(f"{KEYS.events}/")]
            fresh = [key for key in fresh if posixpath.basename(key) not in here]
            if logs or any(key.endswith(".final.json") for key in fresh):
                attempts = {int(posixpath.basename(key)[:4]) for key in fresh} | {int(name[:4]) for name in here}
                self._pull_logs(max(attempts, default=0), tasks)
            self._pull_records(fresh)

    def pull_resumes(self) -> list[Event]:
        """Download new records of resumes, and return all of them."""
        with self._locked():
            here = set(posix.list_names(self._paths.events))
            keys = [stat.key for stat in self._store.list(f"{KEYS.events}/0000.client-")]
            self._pull_records([key for key in keys if posixpath.basename(key) not in here])
        names = [name for name in posix.list_names(self._paths.events) if name.endswith(".resumed.json")]
        return [parse(name, read_file(f"{self._paths.events}/{name}")) for name in names]

    def heartbeat(self) -> dict[str, Any]:
        """Return the latest heartbeat, and keep its `progress`."""
        beat = heartbeats.read(self._store)
        # Missing before the first step.
        with suppress(TypeError):
            self.progress = Progress(**beat["progress"]) if beat.get("progress") else None
        return beat

    def heartbeat_age_s(self) -> tuple[float, bool]:
        """Return the age of the latest heartbeat, and whether the run was still supervised then."""
        resumed = [name for name in posix.list_names(self._paths.events) if name.endswith(".resumed.json")]
        with suppress(MissingError):
            age_s = self._files.age_s(KEYS.heartbeat)
            beat = self.heartbeat()
            # Not a heartbeat of an earlier supervisor.
            if beat["resumes"] >= len(resumed):
                return age_s, bool(beat["supervised"])
        # No heartbeat yet: count from the time of the submit or resume.
        return self._files.age_s(f"{KEYS.events}/{max(resumed)}" if resumed else KEYS.plan), True

    def request_cancel(self, resumes: int, nonce: str, grace_s: float) -> None:
        """Leave a cancel request for the supervisor after this many resumes."""
        self._store.put_new(
            KEYS.remote_cancel_request(resumes, nonce), [json.dumps({"grace_s": float(grace_s)}).encode()]
        )

    def publish_resume(self, record: str) -> bool:
        """Upload the record of a resume. Return False if another process resumed the run first."""
        try:
            self._store.put_new(f"{KEYS.events}/{record}", [read_file(f"{self._paths.events}/{record}")])
        except AlreadyExistsError:
            return False
        # Removing a run deletes its plan first and then searches for this record: one of the two sees the other.
        self._store.stat(KEYS.plan)
        return True

    def upload(self, key: str) -> None:
        """Upload a write-once file."""
        with suppress(AlreadyExistsError):
            self._store.put_new(key, [read_file(f"{self._paths.url}/{key}")])

    def download(self, folders: Sequence[str]) -> None:
        """Download the program's files in these folders of the run."""
        with self._locked():
            found = [item for folder in folders for item in self._files.list(f"{folder}/")]
            index: dict[str, Any] = {"links": {}, "executable": []}
            with suppress(MissingError):
                index = json.loads(bytes(self._store.get(OUTPUTS_INDEX)))
            self._each(self._download_file, found)
            for name in index["executable"]:
                with suppress(FileNotFoundError):
                    os.chmod(f"{self._paths.url}/{name}", 0o755)  # noqa: S103
            names = {name for name, _ in found}
            for name, text in dict(index["links"]).items():
                if name.startswith(tuple(f"{folder}/" for folder in folders)) and name not in names:
                    os.makedirs(posixpath.dirname(f"{self._paths.url}/{name}"), exist_ok=True)
                    put_link(text, f"{self._paths.url}/{name}")

    def _download_file(self, item: tuple[str, object]) -> None:
        name, found = item
        path = f"{self._paths.url}/{name}"
        # The download compares checksums. Afterwards the object's generation is enough.
        mark = Path(f"{self._paths.sync}/outputs/{getattr(found, 'generation', '')}")
        if os.path.isfile(path) and mark.exists():
            return
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        self._files.download(name, path)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def _pull_records(self, keys: Sequence[str]) -> None:
        def get(key: str) -> tuple[str, bytes]:
            return key, bytes(self._store.get(key))

        for key, data in self._each(get, keys):
            if key.endswith(".resumed.json"):
                self._pull_revision(data)
            with suppress(FileExistsError):
                posix.put_copy(f"{self._paths.url}/{key}", data)

    def _pull_revision(self, record: bytes) -> None:
        """Download the plan of a resume, before the record that names it."""
        name = json.loads(record)["data"].get("plan")
        if name and not os.path.lexists(self._paths.revision(name)):
            posix.put_copy(self._paths.revision(name), bytes(self._store.get(KEYS.revision(name))))

    def _pull_logs(self, attempts: int, tasks: Sequence[str]) -> None:
        wanted = [KEYS.supervisor_log, KEYS.environment_log]
        for attempt in range(1, attempts + 1):
            Path(self._paths.attempt(attempt)).mkdir(parents=True, exist_ok=True)
            wanted += [KEYS.log(attempt, task) for task in tasks]
            wanted += [KEYS.log_times(attempt), KEYS.metrics(attempt, tasks[0])]
        # Logs of earlier attempts no longer grow: they are read once more.
        over = {key for key in wanted if key.startswith("attempts/") and int(key[9:13]) < attempts}
        self._each(self._grow, [key for key in wanted if key not in self._complete])
        self._complete |= over

    def _grow(self, file: str) -> None:
        path = Path(f"{self._paths.url}/{file}")
        size = path.stat().st_size if path.exists() else 0
        for data in self._new_parts(file, size):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as grown:
                grown.write(data)

    def _new_parts(self, file: str, size: int) -> Iterator[bytes]:
        if file not in self._listed:
            for stat in self._store.list(f"{file}/"):
                start = int(posixpath.basename(stat.key).removesuffix(".part"))
                # An earlier reader may have been killed in the middle of a part.
                if start <= size < start + stat.size:
                    data = bytes(self._store.get(stat.key))[size - start :]
                    size += len(data)
                    yield data
            self._listed.add(file)
        while True:
            try:
                data = bytes(self._store.get(KEYS.part(file, size)))
            except MissingError:
                return
            size += len(data)
            yield data

    @staticmethod
    def _each(call: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(call, items))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other readers from changing the copy."""
        folder = self._paths.sync
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/copying", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
