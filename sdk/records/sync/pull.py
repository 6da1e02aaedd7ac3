"""A run in a bucket, as files of this machine: only what is new is read, and the copy looks like a run that runs here."""

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
from .push import INDEX, KEYS, PATIENCE

_T = TypeVar("_T")
_R = TypeVar("_R")
_THREADS = 16


class Copy:
    """What this machine knows of a run that somebody else looks after.

    Args:
        paths: the copy.
        url: gs://BUCKET/PREFIX/runs/ID.
        clock: what time it is.
    """

    def __init__(self, paths: RunPaths, url: str, clock: Clock) -> None:
        self._paths = paths
        self._store = GcsStore(url.partition("://")[2], retry=PATIENCE, clock=clock)
        self._files = BucketFiles(url, retry=PATIENCE, clock=clock)
        self._listed: set[str] = set()
        self._whole: set[str] = set()
        self.progress: Progress | None = None

    def plan(self) -> None:
        """Bring the run's plan.

        Raises:
            MissingError: there is no run.
            StoreError: the bucket cannot be read.
        """
        if not os.path.lexists(self._paths.plan):
            data = bytes(self._store.get(KEYS.plan))
            os.makedirs(self._paths.events, exist_ok=True)
            with suppress(FileExistsError):
                posix.put_copy(self._paths.plan, data)

    def refresh(self, tasks: Sequence[str], *, logs: bool) -> None:
        """Bring what is new: records, and what tasks wrote where that is wanted, or where this is the run's end.

        Args:
            tasks: names of the tasks.
            logs: whether logs and metrics are wanted.
        """
        with self._alone():
            here = set(posix.list_names(self._paths.events))
            # Looked at first: whatever was written before one of these is there now.
            fresh = [stat.key for stat in self._store.list(f"{KEYS.events}/")]
            fresh = [key for key in fresh if posixpath.basename(key) not in here]
            if logs or any(key.endswith(".final.json") for key in fresh):
                attempts = {int(posixpath.basename(key)[:4]) for key in fresh} | {int(name[:4]) for name in here}
                self._logs(max(attempts, default=0), tasks)
            self._records(fresh)

    def resumes(self) -> list[Event]:
        """Bring the records of who has resumed the run, and return them all."""
        with self._alone():
            here = set(posix.list_names(self._paths.events))
            keys = [stat.key for stat in self._store.list(f"{KEYS.events}/0000.client-")]
            self._records([key for key in keys if posixpath.basename(key) not in here])
        names = [name for name in posix.list_names(self._paths.events) if name.endswith(".resumed.json")]
        return [parse(name, read_file(f"{self._paths.events}/{name}")) for name in names]

    def heartbeat(self) -> dict[str, Any]:
        """Return what the run has said last, and remember its `progress`.

        Raises:
            MissingError: it has said nothing yet.
        """
        said = heartbeats.read(self._store)
        # An earlier podlift does not say, nor does a task that has not begun.
        with suppress(TypeError):
            self.progress = Progress(**said["progress"]) if said.get("progress") else None
        return said

    def age_s(self) -> tuple[float, bool]:
        """Return how long ago somebody said that the run is looked after, in seconds, and whether it still was then."""
        resumed = [name for name in posix.list_names(self._paths.events) if name.endswith(".resumed.json")]
        with suppress(MissingError):
            age_s = self._files.age_s(KEYS.heartbeat)
            said = self.heartbeat()
            # An earlier supervisor says nothing about this one.
            if said["generation"] >= len(resumed):
                return age_s, bool(said["supervised"])
        # Nobody has said so yet: it counts since when somebody should have.
        return self._files.age_s(f"{KEYS.events}/{max(resumed)}" if resumed else KEYS.plan), True

    def wish(self, number: int, nonce: str, grace_s: float) -> None:
        """Leave the wish to cancel the run, for the supervisor of that generation."""
        self._store.put_new(
            KEYS.remote_cancel_request(number, nonce), [json.dumps({"grace_s": float(grace_s)}).encode()]
        )

    def claim(self, record: str) -> bool:
        """Bring the record of who resumes the run; false if somebody else has resumed it before.

        Args:
            record: its file's name.

        Raises:
            MissingError: somebody removes the run at this moment.
        """
        try:
            self._store.put_new(f"{KEYS.events}/{record}", [read_file(f"{self._paths.events}/{record}")])
        except AlreadyExistsError:
            return False
        # Whoever removes a run takes its plan first and looks for this record then: one of the two sees the other.
        self._store.stat(KEYS.plan)
        return True

    def bring(self, key: str) -> None:
        """Bring one more write-once file to the bucket."""
        with suppress(AlreadyExistsError):
            self._store.put_new(key, [read_file(f"{self._paths.url}/{key}")])

    def files(self, folders: Sequence[str]) -> None:
        """Bring what the program has left in these folders of the run."""
        with self._alone():
            found = [item for folder in folders for item in self._files.list(f"{folder}/")]
            index: dict[str, Any] = {"links": {}, "executable": []}
            with suppress(MissingError):
                index = json.loads(bytes(self._store.get(INDEX)))
            self._each(self._file, found)
            for name in index["executable"]:
                with suppress(FileNotFoundError):
                    os.chmod(f"{self._paths.url}/{name}", 0o755)  # noqa: S103
            names = {name for name, _ in found}
            for name, text in dict(index["links"]).items():
                if name.startswith(tuple(f"{folder}/" for folder in folders)) and name not in names:
                    os.makedirs(posixpath.dirname(f"{self._paths.url}/{name}"), exist_ok=True)
                    put_link(text, f"{self._paths.url}/{name}")

    def _file(self, item: tuple[str, object]) -> None:
        name, found = item
        path = f"{self._paths.url}/{name}"
        # The same crc32c is compared by whoever brings it: here the size and the generation say enough.
        mark = Path(f"{self._paths.sync}/outputs/{getattr(found, 'generation', '')}")
        if os.path.isfile(path) and mark.exists():
            return
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        self._files.download(name, path)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def _records(self, keys: Sequence[str]) -> None:
        def bring(key: str) -> tuple[str, bytes]:
            return key, bytes(self._store.get(key))

        for key, data in self._each(bring, keys):
            if key.endswith(".resumed.json"):
                self._revision(data)
            with suppress(FileExistsError):
                posix.put_copy(f"{self._paths.url}/{key}", data)

    def _revision(self, record: bytes) -> None:
        """Bring the plan that a run was resumed with, before the record that names it."""
        name = json.loads(record)["data"].get("plan")
        if name and not os.path.lexists(self._paths.revision(name)):
            posix.put_copy(self._paths.revision(name), bytes(self._store.get(KEYS.revision(name))))

    def _logs(self, attempts: int, tasks: Sequence[str]) -> None:
        wanted = [KEYS.supervisor_log, KEYS.environment_log]
        for attempt in range(1, attempts + 1):
            Path(self._paths.attempt(attempt)).mkdir(parents=True, exist_ok=True)
            wanted += [KEYS.log(attempt, task) for task in tasks]
            wanted += [KEYS.log_times(attempt), KEYS.metrics(attempt, tasks[0])]
        # An attempt that others have followed is over: read once more, it does not grow.
        over = {key for key in wanted if key.startswith("attempts/") and int(key[9:13]) < attempts}
        self._each(self._grow, [key for key in wanted if key not in self._whole])
        self._whole |= over

    def _grow(self, file: str) -> None:
        path = Path(f"{self._paths.url}/{file}")
        size = path.stat().st_size if path.exists() else 0
        for data in self._pieces(file, size):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as grown:
                grown.write(data)

    def _pieces(self, file: str, size: int) -> Iterator[bytes]:
        if file not in self._listed:
            for stat in self._store.list(f"{file}/"):
                start = int(posixpath.basename(stat.key).removesuffix(".part"))
                # Whoever read it before may have been killed in the middle of a piece.
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
    def _alone(self) -> Iterator[None]:
        """Keep other readers out of the copy."""
        folder = self._paths.sync
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/copying", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
