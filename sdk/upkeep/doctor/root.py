"""Checks of the root: a folder, tried with a subfolder that is removed again, or a bucket, where nothing is written."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from ...checks import buckets
from ...checks.check import Check, bad, fine
from ...errors import StoreError
from ...storage import emulator, file_systems, own_folders, posix
from ...storage.gcs.files import INTERACTIVE, BucketFiles
from ...text import emulator_at

_ELSEWHERE = "use another root (--root or PODLIFT_ROOT)"
_REMOTE = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "vboxsf", "virtiofs",
    "drvfs", "fuse", "fuseblk", "ncpfs", "orangefs", "pvfs2", "prl_fs", "vmhgfs",
}  # fmt: skip
# With a larger difference of clocks, the records of a run are in the wrong order.
_SKEW_S = 5.0


def root(path: str) -> list[Check]:
    parent = Path(path)
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        message = f"{path} is not a folder"
        if parent != Path(path):
            message = f"{path} cannot be created: {parent} is not a folder"
        return [bad("root", "error", message, _ELSEWHERE)]
    where = path if parent == Path(path) else f"{path}, to be created in {parent},"
    trial = parent / f".podlift-doctor-{uuid.uuid4().hex[:8]}"
    try:
        trial.mkdir()
    except OSError as error:
        return [bad("root", "error", f"{where} is not writable: {error.strerror}", _ELSEWHERE)]
    try:
        return [
            _links(trial, where),
            _times(trial),
            file_system(path, file_systems.holding(str(parent), file_systems.mounts())),
        ]
    finally:
        own_folders.discard(str(trial), private=False)


def _links(trial: Path, where: str) -> Check:
    """Create one record twice: the second attempt must fail, because two writers must never both succeed."""
    record = str(trial / "record")
    try:
        posix.put_new(record, b"x")
    except OSError as error:
        return bad("root", "error", f"{where} cannot store records: {error.strerror} (hard links)", _ELSEWHERE)
    try:
        posix.put_new(record, b"y")
    except FileExistsError:
        return fine("root", f"{where.rstrip(',')} is writable and has hard links")
    except OSError as error:
        return bad("root", "error", f"{where} cannot store records: {error.strerror}", _ELSEWHERE)
    return bad("root", "error", f"{where} lets two writers create the same file", _ELSEWHERE)


def _times(trial: Path) -> Check:
    probe = trial / "time"
    probe.write_bytes(b"x")
    return skew(probe.stat().st_mtime - time.time())


def skew(seconds: float) -> Check:
    if abs(seconds) <= _SKEW_S:
        return fine("root-clock", "agrees with this machine's")
    message = f"the disk's clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
    return bad("root-clock", "warning", message, "set both clocks (chronyc makestep)")


def file_system(path: str, mount: file_systems.Mount | None) -> Check:
    if mount is None:
        return fine("root-disk", "on an unknown file system")
    message = f"on {mount.kind} ({mount.point})"
    if mount.kind in _REMOTE or mount.kind.startswith("fuse."):
        message = f"{path} is {message}: slow, and two machines may see different records"
        return bad("root-disk", "warning", message, _ELSEWHERE)
    if mount.kind in ("tmpfs", "ramfs"):
        return bad("root-disk", "warning", f"{path} is {message}: runs are lost when the machine stops", _ELSEWHERE)
    return fine("root-disk", message)


def bucket(url: str) -> list[Check]:
    name = url.partition("://")[2].partition("/")[0]
    try:
        about = BucketFiles(url, retry=INTERACTIVE).bucket_info()
    except StoreError as error:
        message, _, fix = str(error).partition(" Next: ")
        return [bad("root", "error", message, fix.rstrip(".") or _ELSEWHERE)]
    if not about:
        message = f"{url} can be listed, but the bucket's settings are not readable (storage.buckets.get)"
        return [bad("root", "note", message, f"gcloud storage buckets describe gs://{name}")]
    if about.get("locationType") == "zone":
        message = f"{url} is in a zonal bucket, where objects are visible before they are complete"
        return [bad("root", "error", message, "gcloud storage buckets create gs://NAME --location=REGION")]
    if address := emulator.endpoint():
        return [fine("root", f"{url} can be listed, on the {emulator_at(address)}")]
    return [
        fine("root", f"{url} can be listed"),
        *buckets.retention_checks(name, about),
        lifecycle(url, about),
    ]


def lifecycle(url: str, about: buckets.Resource) -> Check:
    """Warn of rules of the bucket that delete objects that runs and schedules need, however old they are."""
    name, _, prefix = url.partition("://")[2].partition("/")
    rules = buckets.deletes(about, prefix)
    if not rules:
        return fine("lifecycle", "no rule deletes objects of the root")
    texts = "; ".join(rules)
    message = (
        f"lifecycle rules of gs://{name} delete objects below {url} ({texts}): also the code and the records of schedules, and "
        "checkpoints of runs that go on"
    )
    return bad(
        "lifecycle", "warning", message, "limit them to other prefixes (matchesPrefix), and use podlift remove here"
    )
