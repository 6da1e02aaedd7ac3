"""Uploads a run's files from this machine to its directory in a bucket.

Records are objects that are created once. Growing files (logs and metrics) are uploaded in parts, which are also created
once and named by the number of bytes before them. The next part therefore has exactly one possible name: after a kill, any
process can continue, and nothing is lost or duplicated. A record is uploaded after all earlier files.
This file also uploads bundles, and has the thread that uploads on a machine and in a container.
"""

from __future__ import annotations

import math
import os
import re
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...clock import Clock
from ...errors import PodliftError
from ...job.layout import RunPaths
from ...logs import logger
from ...storage import posix
from ...storage.checksums import crc32c
from ...storage.locking import file_lock
from ...storage.parallel import in_parallel
from ...storage.registry import open_files
from ...storage.trees import walk
from ..recorder import position
from .index import FILES_RETRY, KEYS, PROGRAM_FOLDERS, SyncedRun

if TYPE_CHECKING:
    from ...storage.gcs.requests import ObjectInfo

_log = logger("records")

# A part is uploaded when it has this size or age. A cloud bills each upload as a request: a container that has trained for a
# while uploads less often, unless a record waits for the upload.
_PART_BYTES, _PART_S, _LARGEST_BYTES = 256 << 10, 1.0, 8 << 20
_YOUNG_S, _LATER_PART_S, _LATER_MACHINE_S = 60.0, 20.0, 60.0
# Objects have names in UTF-8, of limited length and without line breaks. Bytes that are not UTF-8 are surrogates here.
_NOT_IN_NAMES = re.compile("[\r\n\ud800-\udfff]")
_GROWING = ("/logs", "/metrics", "/machine", "/unseeded")
# Each may hold a part in memory.
_THREADS = 8
_POLL_S, _LOG_AGAIN_S = 0.25, 600.0
_TASK_UPLOAD_S, _TASK_HEARTBEAT_S = 1.0, 10.0
# A removal leaves an archive alone for at least twice as long (`SETTLED_S`). An object can be touched only once a second.
_FRESH_S = 1800.0


class Pusher(SyncedRun):
    """Uploads one run's folder, or the folder of `one_task` in a new attempt that has nothing in the bucket yet."""

    def __init__(self, paths: RunPaths, url: str, clock: Clock, *, one_task: bool = False) -> None:
        super().__init__(paths, url, clock)
        self._one_task = one_task
        folders = [KEYS.events, "plans", "attempts", KEYS.supervisor_log, KEYS.environment_log]
        self._unlisted = [] if one_task else folders
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._last: dict[str, float] = {}
        self._young_until = clock.monotonic() + _YOUNG_S if one_task else math.inf

    def push(self, *, last: bool) -> None:
        """Upload everything that exists now, in an order that is consistent for readers. `last`: every writer has ended."""
        while self._unlisted:
            self.listed(f"{self._unlisted[-1]}/")
            self._unlisted.pop()
        # Listed first, in the order of their writing: everything written before a record is uploaded before it.
        records = self._files_in(KEYS.events)
        records.sort(key=lambda key: (os.stat(f"{self.paths.url}/{key}").st_mtime_ns, key))
        attempts = [folder for folder in self._files_in("attempts") if folder[-4:].isdecimal()]
        inside = [key for attempt in attempts for key in self._files_in(attempt)]
        growing = [file for key in inside if key.endswith(_GROWING) for file in self._files_in(key)]
        fresh = [key for key in records if key not in self.objects]
        at_once = last or bool(fresh)
        in_parallel(
            partial(self._grow, at_once=at_once), [KEYS.supervisor_log, KEYS.environment_log, *growing], _THREADS
        )
        payloads = [key for key in inside if key.endswith("/payload.json")]
        shared = [] if self._one_task else [*self._files_in("plans"), *payloads]
        in_parallel(self.create, [key for key in shared if key not in self.objects], _THREADS)
        # If no supervisor was left to collect outputs, the files are uploaded as they are.
        if last or any(key.endswith((".collected.json", ".final.json")) for key in fresh):
            self._push_outputs()
        for key in fresh:
            self.create(key)

    def _files_in(self, folder: str) -> list[str]:
        """Return the files in a folder. An unreadable folder is an error: its files would be lost."""
        return [f"{folder}/{name}" for name in posix.list_names(f"{self.paths.url}/{folder}") if name[0] != "."]

    def _part_s(self, file: str) -> float:
        """Return how long a small part of a growing file waits."""
        if self._clock.monotonic() < self._young_until:
            return _PART_S
        return _LATER_MACHINE_S if "/machine/" in file else _LATER_PART_S

    def _grow(self, file: str, *, at_once: bool) -> None:
        """Upload the part of a growing file that is not in the bucket yet; one that is small may wait."""
        with suppress(FileNotFoundError), posix.opened(f"{self.paths.url}/{file}") as handle:
            size, sent, now = os.fstat(handle).st_size, self.size(file), self._clock.monotonic()
            recent = not at_once and now - self._last.get(file, -math.inf) < self._part_s(file)
            if size - sent < (_PART_BYTES if recent else 1):
                return
            self._last[file] = now
            while sent < size and (data := os.pread(handle, min(_LARGEST_BYTES, size - sent), sent)):
                sent += self.create_part(file, sent, data)

    def _push_outputs(self) -> None:
        trees = {folder: walk(f"{self.paths.url}/{folder}", complete=True) for folder in PROGRAM_FOLDERS}
        files = {f"{folder}/{path}": info for folder, tree in trees.items() for path, info in tree.files.items()}
        links = {f"outputs/{path}": text for path, text in trees["outputs"].links.items()}
        filled = [folder for folder, tree in trees.items() if tree.files]
        there = {info.name: info for folder in filled for info in self.files.list(f"{folder}/")}
        versions = {name: (info.st_size, info.st_mtime_ns) for name, info in files.items()}
        todo = [name for name, version in versions.items() if self._uploaded.get(name) != version]
        in_parallel(lambda name: self._upload(name, versions[name], there.get(name)), todo, _THREADS)
        executable = [name for name, info in files.items() if info.st_mode & 0o100]
        if links or executable:
            self.add_outputs(links, executable)

    def _upload(self, name: str, version: tuple[int, int], existing: ObjectInfo | None) -> None:
        if len(name.encode(errors="replace")) >= 700 or _NOT_IN_NAMES.search(name):
            _log.info(f"not uploaded: {name!r} cannot be the name of an object")
            return
        try:
            self.files.upload(name, f"{self.paths.url}/{name}", existing)
        except FileNotFoundError:
            return
        except PermissionError as error:
            # The program made it unreadable, so a retry does not help.
            _log.info(f"not uploaded: {name}: {error}")
        self._uploaded[name] = version


