"""The archive of the code: the same tree gives the same bytes on any machine and any day."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shlex
import stat
import tarfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from ..checks import Finding
from ..errors import InputError
from ..storage import posix
from ..storage.checksums import sha256
from . import bundle_cache, tree
from . import own_files as own
from .entry import Source
from .ignore import Rules

MAX_BYTES = 512 * 1024 * 1024
# What a look into a file can find out: a key file is small, and has no other name.
_LOOK_BYTES = 64 * 1024
# Whether another try follows, where a file has vanished and is there again.
_TRIES = (True, True, False)
_LOOKED_AT = {".json", ".pem", ".key", ".p8", ".yaml", ".yml", ".txt", ".log", ".out", ".err", ".sh", ""}


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
    own_files: Mapping[own.Identity, str] | None = None,
) -> Bundle:
    """Read a project and return what its archive would be; writes nothing but its own memory of what it read.

    Args:
        source: the entry: which folders there are, which includes, which files podlift writes itself.
        never: folders that are left out wherever they lie, with what they are: the root of runs.
        exclude: patterns of what is left out.
        cache: the folder in which podlift remembers what it read; None for no memory.
        own_files: files that are left out, with the reason: those that this process writes.

    Raises:
        InputError: an include names nothing, or it is more than 512 MB together.
    """
    for more in _TRIES:
        found = _find(source, never, exclude, own_files or {})
        _check_size(source.project, found)
        memory = bundle_cache.Memory(cache, source.project, found, source.generated)
        recalled = memory.recall()
        packed, missed = _read_all(source, found, memory) if recalled is None else (recalled, _Missed())
        # An editor that saves a file may take it away for a moment.
        if not (more and any(os.path.lexists(source.project / path) for path in missed.gone)):
            break
    unread = [*found.unreadable, *missed.unreadable]
    left_out = [*found.left_out, *missed.unreadable, *(f"{path} (looks like a secret)" for path in packed.secrets)]
    return Bundle(
        digest=packed.digest,
        members=tuple(Member(*member) for member in packed.members),
        left_out=tuple(left_out),
        generated=source.generated,
        notes=(*found.notes, *_secret_notes(sorted([*found.secrets, *packed.secrets])), *_unread_notes(unread)),
    )


def check_entry(source: Source, made: Bundle) -> None:
    """Raise where the entry is not in its bundle.

    Raises:
        InputError: says what leaves it out.
    """
    if any(member.path == source.file for member in made.members):
        return
    reason = tree.why_left_out(source.file, made.left_out)
    if not reason:
        raise InputError(_no_entry(source.file))
    path = source.file.removeprefix(f"{source.base}/") if source.base else source.file
    way_out = f"take away what leaves it out, or name it in include= (--include {shlex.quote(path)})"
    if "cannot be read" in reason:
        way_out = "let this user read it"
    elif "link" in reason:
        way_out = "name the file itself, or another project= (--project)"
    raise InputError(f"The entry is left out of the bundle: {reason}. Next: {way_out}.")


def _find(
    source: Source, never: Mapping[Path, str], exclude: Sequence[str], own_files: Mapping[own.Identity, str]
) -> tree.Tree:
    alone = [source.file] if source.alone and source.file not in source.generated else []
    return tree.read(
        source.project,
        None if source.alone else source.base,
        parts=[*source.parts, *alone],
        include=source.include,
        rules=Rules.of(exclude, source.base),
        never=never,
        own_files=own_files,
    )


def _secret_notes(secrets: Sequence[str]) -> list[Finding]:
    if not secrets:
        return []
    said = f"Not packaged, for it looks like a secret: {_some(secrets)}. include= (--include) packages it."
    return [Finding("warning", said)]


def _unread_notes(unread: Sequence[str]) -> list[Finding]:
    return [Finding("warning", f"Not packaged: {_some(unread)}.")] if unread else []


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


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


def _no_entry(path: str) -> str:
    return f"The entry was removed while the project was read: {path!r}. Next: the same again."


@dataclass
class _Missed:
    """What was listed and is not in the archive, found out when it was to be read.

    Args:
        gone: paths at which nothing is any more, or no file.
        unreadable: paths that the system does not let this process read, with its reason.
        secrets: paths of what looks like a secret.
    """

    gone: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)


def _read_all(source: Source, found: tree.Tree, memory: bundle_cache.Memory) -> tuple[bundle_cache.Packed, _Missed]:
    """Read every file once, and hash what its archive would be."""
    suspects = {item.path for item in found.found if _may_be_secret(item)} - found.forced - source.generated.keys()
    sink, missed = _Hash(), _Missed()
    # A file that podlift writes takes the place of one of that name.
    names = sorted({*(item.path for item in found.found), *source.generated})
    members = [
        [member.path, member.size, member.sha256, member.executable]
        for member in _pack(source.project, names, source.generated, sink, missed, suspects)
    ]
    packed = bundle_cache.Packed(digest=sink.hash.hexdigest(), members=members, secrets=missed.secrets)
    if not missed.gone and not missed.unreadable:
        memory.keep(packed)
    return packed, missed


def _may_be_secret(item: tree.Found) -> bool:
    if item.stat.st_size > _LOOK_BYTES or item.path.endswith("/"):
        return False
    return os.path.splitext(item.path)[1].lower() in _LOOKED_AT


def write(bundle: Bundle, project: Path, target: Path) -> bool:
    """Write the archive to `target` unless it is there already, undamaged; return True if it was written.

    Raises:
        InputError: the folder's files are no longer those of the bundle; names them.
    """
    if _is_there(target, bundle.digest):
        return False

    def put(part: Path) -> Path:
        digest, members, missed = _write_part(bundle, project, part)
        if digest != bundle.digest:
            raise InputError(_changed(bundle, members, missed))
        return target

    _place(target.parent, put)
    return True


def take(bundle: Bundle, project: Path, target: Callable[[str], str], *, entry: str) -> Bundle:
    """Write the archive of a bundle's files as they are now, and return the bundle that was written.

    Between a look at the files and this one some may have changed, as logs do: the archive and its digest are made of the
    same bytes, and that is what counts.

    Args:
        bundle: what a look at the files gave.
        project: their folder.
        target: returns the archive's path for a digest.
        entry: the file without which it is worth nothing, "" where that is not known.

    Raises:
        InputError: the entry was removed meanwhile.
    """
    if _is_there(Path(target(bundle.digest)), bundle.digest):
        return bundle
    written = bundle

    def put(part: Path) -> Path:
        nonlocal written
        for more in _TRIES:
            part.unlink(missing_ok=True)
            digest, members, missed = _write_part(bundle, project, part)
            if not (more and any(os.path.lexists(project / path) for path in missed.gone)):
                break
        if entry in missed.gone:
            raise InputError(_no_entry(entry))
        gone = [f"{path} (removed while the project was read)" for path in missed.gone]
        left_out = (*bundle.left_out, *gone, *missed.unreadable)
        written = replace(bundle, digest=digest, members=members, left_out=left_out)
        return Path(target(digest))

    _place(Path(target(bundle.digest)).parent, put)
    return written


def _is_there(target: Path, digest: str) -> bool:
    # Its time says when it was last wanted: what was wanted just now is not pruned before its run is there.
    with suppress(FileNotFoundError):
        os.utime(target)
        # Read after that: it may have been on its way out while it was touched. A damaged one is written anew.
        return sha256(target) == digest
    return False


def _place(folder: Path, put: Callable[[Path], Path]) -> None:
    """Make a file in a folder: `put` writes what it is given, and returns its name; where it fails, nothing stays."""
    new = [above for above in (folder, *folder.parents) if not above.exists()]
    part = folder / f".{uuid.uuid4().hex}.part"
    try:
        posix.make_folders(str(folder))
        posix.rename(str(part), str(put(part)))
    except BaseException:
        part.unlink(missing_ok=True)
        # Another submit may have begun to use them.
        with suppress(OSError):
            for above in new:
                above.rmdir()
        raise


def _write_part(bundle: Bundle, project: Path, part: Path) -> tuple[str, tuple[Member, ...], _Missed]:
    missed = _Missed()
    with part.open("xb") as file:
        sink = _Hash(file)
        members = tuple(_pack(project, [member.path for member in bundle.members], bundle.generated, sink, missed))
        file.flush()
        posix.sync_file(file.fileno())
    return sink.hash.hexdigest(), members, missed


def _changed(bundle: Bundle, members: Sequence[Member], missed: _Missed) -> str:
    now = {member.path: member for member in members}
    gone = {path: f"{path} (removed)" for path in missed.gone}
    changed = [gone.get(old.path, old.path) for old in bundle.members if old != now.get(old.path)]
    return (
        f"Files changed since the plan was made: {_some(changed)}. Next: plan again. What changes all the time and is not "
        "needed, such as a log, is left out by exclude= (--exclude) or a line in .podliftignore; a submit that is given the "
        "program instead of a plan takes files as they are."
    )


def _pack(
    project: Path,
    paths: Sequence[str],
    generated: Mapping[str, str],
    sink: _Hash,
    missed: _Missed,
    suspects: Collection[str] = (),
) -> Iterator[Member]:
    """Write an archive, member by member: what `tarfile` would write, without its copies of every header and file."""
    for path in paths:
        if path.endswith("/"):
            if not os.path.isdir(project / path):
                missed.gone.append(path)
                continue
            sink.write(_header(path, tarfile.DIRTYPE, 0, executable=True))
            yield Member(path, 0, "")
            continue
        found = (generated[path].encode(), False) if path in generated else _read(project, path, missed)
        if found is None:
            continue
        data, executable = found
        if path in suspects and tree.looks_secret(data):
            missed.secrets.append(path)
            continue
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


def _read(project: Path, path: str, missed: _Missed) -> tuple[bytes, bool] | None:
    """Return a file's bytes, and whether it may be executed; None, and the reason is kept, where there are none."""
    try:
        # A named pipe in its place would be waited for.
        number = os.open(f"{project}/{path}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb", buffering=0) as file:
            about = os.fstat(number)
            if stat.S_ISREG(about.st_mode):
                return _all_of(file, about.st_size), bool(about.st_mode & stat.S_IXUSR)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        # A socket or a device without a driver.
        if error.errno not in (errno.ENXIO, errno.ENODEV):
            missed.unreadable.append(f"{path} (cannot be read: {(error.strerror or str(error)).lower()})")
            return None
    missed.gone.append(path)
    return None


def _all_of(file: io.FileIO, size: int) -> bytes:
    """Return what a file held when it was opened: one that grows all the time has no end."""
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
