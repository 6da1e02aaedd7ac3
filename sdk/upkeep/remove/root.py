"""The removals from any root: old runs, and archives that nothing names. A kind of root lists, reads and removes files.

Archives are files that are named by the digest of their bytes. An archive stays if any JSON file of the root names it: this
module does not know the form of schedules, of registered models and of later versions' files. Everything is checked twice,
when it is found and right before its removal.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ... import ids
from ...errors import CorruptObjectError, MissingError, StoreError
from ...model_registry import files
from ...storage.parallel import in_parallel
from ...storage.registry import open_store

# A submit writes or touches its bundle before the plan that refers to it: younger bundles may be needed soon.
SETTLED_S = 3600.0
# Files for containers are uploaded or touched before the job is created, which may take long.
JOB_SETTLED_S = 86400.0
# Other folders of a root are searched up to these limits. Larger files are not records of podlift.
MAX_RECORDS, MAX_RECORD_BYTES = 2000, 1 << 20
_WORDS = re.compile(rb"[0-9A-Za-z_-]+")
_ESCAPE = re.compile(rb"\\[nrtbf]")  # of JSON: the letter is no part of the word behind it
_DIGEST = re.compile(rb"[0-9a-f]{64}")


class ChangedError(Exception):
    """A candidate must stay after all; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A thing to remove; the names of the fields are keys of `podlift remove --json`."""

    # "run", "bundle", "runtime", "entrypoint", "model part", "copy" (of a run in a bucket), "cache", "environment", or
    # "remains" (of an interrupted removal)
    kind: str
    name: str  # the run's id, the archive's digest, or the file's name
    path: str  # or a gs:// URL
    size_bytes: int
    age_s: float  # since the last change; for an environment, since its last use
    state: str = ""  # of a run; "uploaded" for a copy


@dataclass(frozen=True, kw_only=True)
class Skipped:
    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`keep` is the number of the newest runs that stay; `now` is this machine's unix time."""

    older_than_s: float
    keep: int
    now: float


@dataclass(frozen=True, kw_only=True)
class ArchiveKind:
    """One folder of archives. `of_jobs`: needed by jobs that start later than their submit."""

    kind: str
    suffix: str = ""
    of_jobs: bool = True

    @property
    def settled_s(self) -> float:
        return JOB_SETTLED_S if self.of_jobs else SETTLED_S

    def digest(self, name: str) -> str:
        """Return the digest in the name of a file, "" if it is not such an archive."""
        match = re.fullmatch(rf"([0-9a-f]{{64}}){re.escape(self.suffix)}", name)
        return match[1] if match else ""


MANIFESTS = "models/manifests"
ARCHIVES: Mapping[str, ArchiveKind] = {
    "bundles": ArchiveKind(kind="bundle", suffix=".tar", of_jobs=False),
    "runtime": ArchiveKind(kind="runtime", suffix=".tar"),
    "entrypoints": ArchiveKind(kind="entrypoint", suffix=".py"),
    MANIFESTS: ArchiveKind(kind="model part"),
    "models/blobs": ArchiveKind(kind="model part"),
}
# The folders that other records are not searched in.
KNOWN = ("bundles", "runtime", "entrypoints", "runs")


@dataclass(frozen=True, kw_only=True)
class Archive:
    item: Candidate
    folder: str  # a key of ARCHIVES
    version: object  # as it was listed

    @property
    def is_settled(self) -> bool:
        return self.item.age_s >= ARCHIVES[self.folder].settled_s


@dataclass(frozen=True)
class Named:
    """The files that records name, by digest and run id."""

    names: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""  # why that is not known

    def why(self, name: str) -> str:
        """Return why a run must stay, "" if it need not."""
        return self.unknown or (f"{self.names[name]!r} names it" if name in self.names else "")


