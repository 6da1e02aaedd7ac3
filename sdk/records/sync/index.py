"""A run's folder on this machine and its directory in a bucket, with one index of the bucket's content, for push and pull."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from ...clock import Clock
from ...errors import AlreadyExistsError, ConflictError, CorruptRunError, MissingError, StoreError
from ...job.layout import RunPaths
from ...job.wire import decode, parsed
from ...status import Progress
from ...storage import posix
from ...storage.locking import file_lock
from ...storage.parallel import in_parallel
from ...storage.registry import open_files, open_store
from ...storage.retry import RetryPolicy
from ...storage.store import Store, create
from ...storage.trees import links_beside, make_parents, put_link
from ..accounts import in_heartbeat
from ..events import REGISTERED, Event, parse, source_of
from ..outputs import OutputsIndex
from ..recorder import live_account, position, read_file, reports_metrics
from ..verdicts import AttemptEnd, RunEnd, ServiceAnswer, last_attempt, parse_end
from . import cancels

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
    progress: Progress | None = None


class SyncedRun:
    """A run's folder on this machine and its directory in the bucket; the folder may be a copy of a run of another machine.

    `objects` and the parts of growing files are a cache of the bucket's content, and never have to be right.
    """

    def __init__(self, paths: RunPaths, url: str, clock: Clock) -> None:
        self.paths = paths
        self.store = open_store(url, retry=SYNC_RETRY, clock=clock)
        self.files = open_files(url, retry=FILES_RETRY, clock=clock)
        self.objects: set[str] = set()
        self.progress, self.account = in_heartbeat({})  # the last one that was read
        # Sizes of the parts of growing files by their offsets.
        self._parts: dict[str, dict[int, int]] = {}
        self._clock = clock
        self._listed: set[str] = set()
        self._complete: set[str] = set()
        self._generations: dict[str, str | None] = {}
        # Keeps other readers from changing the copy.
        self._lock = f"{paths.sync}/copying"

    def add(self, key: str, size: int) -> None:
        """Add an object of the bucket to the index."""
        file, _, name = key.rpartition("/")
        offset = name.removesuffix(".part")
        if name != offset and offset.isdecimal():
            self._parts.setdefault(file, {})[int(offset)] = size
        else:
            self.objects.add(key)

    def size(self, file: str) -> int:
        """Return how many bytes of a growing file the bucket has."""
        return max((offset + size for offset, size in self._parts.get(file, {}).items()), default=0)

    def part_with(self, file: str, byte: int) -> int:
        """Return the offset of the part that holds this byte, or would."""
        parts = self._parts.get(file, {}).items()
        return next((offset for offset, size in parts if offset <= byte < offset + size), byte)

    def listed(self, prefix: str) -> list[str]:
        """Add the objects of the bucket with this prefix to the index, and return their names."""
        stats = list(self.store.list(prefix))
        for stat in stats:
            self.add(stat.key, stat.size)
        return [stat.key for stat in stats]

    def create(self, key: str) -> bool:
        """Upload a write-once file. Return False if the bucket has it already; ConflictError if it has a different one."""
        return self._create(key, read_file(f"{self.paths.url}/{key}"))[1]

    def create_part(self, file: str, offset: int, data: bytes) -> int:
        """Upload a part of a growing file, and return its length. Another process may have created a shorter one before."""
        return len(self._create(KEYS.part(file, offset), data, part=True)[0])

    def _create(self, key: str, data: bytes, *, part: bool = False) -> tuple[bytes, bool]:
        """Create an object. Return its bytes and whether it is new."""
        new = True
        try:
            self.store.put_new(key, [data])
        except AlreadyExistsError:
            there = bytes(self.store.get(key))
            if not there or there != (data[: len(there)] if part else data):
                raise ConflictError(f"The bucket has a different {key!r} than this machine.") from None
            data, new = there, False
        self.add(key, len(data))
        return data, new

    def outputs_index(self) -> OutputsIndex:
        with suppress(MissingError):
            return OutputsIndex.from_json(bytes(self.store.get(_OUTPUTS_INDEX)), self.store.url)
        return OutputsIndex()

    def add_outputs(self, links: dict[str, str], executable: Iterable[str]) -> None:
        """Merge links and executable files into the index of outputs, which may have entries of earlier attempts."""

        def merged() -> object:
            index = self.outputs_index()
            both = sorted({*index.executable, *executable})
            new = OutputsIndex(links={**index.links, **links}, executable=both)
            return asdict(new) if new != index else None

        self._replace(_OUTPUTS_INDEX, merged)

    def write_heartbeat(self, task: str, *, supervised: bool, resumes: int) -> None:
        """Replace the heartbeat by one with the progress of this task."""
        beat = Heartbeat(supervised=supervised, resumes=resumes, progress=position(self.paths, task))
        account = live_account(self.paths, task)
        self._replace(KEYS.heartbeat, lambda: {**asdict(beat), "account": account and asdict(account)})

    def _replace(self, key: str, content: Callable[[], object]) -> None:
        """Replace an object by JSON that may depend on its old content; None leaves it."""
        for _ in range(_TRIES):
            with suppress(ConflictError, MissingError):
                if (new := content()) is not None:
                    data, generation = json.dumps(new, sort_keys=True).encode(), self._generations.get(key)
                    self._generations[key] = self.store.swap(key, [data], expected=generation).generation
                return
            self._generations[key] = None
            with suppress(MissingError):
                self._generations[key] = self.store.stat(key).generation
        raise StoreError(f"Another process keeps writing {key} of {self.store.url}.")

    def read_heartbeat(self) -> Heartbeat:
        """Return the latest heartbeat, or raise MissingError if there is none, or ValueError if it is not one."""
        text = bytes(self.store.get(KEYS.heartbeat))
        try:
            data = parsed(text)
            beat = decode(Heartbeat, {**data, "progress": None})
        except TypeError as error:
            raise ValueError(f"This is not a heartbeat: {text!r:.100}") from error
        self.progress, self.account = in_heartbeat(data)
        return replace(beat, progress=self.progress)

    def request_cancel(self, resumes: int, grace_s: float) -> None:
        """Leave a cancel request for the supervisor after this many resumes."""
        request = json.dumps({"grace_s": float(grace_s), "requested_at": self._clock.now()}).encode()
        cancels.request_cancel(self.store, resumes, request)

    def cancel_requests(self, resumes: int, since: int | None = None) -> list[str]:
        """Return the keys of the cancel requests for that supervisor, or for those from `since` on."""
        return cancels.cancel_requests(self.store, resumes, resumes if since is None else since)

    def pull_plan(self) -> None:
        """Download the run's plan. Raises MissingError if there is no run."""
        if not os.path.lexists(self.paths.plan):
            os.makedirs(self.paths.events, exist_ok=True)
            self._copy(KEYS.plan)

    def refresh(self, tasks: Sequence[str], *, logs: bool) -> None:
        """Download new records, and logs and metrics with `logs` or at the end of the run."""
        with file_lock(self._lock, wait=True):
            # Listed first: everything written before one of these records exists now.
            fresh = self._new_records("")
            if logs or any(key.endswith(".final.json") for key in fresh):
                names = [*map(posixpath.basename, fresh), *posix.list_names(self.paths.events)]
                self._pull_logs(max((int(name[:4]) for name in names if name[:4].isdecimal()), default=0), tasks)
            in_parallel(self._copy, fresh)

    def pull_resumes(self) -> None:
        """Download new records of resumes, with their plans."""
        with file_lock(self._lock, wait=True):
            in_parallel(self._copy, self._new_records("0000.client-"))

    def heartbeat_age_s(self) -> tuple[float, bool]:
        """Return the age of the latest heartbeat, and whether the run was still supervised then."""
        resumed = [name for name in posix.list_names(self.paths.events) if name.endswith(".resumed.json")]
        with suppress(MissingError):
            age_s = self.files.age_s(KEYS.heartbeat)
            try:
                beat = self.read_heartbeat()
            except ValueError:
                return age_s, True
            # Not a heartbeat of an earlier supervisor.
            if beat.resumes >= len(resumed):
                return age_s, beat.supervised
        # No heartbeat yet: count from the time of the submit or resume.
        return self.files.age_s(f"{KEYS.events}/{resumed[-1]}" if resumed else KEYS.plan), True

    def upload(self, key: str) -> bool:
        """Upload a write-once file. Return False if another process did."""
        with suppress(ConflictError):
            return self.create(key)
        return False

    def download(self, folders: Sequence[str]) -> None:
        """Download the program's files in these folders of the run. A mounted bucket has folders, too: NAME/."""
        with file_lock(self._lock, wait=True):
            files = {one.name: one for top in folders for one in self.files.list(f"{top}/") if one.name[-1] != "/"}
            index = self.outputs_index()
            named = {name: text for name, text in index.links.items() if name.partition("/")[0] in folders}
            links = links_beside(files, named, self.store.url)
            in_parallel(lambda name: self._download_file(name, files[name].generation), files)
            for name in files.keys() & set(index.executable):
                os.chmod(f"{self.paths.url}/{name}", 0o755)  # noqa: S103
            for name, text in links.items():
                make_parents(self.paths.url, name)
                put_link(text, f"{self.paths.url}/{name}")

    def _download_file(self, name: str, generation: str) -> None:
        path = f"{self.paths.url}/{name}"
        # The download compares checksums. Afterwards the object's generation is enough.
        mark = Path(f"{self.paths.sync}/outputs/{generation}")
        if os.path.isfile(path) and mark.exists():
            return
        make_parents(self.paths.url, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        self.files.download(name, path)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def _new_records(self, prefix: str) -> list[str]:
        here = set(posix.list_names(self.paths.events))
        return [key for key in self.listed(f"{KEYS.events}/{prefix}") if posixpath.basename(key) not in here]

    def _copy(self, key: str) -> None:
        """Download a write-once file; before the record of a resume, the plan that it names."""
        data = bytes(self.store.get(key))
        if key.endswith(".resumed.json"):
            name = None
            # The readers of a damaged record report it.
            with suppress(ValueError):
                name = parse(posixpath.basename(key), data).data.get("plan")
            if name and not os.path.lexists(self.paths.revision(name)):
                self._copy(KEYS.revision(name))
        with suppress(FileExistsError):
            posix.put_copy(f"{self.paths.url}/{key}", data)

    def _pull_logs(self, attempts: int, tasks: Sequence[str]) -> None:
        keys = [KEYS.supervisor_log, KEYS.environment_log]
        for attempt in range(1, attempts + 1):
            Path(self.paths.attempt(attempt)).mkdir(parents=True, exist_ok=True)
            keys += [key(attempt, task) for task in tasks for key in (KEYS.log, KEYS.machine)]
            keys += [KEYS.log_times(attempt), *(KEYS.metrics(attempt, task) for task in reports_metrics(tasks))]
        in_parallel(self._pull_growing, [key for key in keys if key not in self._complete])
        # Logs of earlier attempts no longer grow: they were read once more.
        self._complete |= {key for key in keys if key.startswith("attempts/") and int(key[9:13]) < attempts}

    def pull(self, files: Iterable[str]) -> None:
        """Append the new parts of these growing files to their copies."""
        with file_lock(self._lock, wait=True):
            in_parallel(self._pull_growing, files)

    def _pull_growing(self, file: str) -> None:
        """Append the new parts of a growing file to its copy."""
        path = Path(f"{self.paths.url}/{file}")
        size = path.stat().st_size if path.exists() else 0
        if file not in self._listed:
            self.listed(f"{file}/")
            self._listed.add(file)
        # An earlier reader may have been killed in the middle of a part.
        start = self.part_with(file, size)
        with suppress(MissingError):
            while True:
                data = bytes(self.store.get(KEYS.part(file, start)))
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab", buffering=0) as grown:
                    grown.write(data[size - start :])
                size = start = start + len(data)


def end_of(store: Store, attempt: int) -> AttemptEnd | None:
    """Return how an attempt ended as the agents of its containers agreed; None if they have not."""
    key = KEYS.end(attempt)
    try:
        return parse_end(bytes(store.get(key)))
    except MissingError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptRunError(f"{store.url}/{key} is damaged: {error!r}.") from None


def run_end(
    store: Store,
    events: Sequence[Event],
    tasks: Sequence[str],
    model: str,
    service: ServiceAnswer,
    cancelled_at: float | None,
) -> RunEnd:
    """Return the facts for the verdict on a run in containers; `model` is the name that it registers, or ""."""
    agreed = end_of(store, last_attempt(events)[0])
    kept = (REGISTERED,) if model else ("collected",)
    return RunEnd(events=events, tasks=tasks, service=service, agreed=agreed, kept=kept, cancelled_at=cancelled_at)


def has_final(store: Store, number: int) -> bool:
    """Return True once a service's job has its final record. The job may still run although the service has lost it."""
    with suppress(MissingError):
        store.stat(_final(number))
        return True
    return False


def _final(number: int) -> str:
    return KEYS.event(0, source_of("supervisor", number - 1), 1, "final")


def write_final(store: Store, number: int, time: float, data: Mapping[str, object]) -> bool:
    """Create the final record of a service's job, which decides between a verdict on the run and another job.

    False if another process was faster, with the same content or another.
    """
    source = source_of("supervisor", number - 1)
    event = Event(attempt=0, source=source, sequence=1, kind="final", time=time, data=dict(data))
    return create(store, _final(number), event.to_json())
