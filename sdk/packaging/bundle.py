"""The archive of the code: the same tree gives the same bytes on any machine and any day."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ..checks import Finding
from ..errors import InputError
from ..storage.checksums import sha256
from . import remembered, tree
from .entry import Source
from .ignore import Rules

MAX_BYTES = 512 * 1024 * 1024
# What a look into a file can find out: a key file is small, and has no other name.
_LOOK_BYTES = 64 * 1024
_LOOKED_AT = {".json", ".pem", ".key", ".p8", ".yaml", ".yml", ".txt", ""}


@dataclass(frozen=True)
class Member:
    """One file of a bundle: its path with "/", its size in bytes, its sha256, and whether it may be executed.

    An empty folder is a member too: its path ends in "/", it has no bytes and no sha256.
    """

    path: str
    size: int
    sha256: str
    executable: bool = False


@dataclass(frozen=True)
class Bundle:
    """An archive that is not written yet.

    Args:
        digest: sha256 of the uncompressed archive.
        members: its files and empty folders, sorted by path.
        left_out: paths that were passed over, with the reason.
        generated: text of the files that podlift wrote itself, by path.
        notes: what the user should know about the choice.
    """

    digest: str
    members: tuple[Member, ...]
    left_out: tuple[str, ...] = ()
    generated: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(member.size for member in self.members)


def build(
    source: Source,
    *,
    never: Mapping[Path, str],
    exclude: Sequence[str] = (),
    cache: Path | None = None,
) -> Bundle:
    """Read a project and return what its archive would be; writes nothing but its own memory of what it read.

    Args:
        source: the entry: which folders there are, which includes, which files podlift writes itself.
        never: folders that are left out wherever they lie, with what they are: the root of runs.
        exclude: patterns of what is left out.
        cache: the folder in which podlift remembers what it read; None for no memory.

    Raises:
        InputError: a file cannot be read, an include names nothing, or it is more than 512 MB together.
    """
    try:
        found = _find(source, never, exclude)
        _check_size(source.project, found)
        memory = remembered.Memory(cache, source.project, found, source.generated)
        packed = memory.recall() or _read_all(source, found, memory)
    except FileNotFoundError as error:
        raise InputError(f"A file was removed while the folder was read: {error.filename!r}. Plan again.") from None
    secrets = sorted([*found.secrets, *packed.secrets])
    return Bundle(
        digest=packed.digest,
        members=tuple(Member(*member) for member in packed.members),
        left_out=(*found.left_out, *(f"{path} (looks like a secret)" for path in packed.secrets)),
        generated=source.generated,
        notes=(*found.notes, *_secret_notes(secrets)),
    )


def _find(source: Source, never: Mapping[Path, str], exclude: Sequence[str]) -> tree.Tree:
    rules = Rules.of(exclude, source.base)
    if not source.alone:
        return tree.read(
            source.project, source.base, parts=source.parts, include=source.include, rules=rules, never=never
        )
    parts = [*source.parts, *([] if source.file in source.generated else [source.file])]
    return tree.read(source.project, None, parts=parts, include=source.include, rules=rules, never=never)


def _secret_notes(secrets: Sequence[str]) -> list[Finding]:
    if not secrets:
        return []
    names = ", ".join(secrets[:10]) + (f" and {len(secrets) - 10} more" if len(secrets) > 10 else "")
    return [Finding("warning", f"Not packaged, for it looks like a secret: {names}. include= (--include) packages it.")]


def _check_size(project: Path, found: tree.Tree) -> None:
    sizes = {item.path: item.stat.st_size for item in found.found if not item.path.endswith("/")}
    if sum(sizes.values()) > MAX_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
        names = ", ".join(f"{path} ({sizes[path] / 1e6:.0f} MB)" for path in largest)
        raise InputError(
            f"The folder is too large to package: {sum(sizes.values()) / 1e6:.0f} MB in {str(project)!r}, at most "
            f"{MAX_BYTES / 1e6:.0f}. Largest: {names}. Move data out and name it in inputs= (--input), exclude it "
            "(--exclude), or name a smaller project= (--project)."
        )


def _read_all(source: Source, found: tree.Tree, memory: remembered.Memory) -> remembered.Packed:
    """Read every file once, and hash what its archive would be."""
    secrets: list[str] = []
    paths = []
    for item in found.found:
        if item.path not in found.forced and item.path not in source.generated and _is_secret(source.project, item):
            secrets.append(item.path)
        else:
            paths.append(item.path)
    sink = _Hash()
    # A file that podlift writes takes the place of one of that name.
    names = sorted({*paths, *source.generated})
    members = [
        [member.path, member.size, member.sha256, member.executable]
        for member in _pack(source.project, names, source.generated, sink)
    ]
    packed = remembered.Packed(digest=sink.hash.hexdigest(), members=members, secrets=secrets)
    memory.keep(packed)
    return packed


def _is_secret(project: Path, item: tree.Found) -> bool:
    if item.stat.st_size > _LOOK_BYTES or item.path.endswith("/"):
        return False
    return Path(item.path).suffix.lower() in _LOOKED_AT and tree.looks_secret(_read(project, item.path)[0])


def write(bundle: Bundle, project: Path, target: Path) -> bool:
    """Write the archive to `target` unless it is there already, undamaged; return True if it was written.

    Raises:
        InputError: the folder's files are no longer those of the bundle; names them.
    """
    # Its time says when it was last wanted: what was wanted just now is not pruned before its run is there.
    with suppress(FileNotFoundError):
        os.utime(target)
        # Read after that: it may have been on its way out while it was touched. A damaged one is written anew.
        if sha256(target) == bundle.digest:
            return False
    new = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        _write_part(bundle, project, part)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        # Another submit may have begun to use them.
        with suppress(OSError):
            for folder in new:
                folder.rmdir()
        raise
    return True


def _write_part(bundle: Bundle, project: Path, part: Path) -> None:
    with part.open("xb") as file:
        sink = _Hash(file)
        try:
            now = tuple(_pack(project, [member.path for member in bundle.members], bundle.generated, sink))
        except FileNotFoundError as error:
            raise InputError(f"A file was removed since the plan was made: {error.filename}. Plan again.") from None
        file.flush()
        os.fsync(file.fileno())
    if sink.hash.hexdigest() != bundle.digest:
        changed = [new.path for old, new in zip(bundle.members, now, strict=True) if old != new]
        raise InputError(f"Files changed since the plan was made: {', '.join(changed)}. Plan again.")


def _pack(project: Path, paths: Sequence[str], generated: Mapping[str, str], sink: _Hash) -> Iterator[Member]:
    """Write an archive, member by member: what `tarfile` would write, without its copies of every header and file."""
    for path in paths:
        if path.endswith("/"):
            (project / path).stat()
            sink.write(_header(path, tarfile.DIRTYPE, 0, executable=True))
            yield Member(path, 0, "")
            continue
        data, executable = (generated[path].encode(), False) if path in generated else _read(project, path)
        sink.write(_header(path, tarfile.REGTYPE, len(data), executable=executable))
        sink.write(data)
        sink.write(bytes(-len(data) % tarfile.BLOCKSIZE))
        yield Member(path, len(data), hashlib.sha256(data).hexdigest(), executable)
    end = 2 * tarfile.BLOCKSIZE
    sink.write(bytes(end + -(sink.size + end) % tarfile.RECORDSIZE))


def _header(path: str, kind: bytes, size: int, *, executable: bool) -> bytes:
    # Times and owners stay what a new TarInfo has, so that only names, modes and bytes decide the digest.
    info = tarfile.TarInfo(path)
    info.type, info.size, info.mode = kind, size, 0o755 if executable else 0o644
    return info.tobuf(tarfile.PAX_FORMAT)


def _read(project: Path, path: str) -> tuple[bytes, bool]:
    place = f"{project}/{path}"
    try:
        with open(place, "rb") as file:  # noqa: PTH123
            return file.read(), bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"A file of the project cannot be read: {place!r} ({error.strerror}).") from None


class _Hash:
    """A sink that hashes what is written to it, and passes it on.

    Attributes:
        size: bytes so far.
    """

    def __init__(self, file: BinaryIO | None = None) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self._file = file

    def write(self, data: bytes) -> None:
        self.hash.update(data)
        self.size += len(data)
        if self._file is not None:
            self._file.write(data)
