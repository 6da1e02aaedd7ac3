"""Uploads what a run writes on this machine to its directory in a bucket.

Records are objects that are created once. Growing files (logs and metrics) are uploaded in parts, which are also created
once and named by the number of bytes before them. The next part therefore has exactly one possible name: after a kill, any
process can continue, and nothing is lost or duplicated. A record is uploaded after everything that was written before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...clock import Clock
from ...logs import logger
from ...spec.layout import RunPaths
from ...storage import posix
from ...storage.checksums import crc32c, sha256
from ...storage.gcs.files import BucketFiles
from ...storage.trees import walk
from .index import FILES_RETRY, KEYS, PROGRAM_FOLDERS, SyncedRun, in_parallel

if TYPE_CHECKING:
    from ...storage.gcs.requests import ObjectInfo

_log = logger("records")

# A part is uploaded when it has this size or age.
_PART_BYTES, _PART_S, _LARGEST_BYTES = 256 << 10, 1.0, 8 << 20
# Each may hold a part in memory.
_THREADS = 8
# Pruning leaves a bundle alone for twice as long (`SETTLED_S`). An object can be touched only once a second.
_FRESH_S = 1800.0


class Pusher(SyncedRun):
    """Uploads one run's folder.

    With `one_task`, the folder belongs to one task of a new attempt: the bucket has nothing of it yet, and files that all tasks
    share are uploaded by others.
    """

    def __init__(self, paths: RunPaths, url: str, clock: Clock, *, one_task: bool = False) -> None:
        super().__init__(paths, url, clock)
        self._one_task = one_task
        self._listed = one_task
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._last: dict[str, float] = {}

    def set_deadline(self, within_s: float) -> None:
        """Let all uploads fail after this time, because this process must exit."""
        self.store.set_deadline(within_s)
        self.files.set_deadline(within_s)

    def push(self, *, last: bool) -> None:
        """Upload everything that exists now, in an order that is consistent for readers. `last`: no writer is left."""
        if not self._listed:
            for folder in (KEYS.events, "plans", "attempts", KEYS.supervisor_log, KEYS.environment_log):
                self.list(f"{folder}/")
            self._listed = True
        # Listed first, so that everything written before a record is uploaded before it.
        records = self._records()
        in_parallel(partial(self._grow, last=last), self._growing(), _THREADS)
        in_parallel(self.create, [key for key in self._small() if key not in self.index.objects], _THREADS)
        fresh = [key for key in records if key not in self.index.objects]
        # If no supervisor was left to collect outputs, the files are uploaded as they are.
        if last or any(key.endswith((".collected.json", ".final.json")) for key in fresh):
            self._push_outputs()
        for key in fresh:
            self.create(key)

    def _records(self) -> list[str]:
        """Return the records in the order in which they were written."""
        names = posix.list_names(self.paths.events)
        found = sorted((os.stat(f"{self.paths.events}/{name}").st_mtime_ns, name) for name in names)
        return [f"{KEYS.events}/{name}" for _, name in found]

    def _attempts(self) -> list[str]:
        return [f"attempts/{name}" for name in posix.list_names(f"{self.paths.url}/attempts")]

    def _growing(self) -> Iterator[str]:
        yield from (KEYS.supervisor_log, KEYS.environment_log)
        for folder in [f"{attempt}/{kind}" for attempt in self._attempts() for kind in ("logs", "metrics")]:
            yield from (f"{folder}/{name}" for name in posix.list_names(f"{self.paths.url}/{folder}"))

    def _small(self) -> Iterator[str]:
        if not self._one_task:
            yield from (f"plans/{name}" for name in posix.list_names(f"{self.paths.url}/plans"))
            payloads = [f"{attempt}/payload.json" for attempt in self._attempts()]
            yield from (key for key in payloads if os.path.exists(f"{self.paths.url}/{key}"))

    def _grow(self, file: str, *, last: bool) -> None:
        """Upload the part of a growing file that is not in the bucket yet."""
        try:
            handle = os.open(f"{self.paths.url}/{file}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            size, sent, now = os.fstat(handle).st_size, self.index.size(file), self._clock.monotonic()
            recent = now - self._last.get(file, -_PART_S) < _PART_S
            if size - sent < (1 if last or not recent else _PART_BYTES):
                return
            self._last[file] = now
            while sent < size and (data := os.pread(handle, min(_LARGEST_BYTES, size - sent), sent)):
                sent += self.create_part(file, sent, data)
        finally:
            os.close(handle)

    def _push_outputs(self) -> None:
        """Upload the program's files."""
        there: dict[str, ObjectInfo] = {}
        files: dict[str, os.stat_result] = {}
        links: dict[str, str] = {}
        for folder in PROGRAM_FOLDERS:
            tree = walk(f"{self.paths.url}/{folder}")
            links.update({f"{folder}/{path}": text for path, text in tree.links.items() if folder == "outputs"})
            files.update({f"{folder}/{path}": info for path, info in tree.files.items()})
            if tree.files:
                there.update((found.name, found) for found in self.files.list(f"{folder}/"))
        todo = [name for name, info in files.items() if self._uploaded.get(name) != _version(info)]
        in_parallel(lambda name: self._upload(name, files[name], there.get(name)), todo, _THREADS)
        executable = [name for name, info in files.items() if info.st_mode & 0o100]
        if links or executable:
            self.add_outputs(links, executable)

    def _upload(self, name: str, info: os.stat_result, existing: ObjectInfo | None) -> None:
        if not _is_object_name(name):
            _log.info(f"not uploaded: {name!r} cannot be the name of an object")
            return
        try:
            self.files.upload(name, f"{self.paths.url}/{name}", existing)
        except FileNotFoundError:
            return
        except PermissionError as error:
            # The program made it unreadable, so a retry does not help.
            _log.info(f"not uploaded: {name}: {error}")
        self._uploaded[name] = _version(info)


def _version(info: os.stat_result) -> tuple[int, int]:
    return info.st_size, info.st_mtime_ns


def _is_object_name(name: str) -> bool:
    try:
        return len(name.encode()) < 700 and not {"\r", "\n"} & set(name)
    except UnicodeEncodeError:
        return False


def upload_bundle(bundle: str, bundle_url: str) -> None:
    """Upload an archive unless it exists, and protect it from pruning until the plan that needs it exists too.

    An existing object with other bytes is damaged, and is replaced.
    """
    folder, _, name = bundle_url.rpartition("/")
    files = BucketFiles(folder, retry=FILES_RETRY)
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
    BucketFiles(folder, retry=FILES_RETRY).download(name, bundle)
