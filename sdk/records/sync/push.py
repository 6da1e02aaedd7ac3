"""Uploads what a run writes on this machine to its directory in a bucket.

Records are objects that are created once. Growing files (logs and metrics) are uploaded in parts, which are also created
once and named by the number of bytes before them. The next part therefore has exactly one possible name: after a kill, any
process can continue, and nothing is lost or duplicated. A record is uploaded after everything that was written before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...clock import Clock
from ...errors import AlreadyExistsError, ConflictError, MissingError, StoreError
from ...logs import logger
from ...spec.layout import RunPaths
from ...storage import posix
from ...storage.checksums import crc32c, sha256
from ...storage.gcs.files import BucketFiles
from ...storage.gcs.store import GcsStore
from ...storage.retry import RetryPolicy
from ...storage.trees import walk
from ..recorder import read_file

if TYPE_CHECKING:
    from ...storage.gcs.requests import ObjectInfo

_log = logger("records")

KEYS = RunPaths("")
SYNC_RETRY = RetryPolicy(connect_s=5.0, read_s=30.0, total_s=60.0, first_s=30.0)
# For files of any size.
_FILES_RETRY = RetryPolicy(connect_s=5.0, read_s=60.0, total_s=600.0, first_s=60.0)
# A part is uploaded when it has this size or age.
_PART_BYTES, _PART_S, _LARGEST_BYTES = 256 << 10, 1.0, 8 << 20
_THREADS, _TRIES = 8, 3
# Pruning leaves a bundle alone for twice as long (`SETTLED_S`). An object can be touched only once a second.
_FRESH_S = 1800.0
# Folders of the run with files that the program itself wrote.
PROGRAM_FOLDERS = ("outputs", "checkpoints", "logs")
# Links and executable files, which objects cannot represent.
OUTPUTS_INDEX = "outputs.json"


class Pusher:
    """Uploads one run's folder. Its only state is a cache of what the bucket contains.

    With `one_task`, the folder belongs to one task of a new attempt: the bucket has nothing of it yet, and files that all tasks
    share are uploaded by others.
    """

    def __init__(self, paths: RunPaths, url: str, clock: Clock, *, one_task: bool = False) -> None:
        self._paths = paths
        self._one_task = one_task
        self._clock = clock
        self._store = GcsStore(url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
        self._files = BucketFiles(url, retry=_FILES_RETRY, clock=clock)
        self._existing: set[str] = set()
        self._sent: dict[str, int] = {}
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._last: dict[str, float] = {}
        self._listed = one_task

    def list_bucket(self) -> None:
        """List what the bucket contains."""
        for folder in (KEYS.events, "plans", "attempts", KEYS.supervisor_log, KEYS.environment_log):
            for found in self._store.list(f"{folder}/"):
                file, _, part = found.key.rpartition("/")
                offset = part.removesuffix(".part")
                if part != offset and offset.isdecimal():
                    end = int(offset) + found.size
                    self._sent[file] = max(end, self._sent.get(file, 0))
                else:
                    self._existing.add(found.key)
        self._listed = True

    def set_deadline(self, within_s: float) -> None:
        """Let all uploads fail after this time, because this process must exit."""
        self._store.set_deadline(within_s)
        self._files.set_deadline(within_s)

    def push(self, *, last: bool) -> None:
        """Upload everything that exists now, in an order that is consistent for readers. `last`: no writer is left."""
        if not self._listed:
            self.list_bucket()
        # Listed first, so that everything written before a record is uploaded before it.
        records = self._records()
        self._all([partial(self._grow, file, last) for file in self._growing()])
        self._all([partial(self._create, key) for key in self._small() if key not in self._existing])
        fresh = [key for key in records if key not in self._existing]
        # If no supervisor was left to collect outputs, the files are uploaded as they are.
        if last or any(key.endswith((".collected.json", ".final.json")) for key in fresh):
            self._push_outputs()
        for key in fresh:
            self._create(key)

    def _records(self) -> list[str]:
        """Return the records in the order in which they were written."""
        found = []
        for name in posix.list_names(self._paths.events):
            info = os.stat(f"{self._paths.events}/{name}")
            found.append((info.st_mtime_ns, f"{KEYS.events}/{name}"))
        return [key for _, key in sorted(found)]

    def _attempts(self) -> Iterator[str]:
        yield from (f"attempts/{name}" for name in posix.list_names(f"{self._paths.url}/attempts"))

    def _growing(self) -> Iterator[str]:
        yield from (KEYS.supervisor_log, KEYS.environment_log)
        for attempt in self._attempts():
            for kind in ("logs", "metrics"):
                folder = f"{attempt}/{kind}"
                yield from (f"{folder}/{name}" for name in posix.list_names(f"{self._paths.url}/{folder}"))

    def _small(self) -> Iterator[str]:
        if self._one_task:
            return
        yield from (f"plans/{name}" for name in posix.list_names(f"{self._paths.url}/plans"))
        yield from (f"{attempt}/payload.json" for attempt in self._attempts())

    def _all(self, calls: Sequence[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for done in [pool.submit(call) for call in calls]:
                done.result()

    def _grow(self, file: str, last: bool) -> None:
        """Upload the part of a growing file that is not in the bucket yet."""
        path = f"{self._paths.url}/{file}"
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            size, sent, now = os.fstat(handle).st_size, self._sent.get(file, 0), self._clock.monotonic()
            recent = now - self._last.get(file, -_PART_S) < _PART_S
            if size - sent < (1 if last or not recent else _PART_BYTES):
                return
            self._last[file] = now
            while sent < size:
                data = os.pread(handle, min(_LARGEST_BYTES, size - sent), sent)
                if not data:
                    return
                sent += self._put_part(file, sent, data)
                self._sent[file] = sent
        finally:
            os.close(handle)

    def _put_part(self, file: str, offset: int, data: bytes) -> int:
        """Create a part and return its length. Another process may have created a shorter one before."""
        key = KEYS.part(file, offset)
        try:
            self._store.put_new(key, [data])
        except AlreadyExistsError:
            there = bytes(self._store.get(key))
            if not there or there != data[: len(there)]:
                raise ConflictError(f"The bucket has a different {key!r} than this machine.") from None
            return len(there)
        return len(data)

    def _create(self, key: str) -> None:
        try:
            data = read_file(f"{self._paths.url}/{key}")
        except FileNotFoundError:
            return
        try:
            self._store.put_new(key, [data])
        except AlreadyExistsError:
            if bytes(self._store.get(key)) != data:
                raise ConflictError(f"The bucket has a different {key!r} than this machine.") from None
        self._existing.add(key)

    def _push_outputs(self) -> None:
        """Upload the program's files."""
        there: dict[str, ObjectInfo] = {}
        links: dict[str, str] = {}
        modes: list[str] = []
        todo: list[tuple[str, os.stat_result]] = []
        for folder in PROGRAM_FOLDERS:
            tree = walk(f"{self._paths.url}/{folder}")
            links.update({f"{folder}/{path}": text for path, text in tree.links.items() if folder == "outputs"})
            files = {f"{folder}/{path}": info for path, info in tree.files.items()}
            modes += [name for name, info in files.items() if info.st_mode & 0o100]
            todo += [(name, info) for name, info in files.items() if self._uploaded.get(name) != _version(info)]
            if files:
                there.update(self._files.list(f"{folder}/"))
        self._all([partial(self._upload, name, info, there.get(name)) for name, info in todo])
        if links or modes:
            self._update_index(links, modes)

    def _upload(self, name: str, info: os.stat_result, existing: ObjectInfo | None) -> None:
        if not _is_object_name(name):
            _log.info(f"not uploaded: {name!r} cannot be the name of an object")
            return
        try:
            self._files.upload(name, f"{self._paths.url}/{name}", existing)
        except FileNotFoundError:
            return
        except PermissionError as error:
            # The program made it unreadable, so a retry does not help.
            _log.info(f"not uploaded: {name}: {error}")
        self._uploaded[name] = _version(info)

    def _update_index(self, links: Mapping[str, str], modes: Sequence[str]) -> None:
        """Merge links and executable files into the index, which may have entries of earlier attempts."""
        for _ in range(_TRIES):
            known: dict[str, Any] = {"links": {}, "executable": []}
            generation = None
            with suppress(MissingError):
                generation = self._store.stat(OUTPUTS_INDEX).generation
                known = json.loads(bytes(self._store.get(OUTPUTS_INDEX, generation=generation)))
            both = {"links": {**known["links"], **links}, "executable": sorted({*known["executable"], *modes})}
            try:
                if both != known:
                    self._store.swap(OUTPUTS_INDEX, [json.dumps(both, sort_keys=True).encode()], expected=generation)
                return
            except ConflictError:
                continue
        raise StoreError(f"Another process keeps writing {OUTPUTS_INDEX} of {self._store.url}.")