def is_uploading(paths: RunPaths) -> bool:
    """True while an uploader of the run is active."""
    with file_lock(paths.sync_lock, wait=False) as locked:
        return not locked


def upload_archive(archive: str, url: str) -> None:
    """Upload a file named by its digest unless the bucket has it, and protect it from removal until its users exist."""
    folder, _, name = url.rpartition("/")
    files = open_files(folder, retry=FILES_RETRY)
    versions, now = files.versions(name)
    crc = crc32c([Path(archive).read_bytes()])
    same = [version for version in versions if version.name == name and version.crc32c == crc]
    if any(now - version.changed < _FRESH_S for version in same):
        return
    if not same or not files.touch(name):
        files.upload(name, archive, None)


# --- In a thread, on a machine and in a container ---------------------------------------------------------------------


@dataclass
class PeriodicAction:
    """Calls a function at most once per period. A failure is logged, and the function is called again after the next period."""

    every_s: float
    name: str
    action: Callable[[], object]
    due: float = -math.inf
    _logged: tuple[str, float] = ("", -math.inf)

    def run_if_due(self, now: float) -> None:
        if now < self.due:
            return
        self.due = now + self.every_s
        try:
            self.action()
        except Exception as error:  # the next call may succeed, and one failure must not end the upload
            text = str(error) if isinstance(error, (PodliftError, OSError)) else traceback.format_exc()
            # The same failure repeated for days must not fill the disk; how often it was tried is not another one.
            same = text.partition(" Tried ")[0]
            if same != self._logged[0] or now - self._logged[1] >= _LOG_AGAIN_S:
                self._logged = (same, now)
                _log.info(f"{self.name} failed: {text}")


class PeriodicThread(threading.Thread):
    """Runs actions when they are due, until it is stopped."""

    def __init__(self, actions: Sequence[PeriodicAction], clock: Clock) -> None:
        super().__init__(name="podlift-uploader", daemon=True)
        self._actions = actions
        self._clock = clock
        self._stop_requested = threading.Event()

    def stop(self, within_s: float) -> None:
        self._stop_requested.set()
        self.join(within_s)

    def run(self) -> None:
        while not self._stop_requested.wait(_POLL_S):
            self.run_due()

    def run_due(self) -> None:
        for action in self._actions:
            action.run_if_due(self._clock.monotonic())


class ContainerUploader(PeriodicThread):
    """Uploads the files of one task, once a second from `start` to `flush`; a heartbeat only for a named `task`."""

    def __init__(self, paths: RunPaths, url: str, clock: Clock, *, task: str = "", resumes: int = 0) -> None:
        self._pusher = Pusher(paths, url, clock, one_task=True)
        actions = [PeriodicAction(_TASK_UPLOAD_S, "upload", partial(self._pusher.push, last=False))]
        self._task = task
        self._beat = partial(self._pusher.write_heartbeat, task, supervised=True, resumes=resumes)
        if task:
            due = clock.monotonic() + _TASK_HEARTBEAT_S
            actions.append(PeriodicAction(_TASK_HEARTBEAT_S, "heartbeat", self._beat, due))
        super().__init__(actions, clock)

    def flush(self, within_s: float, *, last: bool = False) -> None:
        """Stop the thread and upload the rest; `last`: every writer has ended. StoreError if that fails or takes longer."""
        for store in (self._pusher.store, self._pusher.files):
            store.set_deadline(within_s)
        # A thread that hangs in a request has had this time before.
        self.stop(0.0 if self._stop_requested.is_set() else within_s)
        self._pusher.push(last=last)
        # The final step: a heartbeat may be ten seconds old. A container that never trained keeps another one's heartbeat.
        if last and self._task and position(self._pusher.paths, self._task) is not None:
            self._beat()
