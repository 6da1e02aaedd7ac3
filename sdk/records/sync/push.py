"""Brings what a run writes on this machine to its directory in a bucket.

Records are objects that are created once. What grows, logs and metrics, goes there in pieces, each of them created once too,
under the number of bytes before it: the next piece has one possible name, so nothing is lost and nothing comes twice,
whoever goes on after a kill. A record is brought behind everything that was written before it.
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

KEYS = RunPaths("")
PATIENCE = RetryPolicy(connect_s=5.0, read_s=30.0, total_s=60.0, first_s=30.0)
# For a file of any size.
_LONG = RetryPolicy(connect_s=5.0, read_s=60.0, total_s=600.0, first_s=60.0)
# A piece is brought when it is so long, or so old.
_PIECE_BYTES, _PIECE_S, _LARGEST_BYTES = 256 << 10, 1.0, 8 << 20
_THREADS, _TRIES = 8, 3
# Whoever prunes leaves a bundle alone for twice as long: `SETTLED_S` there. An object can be touched once a second only.
_FRESH_S = 1800.0
# What the program itself has left in the run's folders, beside what was collected.
LEFT = ("outputs", "checkpoints", "logs")
# What objects cannot say of the files they were.
INDEX = "outputs.json"


class Mirror:
    """One run, from its folder to its bucket. It keeps no state but what the bucket itself tells.

    Args:
        paths: the run's folder.
        url: gs://BUCKET/PREFIX/runs/ID.
        clock: what time it is.
        log: takes lines for people.
        one_task: the folder holds what one task of a new attempt leaves, and nothing else: the bucket has nothing of it, and
            what all tasks are told is not its to bring.
    """

    def __init__(
        self, paths: RunPaths, url: str, clock: Clock, log: Callable[[str], None], *, one_task: bool = False
    ) -> None:
        self._paths = paths
        self._one_task = one_task
        self._clock = clock
        self._log = log
        place = url.partition("://")[2]
        self._store = GcsStore(place, retry=PATIENCE, clock=clock)
        self._files = BucketFiles(url, retry=_LONG, clock=clock)
        self._known: set[str] = set()
        self._sent: dict[str, int] = {}
        self._brought: dict[str, tuple[int, int]] = {}
        self._last: dict[str, float] = {}
        self._looked = one_task

    def look(self) -> None:
        """Ask the bucket what it has."""
        for folder in (KEYS.events, "plans", "attempts", KEYS.supervisor_log, KEYS.environment_log):
            for found in self._store.list(f"{folder}/"):
                file, _, piece = found.key.rpartition("/")
                offset = piece.removesuffix(".part")
                if piece != offset and offset.isdecimal():
                    end = int(offset) + found.size
                    self._sent[file] = max(end, self._sent.get(file, 0))
                else:
                    self._known.add(found.key)
        self._looked = True

    def set_deadline(self, within_s: float) -> None:
        """From now on give up whatever has not succeeded within so many seconds from now: this process must leave."""
        self._store.set_deadline(within_s)
        self._files.set_deadline(within_s)

    def push(self, *, last: bool) -> None:
        """Bring everything that is there now, in an order in which a reader misses nothing.

        Args:
            last: nobody writes any more.

        Raises:
            StoreError: something could not be brought; the next call goes on with it.
        """
        if not self._looked:
            self.look()
        # Looked at first: what was written before a record is brought before it.
        records = self._records()
        self._all([partial(self._grow, file, last) for file in self._growing()])
        self._all([partial(self._create, key) for key in self._small() if key not in self._known])
        fresh = [key for key in records if key not in self._known]
        # Where nobody was left to collect, what lies there is brought as it is.
        if last or any(key.endswith((".collected.json", ".final.json")) for key in fresh):
            self._bring_left()
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
        """Bring what a growing file holds more than its pieces do."""
        path = f"{self._paths.url}/{file}"
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            size, sent, now = os.fstat(handle).st_size, self._sent.get(file, 0), self._clock.monotonic()
            recent = now - self._last.get(file, -_PIECE_S) < _PIECE_S
            if size - sent < (1 if last or not recent else _PIECE_BYTES):
                return
            self._last[file] = now
            while sent < size:
                data = os.pread(handle, min(_LARGEST_BYTES, size - sent), sent)
                if not data:
                    return
                sent += self._piece(file, sent, data)
                self._sent[file] = sent
        finally:
            os.close(handle)

    def _piece(self, file: str, offset: int, data: bytes) -> int:
        """Create a piece, and return its length: somebody may have created it before, when the file was shorter."""
        key = KEYS.part(file, offset)
        try:
            self._store.put_new(key, [data])
        except AlreadyExistsError:
            there = bytes(self._store.get(key))
            if not there or there != data[: len(there)]:
                raise ConflictError(f"The bucket has another {key!r} than this machine.") from None
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
                raise ConflictError(f"The bucket has another {key!r} than this machine.") from None
        self._known.add(key)

    def _bring_left(self) -> None:
        """Bring what the program has left, as files that anybody can read."""
        there: dict[str, ObjectInfo] = {}
        links: dict[str, str] = {}
        modes: list[str] = []
        todo: list[tuple[str, os.stat_result]] = []
        for folder in LEFT:
            tree = walk(f"{self._paths.url}/{folder}")
            links.update({f"{folder}/{path}": text for path, text in tree.links.items() if folder == "outputs"})
            files = {f"{folder}/{path}": info for path, info in tree.files.items()}
            modes += [name for name, info in files.items() if info.st_mode & 0o100]
            todo += [(name, info) for name, info in files.items() if self._brought.get(name) != _version(info)]
            if files:
                there.update(self._files.list(f"{folder}/"))
        self._all([partial(self._bring, name, info, there.get(name)) for name, info in todo])
        if links or modes:
            self._index(links, modes)

    def _bring(self, name: str, info: os.stat_result, known: ObjectInfo | None) -> None:
        if not _possible(name):
            self._log(f"not in the bucket: {name!r} can be no object's name")
            return
        try:
            self._files.upload(name, f"{self._paths.url}/{name}", known)
        except FileNotFoundError:
            return
        except PermissionError as error:
            # The program's own wish, and no other attempt to read it helps.
            self._log(f"not in the bucket: {name}: {error}")
        self._brought[name] = _version(info)

    def _index(self, links: Mapping[str, str], modes: Sequence[str]) -> None:
        """Note what objects cannot say, beside what another machine has noted of an earlier attempt."""
        for _ in range(_TRIES):
            known: dict[str, Any] = {"links": {}, "executable": []}
            generation = None
            with suppress(MissingError):
                generation = self._store.stat(INDEX).generation
                known = json.loads(bytes(self._store.get(INDEX, generation=generation)))
            both = {"links": {**known["links"], **links}, "executable": sorted({*known["executable"], *modes})}
            try:
                if both != known:
                    self._store.swap(INDEX, [json.dumps(both, sort_keys=True).encode()], expected=generation)
                return
            except ConflictError:
                continue
        raise StoreError(f"{INDEX} of {self._store.url} is written by somebody else all the time.")


def _version(info: os.stat_result) -> tuple[int, int]:
    return info.st_size, info.st_mtime_ns


def _possible(name: str) -> bool:
    try:
        return len(name.encode()) < 700 and not {"\r", "\n"} & set(name)
    except UnicodeEncodeError:
        return False


def publish(paths: RunPaths, url: str, bundle: str, bundle_url: str) -> None:
    """Bring the code and the plan of a new run to the bucket, the plan last: it makes it a run.

    Raises:
        AlreadyExistsError: there is such a run.
        StoreError: the bucket refuses.
    """
    bring_bundle(bundle, bundle_url)
    store = GcsStore(url.partition("://")[2], retry=PATIENCE)
    store.put_new(KEYS.plan, [read_file(paths.plan)])


def bring_bundle(bundle: str, bundle_url: str) -> None:
    """Bring an archive to the bucket unless it is there; then nobody prunes it before the plan that needs it is there too.

    An object of that name with other bytes is damaged, and replaced.

    Raises:
        StoreError: the bucket refuses.
    """
    folder, _, name = bundle_url.rpartition("/")
    files = BucketFiles(folder, retry=_LONG)
    found, now = files.kept(name)
    crc = crc32c([Path(bundle).read_bytes()])
    same = [each for each in found if each.name == name and each.crc32c == crc]
    if any(now - each.changed < _FRESH_S for each in same):
        return
    if not same or not files.touch(name):
        files.upload(name, bundle, None)


def fetch_bundle(bundle_url: str, bundle: str) -> None:
    """Bring an archive from the bucket unless it is here, undamaged.

    Raises:
        MissingError, StoreError: it is not there, or the bucket refuses.
    """
    folder, _, name = bundle_url.rpartition("/")
    with suppress(FileNotFoundError):
        if sha256(bundle) == name.removesuffix(".tar"):
            return
    BucketFiles(folder, retry=_LONG).download(name, bundle)