def _version(info: os.stat_result) -> tuple[int, int]:
    return info.st_size, info.st_mtime_ns


def _is_object_name(name: str) -> bool:
    try:
        return len(name.encode()) < 700 and not {"\r", "\n"} & set(name)
    except UnicodeEncodeError:
        return False


def publish(paths: RunPaths, url: str, bundle: str, bundle_url: str) -> None:
    """Upload the bundle and the plan of a new run, the plan last: its existence creates the run."""
    upload_bundle(bundle, bundle_url)
    store = GcsStore(url.partition("://")[2], retry=SYNC_RETRY)
    store.put_new(KEYS.plan, [read_file(paths.plan)])


def upload_bundle(bundle: str, bundle_url: str) -> None:
    """Upload an archive unless it exists, and protect it from pruning until the plan that needs it exists too.

    An existing object with other bytes is damaged, and is replaced.
    """
    folder, _, name = bundle_url.rpartition("/")
    files = BucketFiles(folder, retry=_FILES_RETRY)
    found, now = files.versions(name)
    crc = crc32c([Path(bundle).read_bytes()])
    same = [each for each in found if each.name == name and each.crc32c == crc]
    if any(now - each.changed < _FRESH_S for each in same):
        return
    if not same or not files.touch(name):
        files.upload(name, bundle, None)


def download_bundle(bundle_url: str, bundle: str) -> None:
    """Download an archive unless it is here and undamaged."""
    folder, _, name = bundle_url.rpartition("/")
    with suppress(FileNotFoundError):
        if sha256(bundle) == name.removesuffix(".tar"):
            return
    BucketFiles(folder, retry=_FILES_RETRY).download(name, bundle)
