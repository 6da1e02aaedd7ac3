"""Unpacks a bundle: the digest is checked before the first byte is used, and nothing leaves the target folder."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath

from ..storage.checksums import sha256

_CHUNK = 1024 * 1024
# What `tarfile` raises about bytes that are no archive.
_BROKEN = (tarfile.TarError, ValueError, OverflowError, RecursionError, KeyError)


class BadBundleError(ValueError):
    """The archive is not the one that was planned, or holds what no bundle of ours holds."""


def unpack(archive: Path, digest: str, target: Path) -> None:
    """Unpack `archive` below `target`.

    Args:
        archive: an uncompressed tar.
        digest: its sha256 in hex.
        target: a folder; created.

    Raises:
        BadBundleError: wrong digest, no tar, or a member that is absolute, climbs, links, is sparse or neither file nor folder;
            nothing was written.
    """
    found = sha256(archive)
    if found != digest:
        raise BadBundleError(f"The bundle is damaged: {archive} has sha256 {found}, planned was {digest}.")
    try:
        with tarfile.open(archive, mode="r:") as tar:
            held = members(tar, archive.stat().st_size)
            target.mkdir(parents=True, exist_ok=True)
            for member in held:
                _extract(tar, member, target)
    except BadBundleError:
        raise
    except _BROKEN as error:
        raise BadBundleError(f"The bundle is no archive: {archive}: {error}") from error


def members(tar: tarfile.TarFile, size: int) -> list[tarfile.TarInfo]:
    """Return the members of a bundle, all of which were looked at before the first one is used.

    Args:
        tar: the open archive, not compressed.
        size: how many bytes it has, which is as many as it may hold.

    Raises:
        BadBundleError: a member that no bundle of ours holds.
        tarfile.TarError: it is no archive.
    """
    found: dict[PurePosixPath, tarfile.TarInfo] = {}
    left = size
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in member.name:
            raise BadBundleError(f"The bundle names a path outside its folder: {member.name!r}")
        # A sparse file of any length needs one block of the archive.
        if not (member.isdir() or member.isreg()) or member.issparse() or member.size < 0:
            raise BadBundleError(f"The bundle holds something that is no file: {member.name!r}")
        if path in found:
            raise BadBundleError(f"The bundle holds a file twice: {member.name!r}")
        left -= tarfile.BLOCKSIZE + member.size
        if left < 0:
            raise BadBundleError(f"The bundle says that it holds more than its {size:,} bytes: {member.name!r}")
        found[path] = member
    return list(found.values())


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    place = target.joinpath(*PurePosixPath(member.name).parts)
    data = tar.extractfile(member)
    if data is None:
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with data, place.open("xb") as file:
        shutil.copyfileobj(data, file, _CHUNK)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)
