"""The files of a version: written once under the digests of their bytes, and verified whenever they are read.

manifests/<sha256 of the manifest>     the paths and sizes of the files, and the digests of their parts
blobs/<sha256 of the part>             at most 64 MiB of a file; versions and models share them
"""

from __future__ import annotations

import json
import os
import posixpath
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from ..errors import AlreadyExistsError, CorruptObjectError, InputError, MissingError
from ..ids import digest_of
from ..job.wire import decode, parsed
from ..storage import own_folders, posix, trees
from ..storage.parallel import in_parallel
from ..storage.paths import usable
from ..storage.store import Store, create
from ..text import and_more

# A part is in memory as a whole.
_PART_BYTES = 64 << 20
_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a version."""

    path: str
    size_bytes: int
    parts: tuple[str, ...]  # the digests of its bytes, in order


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """All files of a version, sorted by path."""

    files: tuple[ModelFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def data(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        return digest_of(self.data)


def add(store: Store, source: str) -> ModelFiles:
    """Store a file, or the files of a folder. Damaged blobs of the same content are replaced."""
    if os.path.isfile(source):
        sources = [(os.path.basename(source), source)]
    else:
        tree = trees.walk(source, complete=True)
        wrong = {**tree.others, **{path: "a link to a folder" for path in tree.links if _is_folder(source, path)}}
        if wrong:
            listed = and_more([f"{trees.readable(path) or '.'} ({why})" for path, why in wrong.items()], _NAMED)
            raise InputError(f"The model contains files that cannot be stored: {listed}. Nothing was registered.")
        sources = [(path, f"{source}/{path}") for path in sorted([*tree.files, *tree.links])]
    model_files = ModelFiles(files=tuple(_add_file(store, path, where) for path, where in sources))
    _put(store, f"manifests/{model_files.digest}", model_files.data)
    return model_files


def _is_folder(top: str, path: str) -> bool:
    return os.path.isdir(f"{top}/{path}")


def _add_file(store: Store, path: str, source: str) -> ModelFile:
    parts, size = list[str](), 0
    with open(source, "rb") as file:
        while part := file.read(_PART_BYTES):
            digest = digest_of(part)
            _put(store, f"blobs/{digest}", part)
            parts.append(digest)
            size += len(part)
    return ModelFile(path=path, size_bytes=size, parts=tuple(parts))


def _put(store: Store, key: str, data: bytes) -> None:
    if create(store, key, data):
        return
    with suppress(CorruptObjectError, MissingError):
        # Touched, it stays, even if no version needs it yet: see `sdk.upkeep.remove`.
        if bytes(store.get(key)) == data and _touch(store, key):
            return
    with suppress(MissingError):
        store.delete(key)
    with suppress(AlreadyExistsError):
        store.put_new(key, [data])


def _touch(store: Store, key: str) -> bool:
    """Let an object count as new; False if it does not exist any more."""
    if "://" in store.url:
        from ..storage.gcs.files import BucketFiles

        return BucketFiles(store.url).touch(key)
    with suppress(FileNotFoundError):
        os.utime(f"{store.url}/{key}")
        return True
    return False


def read(store: Store, digest: str) -> ModelFiles:
    """Return the files that a manifest names."""
    data = _get(store, f"manifests/{digest}", digest)
    try:
        model_files = decode(ModelFiles, parsed(data))
    except (ValueError, TypeError) as error:
        raise CorruptObjectError(f"The manifest {digest!r} cannot be read: {error}.") from None
    for file in model_files.files:
        if posixpath.normpath(file.path) != file.path or file.path.split("/")[0] in ("", ".."):
            raise CorruptObjectError(f"The manifest {digest!r} names a file outside the model: {file.path!r}.")
    return model_files


def _get(store: Store, key: str, digest: str) -> bytes:
    try:
        data = bytes(store.get(key))
    except MissingError:
        raise CorruptObjectError(f"{store.url}/{key} is missing.") from None
    if digest_of(data) != digest:
        raise CorruptObjectError(f"{store.url}/{key} has other bytes than its name tells.")
    return data


def _parts(store: Store, file: ModelFile) -> Iterator[bytes]:
    for digest in file.parts:
        yield _get(store, f"blobs/{digest}", digest)


def sizes(file: ModelFile) -> dict[str, int]:
    """Return the size of each part of a file: all but the last one are of one size."""
    last = max(len(file.parts) - 1, 0)
    rest = file.size_bytes - last * _PART_BYTES
    return {digest: _PART_BYTES if at < last else rest for at, digest in enumerate(file.parts)}


def damage(store: Store, digest: str) -> list[str]:
    """Read all files of a version, and return a sentence for each that is missing or damaged."""
    try:
        files = read(store, digest).files
    except CorruptObjectError as error:
        return [str(error)]
    sentences = []
    for file in files:
        try:
            for _ in _parts(store, file):
                pass
        except CorruptObjectError as error:
            sentences.append(f"{file.path}: {error}")
    return sentences


def absent(store: Store, digest: str) -> list[str]:
    """Return a sentence for each file of a version that is missing or has another size, without reading its bytes."""
    try:
        files = read(store, digest).files
    except CorruptObjectError as error:
        return [str(error)]
    return [why for why in in_parallel(partial(_absent, store), files) if why]


def _absent(store: Store, file: ModelFile) -> str:
    size = 0
    for digest in file.parts:
        try:
            size += store.stat(f"blobs/{digest}").size
        except MissingError:
            return f"{file.path}: {store.url}/blobs/{digest} is missing."
    return "" if size == file.size_bytes else f"{file.path}: it has {file.size_bytes} bytes, and its parts have {size}."


def fetch(store: Store, digest: str, dest: str | Path) -> str:
    """Write the files of a version to a new folder, which appears complete or not at all, and return its path."""
    if not str(dest) or "://" in str(dest):
        raise InputError(f"The destination is not a folder of this machine. Received: {str(dest)!r}.")
    with usable("The destination", dest):
        target = str(Path(dest).expanduser().resolve())
        files = read(store, digest).files
        if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
            _check_same(target, files)
            return target
        part = posixpath.join(posixpath.dirname(target), f".podlift-{uuid.uuid4().hex}.part")
        try:
            for file in files:
                _write(f"{part}/{file.path}", _parts(store, file))
            posix.sync_tree(part)
            os.rename(part, target)
        except BaseException:
            own_folders.discard(part, private=False)
            raise
    return target


def _write(path: str, parts: Iterator[bytes]) -> None:
    os.makedirs(posixpath.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        for part in parts:
            file.write(part)


def _check_same(target: str, files: Sequence[ModelFile]) -> None:
    """Raise InputError unless a folder holds exactly these files."""
    sizes_there = (
        {} if not os.path.isdir(target) else {path: info.st_size for path, info in trees.walk(target).files.items()}
    )
    if sizes_there == {file.path: file.size_bytes for file in files}:
        different = [file.path for file in files if not _is(f"{target}/{file.path}", file)]
    else:
        different = sorted({*sizes_there} ^ {file.path for file in files}) or sorted(sizes_there)
    if different or not os.path.isdir(target):
        raise InputError(
            f"{target!r} holds other files: {and_more(different, _NAMED) or 'it is a file'}. Nothing was written. Next: "
            "choose another destination."
        )


def _is(path: str, file: ModelFile) -> bool:
    with open(path, "rb") as opened:
        return all(digest_of(opened.read(_PART_BYTES)) == digest for digest in file.parts)
