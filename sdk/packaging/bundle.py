"""The archive of the code: the same files give the same bytes on any machine at any time."""

from __future__ import annotations

import errno
import functools
import hashlib
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

from .. import text
from ..checks import Finding
from ..errors import InputError
from ..job.plan import PackedFile, Plan
from ..process import garbage
from ..storage import posix
from ..storage.checksums import sha256
from . import bundle_cache, never_packaged, tree
from .entry import LocatedEntry
from .ignore import IgnoreRules

MAX_BYTES = 512 * 1024 * 1024
_SHOWN = 10
# How often files are read if some vanish meanwhile and come back, as they do when an editor saves them.
_TRIES = 3
# Where the size and the checksum of a member stand in its header, and the largest size that fits there.
_SIZE, _SUM = slice(124, 135), slice(148, 154)
_MAX_PLAIN = 8**11 - 1
# The content of these files is checked for secrets: key files are small, and have one of these suffixes.
_LOOK_BYTES = 64 * 1024
_LOOK_SUFFIXES = {".json", ".pem", ".key", ".p8", ".yaml", ".yml", ".txt", ".log", ".out", ".err", ".sh", ""}


class ChangedError(InputError):
    """Files of a project differ from its bundle."""


@dataclass(frozen=True)
class Bundle:
    """An archive, which need not be written yet."""

    digest: str  # sha256 of the uncompressed archive
    members: tuple[PackedFile, ...]  # sorted by path
    left_out: tuple[str, ...] = ()  # "path (reason)"
    generated: Mapping[str, str] = field(default_factory=dict)  # text of the files that podlift generates, by path
    notes: tuple[Finding, ...] = ()


def of(plan: Plan) -> Bundle:
    return Bundle(plan.code.digest, plan.code.files, generated=plan.code.generated)


@garbage.put_off()
def build(
    entry: LocatedEntry,
    *,
    never: Mapping[Path, str],
    exclude: Sequence[str] = (),
    cache: Path | None = None,
    own_files: Mapping[never_packaged.FileIdentity, str] | None = None,
) -> Bundle:
    """Read a project and return its bundle; write nothing but the cache of the reading.

    Folders in `never` and files in `own_files` are always left out, with the reason given; without `cache` every file is read.
    """
    is_single_file = [entry.file] if entry.is_single_file and entry.file not in entry.generated else []
    for _ in range(_TRIES):
        files = tree.read(
            entry.project,
            None if entry.is_single_file else entry.base,
            parts=[*entry.parts, *is_single_file],
            include=entry.include,
            rules=IgnoreRules.of(exclude, entry.base),
            never=never,
            own_files=own_files or {},
        )
        _check_size(entry.project, files)
        cached = bundle_cache.ReadCache(cache, entry.project, files, entry.generated)
        stored = cached.load()
        index, skipped = _read_all(entry, files, cached) if stored is None else (stored, _SkippedFiles())
        if not skipped.are_back(entry.project):
            break
    left_out = [*files.left_out, *skipped.unreadable, *(f"{path} (looks like a secret)" for path in index.secrets)]
    secrets, unreadable = sorted([*files.secrets, *index.secrets]), [*files.unreadable, *skipped.unreadable]
    return Bundle(
        digest=index.digest,
        members=tuple(PackedFile(*member) for member in index.members),
        left_out=tuple(left_out),
        generated=entry.generated,
        notes=(*files.notes, *_warnings(secrets, unreadable)),
    )


def _warnings(secrets: Sequence[str], unreadable: Sequence[str]) -> Iterator[Finding]:
    if secrets:
        message = f"Not packaged, because it looks like a secret: {text.and_more(secrets, _SHOWN)}."
        yield Finding("warning", f"{message} Next: code_include= (--code-include) packages it.")
    if unreadable:
        yield Finding("warning", f"Not packaged: {text.and_more(unreadable, _SHOWN)}.")


