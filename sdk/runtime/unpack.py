"""Unpacks a bundle after checking its digest. Nothing is written outside of the target folder."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath

from ..storage.checksums import sha256

_CHUNK = 1024 * 1024
# Raised by `tarfile` for bytes that are not an archive.
_BROKEN = (tarfile.TarError, ValueError, OverflowError, RecursionError, KeyError)


class BadBundleError(ValueError):
    """The archive is not the planned one, or holds something that a bundle never holds."""


def unpack(archive: Path, digest: str, target: Path) -> None:
    """Unpack an uncompressed tar with this sha256 below `target`, which is created."""
    actual = sha256(archive)
    if actual != digest:
        raise BadBundleError(f"The bundle is damaged: {archive} has sha256 {actual}, and {digest} was planned.")
    try:
        with tarfile.open(archive, mode="r:") as tar:
            entries = members(tar, archive.stat().st_size)
            target.mkdir(parents=True, exist_ok=True)
            for member in entries:
                _extract(tar, member, target)
    except BadBundleError:
        raise
    except _BROKEN as error:
        raise BadBundleError(f"The bundle is not an archive: {archive}: {error}") from error


def members(tar: tarfile.TarFile, size: int) -> list[tarfile.TarInfo]:
    """Return the members of a bundle of `size` bytes once all of them are checked."""
    checked: dict[PurePosixPath, tarfile.TarInfo] = {}
    left = size
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in member.name:
            raise BadBundleError(f"The bundle names a path outside its folder: {member.name!r}")
        # A sparse file of any length needs one block of the archive.
        if not (member.isdir() or member.isreg()) or member.issparse() or member.size < 0:
            raise BadBundleError(f"The bundle holds something that is not a file: {member.name!r}")
        if path in checked:
            raise BadBundleError(f"The bundle holds a file twice: {member.name!r}")
        left -= tarfile.BLOCKSIZE + member.size
        if left < 0:
            raise BadBundleError(f"The bundle claims to hold more than its {size:,} bytes: {member.name!r}")
        checked[path] = member
    return list(checked.values())


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    path = target.joinpath(*PurePosixPath(member.name).parts)
    data = tar.extractfile(member)
    if data is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with data, path.open("xb") as file:
        shutil.copyfileobj(data, file, _CHUNK)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)
