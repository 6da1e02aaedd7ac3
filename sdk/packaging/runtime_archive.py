"""podlift and the few packages that it needs in a training image, as one archive.

It is pure Python, except crc32c: its compiled part works if the image has the same Python and platform as this machine. The
same packages give the same bytes on any machine, so that the archive is uploaded to a bucket once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import sys
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from ..errors import InputError
from ..storage.checksums import sha256
from .audit.installed import Installed

_PACKAGE = Path(__file__).resolve().parent.parent
_LOADER, _ENTRYPOINT = "storage/gcs/download.py", "runtime/container/entrypoint.py"
# HTTP and fast checksums. Their own requirements are added.
_WANTED = ("requests", "google-crc32c")
_COMPILED = ("google-crc32c",)
_MACHINE_CODE = (".so", ".pyd", ".dylib", ".dll")
_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class RuntimeArchive:
    digest: str  # sha256
    path: Path


def runtime_archive(cache: Path) -> RuntimeArchive:
    """Return the archive in the cache folder; it is written there once for each state of the packages."""
    distributions = _distributions()
    folder = cache / "runtime"
    note = folder / f"{_key(distributions)}.json"
    try:
        digest = str(json.loads(note.read_bytes())["digest"])
        path = folder / f"{digest}.tar"
        # Pruning goes by the time of last use.
        os.utime(path)
        # A container would refuse a damaged one: it is written again.
        if sha256(path) == digest:
            return RuntimeArchive(digest=digest, path=path)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    folder.mkdir(parents=True, exist_ok=True)
    members = dict(_members(distributions))
    part = folder / f".{uuid.uuid4().hex}.part"
    try:
        digest = _write(part, members)
        path = folder / f"{digest}.tar"
        part.replace(path)
        part.write_text(json.dumps({"digest": digest}))
        part.replace(note)
    finally:
        part.unlink(missing_ok=True)
    return RuntimeArchive(digest=digest, path=path)


def loader() -> str:
    """Return the command of a container: Python that downloads the entrypoint and runs it if its sha256 is the planned one."""
    return (_PACKAGE / _LOADER).read_text()


def entrypoint_file() -> tuple[str, bytes]:
    """Return the sha256 and the bytes of the file that the loader runs."""
    data = (_PACKAGE / _ENTRYPOINT).read_bytes()
    return hashlib.sha256(data).hexdigest(), data


def _distributions() -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions by name, with those that they require."""
    found = {}
    for name in sorted(Installed().closure([Requirement(name) for name in _WANTED])[0]):
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise InputError(
                f"A cloud run needs a copy of the package {name!r}, which is not installed here. Next: pip install {name}."
            ) from None
    return found


def _key(distributions: dict[str, importlib.metadata.Distribution]) -> str:
    """Return a key that changes with the packages, without reading podlift's files."""
    own = [(path, info.st_size, info.st_mtime_ns) for path, info in _own_files()]
    # An installed distribution changes with its version or its location only.
    others = [(name, each.version, str(each.locate_file(""))) for name, each in distributions.items()]
    text = json.dumps([_FORMAT, str(_PACKAGE), own, others, _about()])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _about() -> dict[str, str]:
    """Return the Python and the platform of the compiled part."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _own_files() -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, files in os.walk(_PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if not name.endswith((".pyc", ".part")):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, _PACKAGE), os.stat(path)


def _members(distributions: dict[str, importlib.metadata.Distribution]) -> Iterator[tuple[str, bytes]]:
    yield "about.json", json.dumps(_about(), sort_keys=True).encode()
    for path, _ in _own_files():
        yield f"podlift/sdk/{path}", (_PACKAGE / path).read_bytes()
    yield "podlift/podlift/__init__.py", (_PACKAGE / "published" / "podlift" / "__init__.py").read_bytes()
    for name, distribution in distributions.items():
        if not distribution.files:
            raise InputError(
                f"A cloud run needs a copy of the package {name!r}, whose installer did not list its files. Next: install "
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