def check_entry(entry: LocatedEntry, packed: Bundle) -> None:
    """Raise an InputError if the entry is not in its bundle."""
    if any(member.path == entry.file for member in packed.members):
        return
    reason = tree.why_left_out(entry.file, packed.left_out)
    if not reason:
        raise InputError(_no_entry(entry.file))
    path = entry.file.removeprefix(f"{entry.base}/") if entry.base else entry.file
    advice = f"remove the rule that excludes it, or name it in code_include= (--code-include {shlex.quote(path)})"
    if "cannot be read" in reason:
        advice = "let this user read it"
    elif "link" in reason:
        advice = "name the file itself, or another code_project= (--code-project)"
    raise InputError(f"The entry is left out of the bundle: {reason}. Next: {advice}.")


def _check_size(project: Path, files: tree.ProjectTree) -> None:
    sizes = {item.path: item.stat.st_size for item in files.entries if not item.path.endswith("/")}
    if sum(sizes.values()) > MAX_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
        names = ", ".join(f"{path} ({sizes[path] / 1e6:.0f} MB)" for path in largest)
        raise InputError(
            f"The folder is too large to package: {sum(sizes.values()) / 1e6:.0f} MB in {str(project)!r}, at most "
            f"{MAX_BYTES / 1e6:.0f}. Largest: {names}. Next: move data out and name it in inputs= (--input), exclude it "
            "(--code-exclude), or name a smaller code_project= (--code-project)."
        )


def _no_entry(path: str) -> str:
    return f"The entry was removed while the project was read: {path!r}. Next: try again."


@dataclass
class _SkippedFiles:
    """Files of the tree that turned out not to belong into the archive when they were read."""

    gone: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # "path (reason)"
    secrets: list[str] = field(default_factory=list)

    def are_back(self, project: Path) -> bool:
        """True if a file that was gone exists again."""
        return any(os.path.lexists(project / path) for path in self.gone)


def _read_all(
    entry: LocatedEntry, files: tree.ProjectTree, cached: bundle_cache.ReadCache
) -> tuple[bundle_cache.ArchiveIndex, _SkippedFiles]:
    """Read every file once, and hash the archive that they would make."""
    suspects = {item.path for item in files.entries if _may_be_secret(item.path, item.stat.st_size)}
    suspects -= files.forced | entry.generated.keys()
    sink, skipped = _HashingFile(), _SkippedFiles()
    # A generated file replaces one of the project with its name.
    names = sorted({*(item.path for item in files.entries), *entry.generated})
    members = [
        [member.path, member.size, member.sha256, member.executable]
        for member in _pack(entry.project, names, entry.generated, sink, skipped, suspects)
    ]
    index = bundle_cache.ArchiveIndex(digest=sink.hash.hexdigest(), members=members, secrets=skipped.secrets)
    if not skipped.gone and not skipped.unreadable:
        cached.save(index)
    return index, skipped


def write(bundle: Bundle, project: Path, target: Path) -> bool:
    """Write the archive to `target` unless it exists there undamaged; return True if it was written.

    A ChangedError names the files that differ from the bundle.
    """
    if _is_there(target, bundle.digest):
        return False

    def put(part: Path) -> Path:
        digest, members, skipped = _write_part(bundle, project, part)
        if digest != bundle.digest:
            raise ChangedError(_changed(bundle, members, skipped))
        return target

    _place(target.parent, put)
    return True


