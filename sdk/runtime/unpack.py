"""Unpacks a bundle: the digest is checked before the first byte is used, and nothing leaves the target folder."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath

from ..storage.checksums import sha256

_CHUNK = 1024 * 1024


class BadBundleError(ValueError):
    """The archive is not the one that was planned, or holds what no bundle of ours holds."""


def unpack(archive: Path, digest: str, target: Path) -> None:
    """Unpack `archive` below `target`.

    Args:
        archive: an uncompressed tar.
        digest: its sha256 in hex.
        target: a folder; created.

    Raises:
        BadBundleError: wrong digest, no tar, or a member that is absolute, climbs, links or is neither file nor folder.
    """
    found = sha256(archive)
    if found != digest:
        raise BadBundleError(f"The bundle is damaged: {archive} has sha256 {found}, planned was {digest}.")
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for member in tar:
                _extract(tar, member, target)
    except tarfile.TarError as error:
        raise BadBundleError(f"The bundle is no archive: {archive}: {error}") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in member.name:
        raise BadBundleError(f"The bundle names a path outside its folder: {member.name!r}")
    place = target.joinpath(*path.parts)
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
        return
    data = tar.extractfile(member) if member.isreg() else None
    if data is None:
        raise BadBundleError(f"The bundle holds something that is no file: {member.name!r}")
    place.parent.mkdir(parents=True, exist_ok=True)
    with data, place.open("xb") as file:
        shutil.copyfileobj(data, file, _CHUNK)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)
