"""podlift's own half that runs in a training image, as one archive: this very package, and the few others that it needs there.

What it needs to speak to a bucket is pure Python and runs under every Python of an image, but for crc32c: its compiled part
travels along and works where the image has the same Python and platform as this machine. The same packages give the same
bytes anywhere, so the archive is brought to a bucket once.
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
from packaging.utils import canonicalize_name

from ..errors import InputError
from ..storage.checksums import sha256

_PACKAGE = Path(__file__).resolve().parent.parent
_STAGE = "runtime/container/entrypoint.py"
# What speaks HTTP, and what makes checksums fast; what they require comes with them.
_WANTED = ("requests", "google-crc32c")
_COMPILED = ("google-crc32c",)
_MACHINE_CODE = (".so", ".pyd", ".dylib", ".dll")
_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Half:
    """The archive.

    Args:
        digest: its sha256.
        path: where it is on this machine.
    """

    digest: str
    path: Path


def runtime_half(cache: Path) -> Half:
    """Return the archive of podlift's own half; it is made once for each state of the packages.

    Usage: `half = runtime_half(cache_folder(os.environ))`

    Args:
        cache: the cache folder; archives lie in "runtime" below it.

    Raises:
        InputError: a package that it needs is not installed here.
    """
    distributions = _closure()
    folder = cache / "runtime"
    note = folder / f"{_key(distributions)}.json"
    try:
        digest = str(json.loads(note.read_bytes())["digest"])
        path = folder / f"{digest}.tar"
        # Its time says when it was last wanted.
        os.utime(path)
        # A container would refuse a damaged one: it is made anew.
        if sha256(path) == digest:
            return Half(digest=digest, path=path)
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
    return Half(digest=digest, path=path)


def first_stage() -> tuple[str, bytes]:
    """Return sha256 and bytes of the file that a container's command runs first."""
    data = (_PACKAGE / _STAGE).read_bytes()
    return hashlib.sha256(data).hexdigest(), data


def _closure() -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions by name, with all that they require."""
    found: dict[str, importlib.metadata.Distribution] = {}
    left = list(_WANTED)
    while left:
        name = canonicalize_name(left.pop())
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise InputError(
                f"A run in a cloud takes the package {name!r} along, and it is not installed here. Next: pip install {name}."
            ) from None
        required = [Requirement(line) for line in found[name].requires or ()]
        left += [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    return dict(sorted(found.items()))


def _key(distributions: dict[str, importlib.metadata.Distribution]) -> str:
    """Return what tells that nothing has changed, without reading a file of podlift's."""
    own = [(path, info.st_size, info.st_mtime_ns) for path, info in _own()]
    # An installed distribution does not change without its version, or the place where it lies.
    others = [(name, each.version, str(each.locate_file(""))) for name, each in distributions.items()]
    text = json.dumps([_FORMAT, str(_PACKAGE), own, others, _about()])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _about() -> dict[str, str]:
    """Return for whom the compiled part is."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _own() -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, files in os.walk(_PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if not name.endswith((".pyc", ".part")):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, _PACKAGE), os.stat(path)


def _members(distributions: dict[str, importlib.metadata.Distribution]) -> Iterator[tuple[str, bytes]]:
    yield "about.json", json.dumps(_about(), sort_keys=True).encode()
    for path, _ in _own():
        yield f"podlift/sdk/{path}", (_PACKAGE / path).read_bytes()
    yield "podlift/podlift/__init__.py", (_PACKAGE / "published" / "podlift" / "__init__.py").read_bytes()
    for name, distribution in distributions.items():
        if not distribution.files:
            raise InputError(
                f"A run in a cloud takes the package {name!r} along, and its installer has not listed its files. Next: work in "
                "a virtual environment, and install podlift there (docs/how-to/install.md)."
            )
        for file in distribution.files:
            path = file.as_posix()
            if _travels(path, compiled=name in _COMPILED):
                yield f"vendor/{path}", Path(str(file.locate())).read_bytes()


def _travels(path: str, *, compiled: bool) -> bool:
    first = path.split("/")[0]
    if ".." in path.split("/") or path.endswith(".pyc"):
        return False
    if first.endswith(".dist-info"):
        return path.endswith("/METADATA") or "licen" in path.lower()
    # A library may have a version behind its suffix.
    is_code = any(f"{suffix}." in f"{path}." for suffix in _MACHINE_CODE)
    return compiled or not is_code


def _write(path: Path, members: dict[str, bytes]) -> str:
    with path.open("xb") as file, tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(members.items()):
            # Times and owners stay what a new TarInfo has.
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return sha256(path)