def take(bundle: Bundle, project: Path, target: Callable[[str], str], *, entry: str) -> Bundle:
    """Write the archive of a bundle's files as they are now, and return the bundle that was written.

    Files such as logs may have changed since the bundle was built; only the file `entry` must still exist. `target` makes the
    path from the digest of the bytes in the archive.
    """
    if _is_there(Path(target(bundle.digest)), bundle.digest):
        return bundle
    unfit = dict(_unfit_now(bundle, project))
    bundle = replace(bundle, members=tuple(member for member in bundle.members if member.path not in unfit))
    written = bundle

    def put(part: Path) -> Path:
        nonlocal written
        for _ in range(_TRIES):
            part.unlink(missing_ok=True)
            digest, members, skipped = _write_part(bundle, project, part)
            if not skipped.are_back(project):
                break
        if entry in (*skipped.gone, *unfit):
            raise InputError(_no_entry(entry))
        gone = [f"{path} (removed while the project was read)" for path in skipped.gone]
        left_out = (*bundle.left_out, *gone, *skipped.unreadable, *(f"{path} ({why})" for path, why in unfit.items()))
        written = replace(bundle, digest=digest, members=members, left_out=left_out)
        return Path(target(digest))

    _place(Path(target(bundle.digest)).parent, put)
    return written


def _unfit_now(bundle: Bundle, project: Path) -> Iterator[tuple[str, str]]:
    """Yield the files of a bundle that may no longer be packaged, with the reason."""
    home = os.path.realpath(project)
    for member in bundle.members:
        path = os.path.realpath(f"{home}/{member.path}")
        if member.path in bundle.generated or not os.path.lexists(path):
            continue
        if not path.startswith(f"{home.rstrip('/')}/"):
            yield member.path, "a link that leaves the folder"
        elif _may_be_secret(member.path, os.lstat(path).st_size):
            data, _ = _read(project, member.path, _SkippedFiles()) or (b"", False)
            # A file named by code_include was a secret before, too.
            if hashlib.sha256(data).hexdigest() != member.sha256 and never_packaged.is_secret(data):
                yield member.path, "looks like a secret"


def _may_be_secret(path: str, size: int) -> bool:
    return size <= _LOOK_BYTES and os.path.splitext(path)[1].lower() in _LOOK_SUFFIXES


def _is_there(target: Path, digest: str) -> bool:
    # Its time is its last use: removals keep recently used files until the run exists.
    with suppress(FileNotFoundError):
        os.utime(target)
        # Read only now: it may have been removed just before. A damaged one is written again.
        return sha256(target) == digest
    return False


def _place(folder: Path, put: Callable[[Path], Path]) -> None:
    """Make a file in a folder: `put` writes a temporary file and returns its final path. If it fails, nothing remains."""
    new = [above for above in (folder, *folder.parents) if not above.exists()]
    part = folder / f".{uuid.uuid4().hex}.part"
    try:
        posix.make_folders(str(folder))
        posix.rename(str(part), str(put(part)))
    except BaseException:
        part.unlink(missing_ok=True)
        # Another submit may use them by now.
        with suppress(OSError):
            for above in new:
                above.rmdir()
        raise


def _write_part(bundle: Bundle, project: Path, part: Path) -> tuple[str, tuple[PackedFile, ...], _SkippedFiles]:
    skipped = _SkippedFiles()
    with part.open("xb") as file:
        sink = _HashingFile(file)
        members = tuple(_pack(project, [member.path for member in bundle.members], bundle.generated, sink, skipped))
        file.flush()
        posix.sync_file(file.fileno())
    return sink.hash.hexdigest(), members, skipped


def _changed(bundle: Bundle, members: Sequence[PackedFile], skipped: _SkippedFiles) -> str:
    now = {member.path: member for member in members}
    gone = {path: f"{path} (removed)" for path in skipped.gone}
    changed = [gone.get(old.path, old.path) for old in bundle.members if old != now.get(old.path)]
    return (
        f"Files changed since the plan was made: {text.and_more(changed, _SHOWN)}. Next: plan again. Exclude files that change "
        "all the time, such as logs, with code_exclude= (--code-exclude) or a line in .podliftignore. A submit of the program "
        "instead of a plan packages files as they are."
    )