class Place:
    """A root, or podlift's cache."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.url = url
        self.limits = limits
        self.skipped: list[Skipped] = []

    def skip(self, path: object, why: str) -> None:
        self.skipped.append(Skipped(path=str(path), why=why))


class PrunedRoot(Place, ABC):
    """A root, searched once, from which candidates are then removed once."""

    @abstractmethod
    def runs(self) -> Iterable[tuple[Candidate, str]]:
        """Return the runs, the newest first, and why each must stay. One without a state is damaged, and does not count."""

    @abstractmethod
    def remains(self) -> Iterable[Candidate]:
        """Return the remains of interrupted removals."""

    @abstractmethod
    def archives(self) -> Sequence[Archive]:
        """Return the archives."""

    @abstractmethod
    def records(self) -> Iterable[tuple[str, bytes]]:
        """Return the JSON files in other folders of the root. OSError or StoreError: one cannot be read."""

    @abstractmethod
    def run_records(self, removed_runs: Collection[str]) -> Iterable[tuple[str, bytes]]:
        """Return the plans and jobs of the runs, except of some paths. OSError or CorruptObjectError: one cannot be read."""

    @abstractmethod
    def remove_run(self, item: Candidate) -> None: ...

    @abstractmethod
    def remove_remains(self, item: Candidate) -> None: ...

    @abstractmethod
    def remove_archive(self, archive: Archive) -> None:
        """Remove an archive; ChangedError if it is not the version that was listed."""

    def candidates(self) -> Iterator[Candidate]:
        named, old_runs, readable = self._read_records(), [], 0
        for item, why in self.runs():
            readable += item.state != ""
            old = readable > self.limits.keep and item.age_s >= self.limits.older_than_s
            why = why or named.why(item.name)
            if why and (old or not item.state):
                self.skip(item.path, why)
            elif old and item.state:
                old_runs.append(item)
        return iter([*old_runs, *self.remains(), *self._unused({item.path for item in old_runs})])

    def _unused(self, removed_runs: Collection[str]) -> list[Candidate]:
        # Listed before the records are read: a submit touches its files before it writes its plan, or creates its job.
        archives = self.archives()
        old = [archive for archive in archives if archive.is_settled]
        used, unknown = self._used(archives, removed_runs) if old else (set(), "")
        unused = [archive for archive in old if archive.item.name not in used]
        for folder in sorted({archive.folder for archive in unused} if unknown else ()):
            self.skip(f"{self.url}/{folder}", unknown)
        return [] if unknown else [archive.item for archive in unused]

    def remove(self, item: Candidate) -> None:
        """Remove a candidate. MissingError or FileNotFoundError: it is gone; ChangedError: it must stay."""
        if item.kind == "remains":
            self.remove_remains(item)
        elif item.kind in {archive.kind for archive in ARCHIVES.values()}:
            self._remove_archive(item)
        else:
            if why := self._named.why(item.name):
                raise ChangedError(why)
            self.remove_run(item)

    def _remove_archive(self, item: Candidate) -> None:
        archives, used, unknown = self._left
        if item.path not in archives:
            raise MissingError(item.path)
        if unknown or item.name in used:
            raise ChangedError(unknown or "a run or a record needs it")
        if not archives[item.path].is_settled:
            raise ChangedError("a submit or a registration uses it")
        self.remove_archive(archives[item.path])

    @cached_property
    def _left(self) -> tuple[dict[str, Archive], set[str], str]:
        """The archives, and which of them are needed, after the removal of runs."""
        archives = self.archives()
        return {archive.item.path: archive for archive in archives}, *self._used(archives, ())

    @cached_property
    def _named(self) -> Named:
        return self._read_records()

    def _read_records(self) -> Named:
        names: dict[str, str] = {}
        try:
            for number, (file, data) in enumerate(self.records()):
                if number >= MAX_RECORDS:
                    return Named(
                        unknown=f"a JSON file below {self.url!r} may need it, and there are too many to search. Next: move "
                        f"foreign files out of the root, such as {file!r}"
                    )
                words = {word_bytes.decode() for word_bytes in _WORDS.findall(_ESCAPE.sub(b" ", data))}
                names.update(dict.fromkeys({word for word in words if ids.is_run_id(word)} | _digests(data), file))
        except (OSError, StoreError) as error:
            return Named(unknown=f"a JSON file that may need it cannot be read: {error}".rstrip("."))
        return Named(names)

    def _used(self, archives: Iterable[Archive], removed_runs: Collection[str]) -> tuple[set[str], str]:
        """Return the digests that are needed once some runs are removed, and why no archive may be removed, or ""."""
        named = self._read_records()
        used = {*named.names}
        try:
            for file, data in self.run_records(removed_runs):
                digests = _digests(data)
                if not digests and ("/jobs/" not in file or file.endswith(".launch_spec.json")):
                    raise OSError(0, "it has no digest", file)
                used |= digests
            store = open_store(f"{self.url}/models")
            manifests = [one.item.name for one in archives if one.folder == MANIFESTS and one.item.name in used]
            for of_manifest in in_parallel(lambda digest: files.read(store, digest).files, manifests):
                used |= {part for archive in of_manifest for part in archive.parts}
        except CorruptObjectError as error:
            return used, f"a version may need it, and its manifest is damaged: {error}".rstrip(".")
        except OSError as error:
            what, why = error.filename or self.url, error.strerror or error
            return used, f"it is unknown what {str(what)!r} needs ({why}). Repair or remove it first"
        return used, named.unknown


def _digests(data: bytes) -> set[str]:
    return {digest.decode() for digest in _DIGEST.findall(data)}
