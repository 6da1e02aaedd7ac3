"""podlift and the few packages that it needs in a training image, as one archive.

It is pure Python, except crc32c: the C library in it works with every Python of this machine's platform. The same packages
give the same bytes on any machine, so that the archive is uploaded to a bucket once.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..errors import InputError
from ..storage.checksums import sha256

_PACKAGE = Path(__file__).resolve().parent.parent
_ABOUT = "about.json"
_LOADER, _ENTRYPOINT = "storage/gcs/download.py", "execution/entrypoint.py"
# HTTP and fast checksums. Their own requirements are added.
_WANTED = ("requests", "google-crc32c")
# The keeper of a schedule computes slots. Who creates one has it installed.
_OPTIONAL = ("cronsim",)
_COMPILED = ("google-crc32c",)
_MACHINE_CODE = (".so", ".pyd", ".dylib", ".dll")


@dataclass(frozen=True, kw_only=True)
class RuntimeFile:
    digest: str  # sha256
    path: Path


def runtime_archive(cache: Path) -> RuntimeFile:
    """Return the archive in the cache folder, which is made in a tenth of a second, once in a process for the same files."""
    own = _own_archive()
    if own is not None:
        return RuntimeFile(digest=sha256(own), path=own)
    folder = cache / "runtime"
    digest = _archive_digest(folder, frozenset(_own_stats()))
    path = folder / f"{digest}.tar"
    # A container would refuse a damaged one.
    if not path.is_file() or sha256(path) != digest:
        _archive_digest.cache_clear()
        path = folder / f"{(digest := _archive_digest(folder, frozenset(_own_stats())))}.tar"
    # `podlift remove` removes one that was not used for long.
    os.utime(path)
    return RuntimeFile(digest=digest, path=path)


def _own_archive() -> Path | None:
    """Return the archive that this process was started from, as a keeper is: the jobs that it creates start from it, too."""
    unpacked = _PACKAGE.parents[1]
    archive = unpacked.with_name(f"{unpacked.name}.tar")
    return archive if archive.is_file() and (unpacked / _ABOUT).is_file() else None


@lru_cache(maxsize=1)
def _archive_digest(folder: Path, _: frozenset[tuple[str, int, int]]) -> str:
    """Write the archive of these own files, and return its sha256. Other packages stay as this process found them."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{uuid.uuid4().hex}.part"
    try:
        digest = _write(part, dict(_members(_distributions())))
        path = folder / f"{digest}.tar"
        if not path.is_file() or sha256(path) != digest:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return digest


def _own_stats() -> Iterator[tuple[str, int, int]]:
    for path in _own_files():
        info = (_PACKAGE / path).stat()
        yield path, info.st_size, info.st_mtime_ns


def loader() -> str:
    """Return the command of a container: Python that downloads the entrypoint and runs it if its sha256 is the planned one."""
    return (_PACKAGE / _LOADER).read_text()


def entrypoint_file() -> RuntimeFile:
    """Return the file that the loader runs."""
    return RuntimeFile(digest=sha256(_PACKAGE / _ENTRYPOINT), path=_PACKAGE / _ENTRYPOINT)


def _distributions() -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions by name, with their requirements."""
    # A keeper imports this file where they are missing.
    from packaging.requirements import Requirement

    from .audit.installed import Installed

    distributions = {}
    for name in sorted(Installed().closure([Requirement(name) for name in _WANTED])[0]):
        try:
            distributions[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise InputError(
                f"A cloud run needs a copy of the package {name!r}, which is not installed here. Next: pip install {name}."
            ) from None
    for name in _OPTIONAL:
        with suppress(importlib.metadata.PackageNotFoundError):
            distributions[name] = importlib.metadata.distribution(name)
    return distributions


def _about(distributions: dict[str, importlib.metadata.Distribution]) -> dict[str, str]:
    """Return the version and the platform of the compiled part."""
    return {
        **{name: distributions[name].version for name in _COMPILED},
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _own_files() -> Iterator[str]:
    for folder, folders, files in os.walk(_PACKAGE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        names = (os.path.join(folder, name) for name in files if not name.endswith((".pyc", ".part")))
        yield from (name[len(str(_PACKAGE)) + 1 :] for name in names)


def _members(distributions: dict[str, importlib.metadata.Distribution]) -> Iterator[tuple[str, bytes]]:
    yield _ABOUT, json.dumps(_about(distributions), sort_keys=True).encode()
    for path in _own_files():
        yield f"podlift/sdk/{path}", (_PACKAGE / path).read_bytes()
    for name, distribution in distributions.items():
        if not distribution.files:
            raise InputError(
                f"A cloud run needs a copy of the package {name!r}, but its installer did not list its files. Next: install "
                "podlift in a virtual environment (docs/how-to/install.md)."
            )
        for file in distribution.files:
            path = file.as_posix()
            if _belongs(path, compiled=name in _COMPILED):
                yield f"vendor/{path}", Path(str(file.locate())).read_bytes()


def _belongs(path: str, *, compiled: bool) -> bool:
    first = path.split("/")[0]
    if ".." in path.split("/") or path.endswith(".pyc"):
        return False
    if first.endswith(".dist-info"):
        return path.endswith("/METADATA") or "licen" in path.lower()
    # A library may have a version after its suffix.
    is_code = any(f"{suffix}." in f"{path}." for suffix in _MACHINE_CODE)
    return compiled or not is_code


def _write(path: Path, members: dict[str, bytes]) -> str:
    with path.open("xb") as file, tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(members.items()):
            # Times and owners keep the defaults of TarInfo.
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return sha256(path)