def _pack(
    project: Path,
    paths: Sequence[str],
    generated: Mapping[str, str],
    sink: _HashingFile,
    skipped: _SkippedFiles,
    suspects: Collection[str] = (),
) -> Iterator[PackedFile]:
    """Write an archive as `tarfile` would, without its copies of every header and file."""
    for path in paths:
        if path.endswith("/"):
            if not os.path.isdir(project / path):
                skipped.gone.append(path)
                continue
            sink.write(_header(path, tarfile.DIRTYPE, 0, executable=True))
            yield PackedFile(path, 0, "")
            continue
        content = (generated[path].encode(), False) if path in generated else _read(project, path, skipped)
        if content is None:
            continue
        data, executable = content
        if path in suspects and never_packaged.is_secret(data):
            skipped.secrets.append(path)
            continue
        sink.write(_header(path, tarfile.REGTYPE, len(data), executable=executable))
        sink.write(data)
        sink.write(bytes(-len(data) % tarfile.BLOCKSIZE))
        yield PackedFile(path, len(data), hashlib.sha256(data).hexdigest(), executable)
    end = 2 * tarfile.BLOCKSIZE
    sink.write(bytes(end + -(sink.size + end) % tarfile.RECORDSIZE))


def _header(path: str, kind: bytes, size: int, *, executable: bool) -> bytes:
    """Return a member's header as `tarfile` makes it, which takes twenty times as long."""
    if not path.isascii() or len(path) > tarfile.LENGTH_NAME or size > _MAX_PLAIN:
        return _slow_header(path, kind, size, executable=executable)
    name, digits = path.encode(), b"%011o" % size
    plain, total = _plain_header(kind, executable)
    header = bytearray(plain)
    header[: len(name)] = name
    header[_SIZE] = digits
    header[_SUM] = b"%06o" % (total + sum(name) + sum(digits))
    return bytes(header)


@functools.cache
def _plain_header(kind: bytes, executable: bool) -> tuple[bytes, int]:
    """Return a header without name, size and checksum, and the sum of its bytes, where the checksum counts as spaces."""
    header = bytearray(_slow_header("x", kind, 0, executable=executable))
    header[: tarfile.LENGTH_NAME] = bytes(tarfile.LENGTH_NAME)
    header[_SIZE] = bytes(_SIZE.stop - _SIZE.start)
    return bytes(header), sum(header[: _SUM.start]) + 8 * ord(" ") + sum(header[_SUM.start + 8 :])


def _slow_header(path: str, kind: bytes, size: int, *, executable: bool) -> bytes:
    # Times and owners keep the defaults of TarInfo, so that only names, modes and bytes determine the digest.
    info = tarfile.TarInfo(path)
    info.type, info.size, info.mode = kind, size, 0o755 if executable else 0o644
    return info.tobuf(tarfile.PAX_FORMAT)


def _read(project: Path, path: str, skipped: _SkippedFiles) -> tuple[bytes, bool] | None:
    """Return a file's bytes and whether it is executable; None, with the reason in `skipped`, if it cannot be read."""
    try:
        # Opening a named pipe would block.
        number = os.open(f"{project}/{path}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(number)
            if stat.S_ISREG(about.st_mode):
                return _all_of(number, about.st_size), bool(about.st_mode & stat.S_IXUSR)
        finally:
            os.close(number)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        # A socket or a device without a driver.
        if error.errno not in (errno.ENXIO, errno.ENODEV):
            skipped.unreadable.append(f"{path} (cannot be read: {(error.strerror or str(error)).lower()})")
            return None
    skipped.gone.append(path)
    return None


def _all_of(number: int, size: int) -> bytes:
    """Return the bytes that a file had when it was opened: it may be growing all the time."""
    parts = []
    while size > 0 and (part := os.read(number, size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _HashingFile:
    """Hashes and counts the bytes that are written to a file, or to nothing."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self._file = file

    def write(self, data: bytes) -> None:
        self.hash.update(data)
        self.size += len(data)
        if self._file is not None:
            self._file.write(data)
