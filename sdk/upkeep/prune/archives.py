"""The archives of a root, which are named by digests, and which words in the files of the root show that one is needed.

Runs need archives: a plan names the bundle, and the launch spec and the request of each job name what its containers
download at every start. Other folders of the root may need archives and runs. Schedules live there, and registered
models will, as small JSON files. Prune does not know their form, so that whatever they name stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ... import ids

# What containers download is uploaded or touched before the job is created, which may take long.
JOB_SETTLED_S = 86400.0
# Other folders of a root are searched up to these limits. Larger files are not records of podlift.
MAX_RECORDS, MAX_RECORD_BYTES = 2000, 1 << 20
_WORDS = re.compile(rb"[0-9A-Za-z_-]+")
_DIGEST = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ArchiveKind:
    """One folder of archives. `of_jobs`: needed by launch specs and requests, not by plans."""

    kind: str
    suffix: str
    of_jobs: bool

    def digest(self, name: str) -> str:
        """Return the digest in the name of a file, "" if it is not such an archive."""
        found = re.fullmatch(rf"([0-9a-f]{{64}}){re.escape(self.suffix)}", name)
        return found[1] if found else ""

    def is_hidden(self, name: str) -> bool:
        """True for an archive of which a removal was interrupted."""
        return re.fullmatch(rf"\.[0-9a-f]{{64}}\.[0-9a-f]{{8}}\.pruned{re.escape(self.suffix)}", name) is not None


FOLDERS: Mapping[str, ArchiveKind] = {
    "bundles": ArchiveKind(kind="bundle", suffix=".tar", of_jobs=False),
    "runtime": ArchiveKind(kind="runtime", suffix=".tar", of_jobs=True),
    "entrypoints": ArchiveKind(kind="entrypoint", suffix=".py", of_jobs=True),
}
KINDS = tuple(each.kind for each in FOLDERS.values())
# The folders of a root whose files prune reads itself.
KNOWN = (*FOLDERS, "runs")


@dataclass(frozen=True)
class OtherRecords:
    """What the JSON files in other folders of the root name: the file of each digest and run id."""

    names: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""  # why that is not known

    def why(self, name: str) -> str:
        """Return why a run or an archive must stay, "" if it need not."""
        return self.unknown or (f"{self.names[name]!r} names it" if name in self.names else "")


def too_many(folder: str) -> OtherRecords:
    return OtherRecords(
        unknown=f"{folder!r} may need it and has too many JSON files to search. Next: move them out of the root"
    )


def unreadable(folder: str, why: object) -> OtherRecords:
    return OtherRecords(unknown=f"{folder!r} may need it and cannot be read: {why}".rstrip("."))


def digests(data: bytes) -> set[str]:
    return {found.decode() for found in _DIGEST.findall(data)}


def named(data: bytes) -> set[str]:
    """Return everything in a record that may be a digest or the id of a run."""
    words = {found.decode() for found in _WORDS.findall(data)}
    return {word for word in words if ids.is_run_id(word)} | digests(data)
