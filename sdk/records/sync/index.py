"""A run's folder on this machine and its directory in a bucket, with one index of what the bucket has, for push and pull."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TypedDict, TypeVar

from ...clock import Clock
from ...errors import AlreadyExistsError, ConflictError, MissingError, StoreError
from ...spec.layout import RunPaths
from ...status import Progress
from ...storage.gcs.files import BucketFiles
from ...storage.gcs.store import GcsStore
from ...storage.retry import RetryPolicy
from ...storage.store import Stat
from ..recorder import position, read_file

KEYS = RunPaths("")
SYNC_RETRY = RetryPolicy(connect_s=5.0, read_s=30.0, total_s=60.0, first_s=30.0)
# For files of any size.
FILES_RETRY = RetryPolicy(connect_s=5.0, read_s=60.0, total_s=600.0, first_s=60.0)
# Folders of the run with files that the program itself wrote.
PROGRAM_FOLDERS = ("outputs", "checkpoints", "logs")
_OUTPUTS_INDEX = "outputs.json"
_TRIES = 3
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """One object of the run, rewritten every few seconds while it is supervised."""

    supervised: bool
    resumes: int
    progress: Progress | None


class OutputsIndex(TypedDict):
    """What objects cannot represent of the program's files: links with their targets, and which files are executable."""

    links: dict[str, str]
    executable: list[str]


class SyncIndex:
    """What the bucket has of a run: its write-once objects, and the parts of its growing files by their offsets."""

    def __init__(self) -> None:
        self.objects: set[str] = set()
        self._parts: dict[str, dict[int, int]] = {}

    def add(self, found: Stat) -> None:
        file, _, name = found.key.rpartition("/")
        offset = name.removesuffix(".part")
        if name != offset and offset.isdecimal():
            self.add_part(file, int(offset), found.size)
        else:
            self.objects.add(found.key)

    def add_part(self, file: str, offset: int, size: int) -> None:
        self._parts.setdefault(file, {})[offset] = size

    def size(self, file: str) -> int:
        """Return how many bytes of a growing file the bucket has."""
        return max((offset + size for offset, size in self._parts.get(file, {}).items()), default=0)

    def part_with(self, file: str, byte: int) -> int:
        """Return the offset of the part that holds this byte, or would."""
        parts = self._parts.get(file, {}).items()
        return next((offset for offset, size in parts if offset <= byte < offset + size), byte)


class SyncedRun:
    """A run in both places. `index` is a cache of what the bucket has, and never has to be right."""

    def __init__(self, paths: RunPaths, url: str, clock: Clock) -> None:
        self.paths = paths
        self.store = GcsStore(url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
        self.files = BucketFiles(url, retry=FILES_RETRY, clock=clock)
        self.index = SyncIndex()
        self._clock = clock
        self._beat: str | None = None

    def list(self, prefix: str) -> list[str]:
        """Add the objects of the bucket whose names start with this to the index, and return their names."""
        found = list(self.store.list(prefix))
        for each in found:
            self.index.add(each)
        return [each.key for each in found]

    def create(self, key: str) -> bool:
        """Upload a write-once file. Return False if the bucket has it already; ConflictError if it has a different one."""
        data = read_file(f"{self.paths.url}/{key}")
        try:
            self.store.put_new(key, [data])
            created = True
        except AlreadyExistsError:
            created = False
            self._check_same(key, bytes(self.store.get(key)), data)
        self.index.objects.add(key)
        return created

    def create_part(self, file: str, offset: int, data: bytes) -> int:
        """Upload a part of a growing file, and return its length. Another process may have created a shorter one before."""
        key = KEYS.part(file, offset)
        try:
            self.store.put_new(key, [data])
        except AlreadyExistsError:
            there = bytes(self.store.get(key))
            self._check_same(key, there, data[: len(there)])
            data = there
        self.index.add_part(file, offset, len(data))
        return len(data)

    @staticmethod
    def _check_same(key: str, there: bytes, here: bytes) -> None:
        if not there or there != here:
            raise ConflictError(f"The bucket has a different {key!r} than this machine.")

    def outputs_index(self) -> OutputsIndex:
        with suppress(MissingError):
            found: OutputsIndex = json.loads(bytes(self.store.get(_OUTPUTS_INDEX)))
            return found
        return {"links": {}, "executable": []}

    def add_outputs(self, links: dict[str, str], executable: Iterable[str]) -> None:
        """Merge links and executable files into the index of outputs, which may have entries of earlier attempts."""
        for _ in range(_TRIES):
            generation, known = self._generation(_OUTPUTS_INDEX), self.outputs_index()
            both = {
                "links": {**known["links"], **links},
                "executable": sorted({*known["executable"], *executable}),
            }
            with suppress(ConflictError):
                if both != known:
                    self.store.swap(_OUTPUTS_INDEX, [json.dumps(both, sort_keys=True).encode()], expected=generation)
                return
        raise StoreError(f"Another process keeps writing {_OUTPUTS_INDEX} of {self.store.url}.")

    def write_heartbeat(self, task: str, *, supervised: bool, resumes: int) -> None:
        """Replace the heartbeat by one with the progress of this task."""
        beat = Heartbeat(supervised=supervised, resumes=resumes, progress=position(self.paths, task))
        for _ in range(_TRIES):
            try:
                data = json.dumps(asdict(beat)).encode()
                self._beat = self.store.swap(KEYS.heartbeat, [data], expected=self._beat).generation
                return
            except ConflictError:
                self._beat = self._generation(KEYS.heartbeat)
        raise StoreError(f"Another process keeps writing {KEYS.heartbeat} of this run.")

    def read_heartbeat(self) -> Heartbeat:
        """Return the latest heartbeat. Raises MissingError if there is none, and ValueError if it is not one."""
        text = bytes(self.store.get(KEYS.heartbeat))
        try:
            found = json.loads(text)
            resumes, supervised, progress = int(found["resumes"]), bool(found["supervised"]), None
        except (LookupError, TypeError) as error:
            raise ValueError(f"This is not a heartbeat: {text!r:.100}") from error
        # podlift 0.1 wrote no progress, and a later one may write more.
        with suppress(TypeError):
            progress = Progress(**found["progress"]) if found.get("progress") else None
        return Heartbeat(supervised=supervised, resumes=resumes, progress=progress)

    def _generation(self, key: str) -> str | None:
        try:
            return self.store.stat(key).generation
        except MissingError:
            return None


def in_parallel(call: Callable[[_T], _R], items: Iterable[_T], threads: int = 16) -> list[_R]:
    """Call a function for each item in parallel, and return the results in order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(call, items))
