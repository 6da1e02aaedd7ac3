"""The archive of the code: the same tree gives the same bytes on any machine and any day."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import InputError
from ..layout import RootPaths

MAX_BYTES = 512 * 1024 * 1024
_SKIPPED_FOLDERS = {
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox", ".mypy_cache", ".ruff_cache",
    ".pytest_cache", ".hypothesis", ".ipynb_checkpoints",
}  # fmt: skip


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
    """

    digest: str
    members: tuple[Member, ...]
    left_out: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(member.size for member in self.members)


def build(project: Path, *, never: Path, only: str | None = None) -> Bundle:
    """Read a folder and return what its archive would be; writes nothing.

    Args:
        project: the folder.
        never: a folder that is left out wherever it lies: the root of runs. Where it is the project itself, its runs and
            bundles are left out.
        only: a single file to package instead of the whole folder.

    Raises:
        InputError: a file cannot be read, or it is more than 512 MB together.
    """
    paths, left_out = _walk(project, _roots_own(never, project)) if only is None else ([only], [])
    sink = _Hash()
    try:
        _check_size(project, paths)
        members = tuple(_pack(project, paths, sink))
    except FileNotFoundError as error:
        raise InputError(f"A file was removed while the folder was read: {error.filename!r}. Plan again.") from None
    return Bundle(digest=sink.hash.hexdigest(), members=members, left_out=tuple(left_out))


def _check_size(project: Path, paths: list[str]) -> None:
    sizes = {path: (project / path).stat().st_size for path in paths if not path.endswith("/")}
    if sum(sizes.values()) > MAX_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
        names = ", ".join(f"{path} ({sizes[path] / 1e6:.0f} MB)" for path in largest)
        raise InputError(
            f"The folder is too large to package: {sum(sizes.values()) / 1e6:.0f} MB in {str(project)!r}, at most "
            f"{MAX_BYTES / 1e6:.0f}. Largest: {names}. Move data out, or name a smaller project= (--project)."
        )


def write(bundle: Bundle, project: Path, target: Path) -> bool:
    """Write the archive to `target` unless it is there already; return True if it was written.

    Raises:
        InputError: the folder's files are no longer those of the bundle; names them.
    """
    if target.exists():
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
            now = tuple(_pack(project, [member.path for member in bundle.members], sink))
        except FileNotFoundError as error:
            raise InputError(f"A file was removed since the plan was made: {error.filename}. Plan again.") from None
        file.flush()
        os.fsync(file.fileno())
    if sink.hash.hexdigest() != bundle.digest:
        changed = [new.path for old, new in zip(bundle.members, now, strict=True) if old != new]
        raise InputError(f"Files changed since the plan was made: {', '.join(changed)}. Plan again.")


def _roots_own(root: Path, project: Path) -> set[Path]:
    """Return the folders below a project that belong to the root of runs."""
    if root != project:
        return {root}
    paths = RootPaths(str(root))
    return {Path(paths.runs), Path(paths.bundle("")).parent}


def _walk(project: Path, never: set[Path]) -> tuple[list[str], list[str]]:
    found: list[str] = []
    left_out: list[str] = []
    for folder, folders, files in os.walk(project, onerror=_refuse_unreadable):
        here = Path(folder).relative_to(project)
        packed = []
        # A folder that holds nothing but stale bytecode is what remains of one that was deleted.
        leftover = "__pycache__" in folders
        folders.sort()
        for name in list(folders):
            reason = _why_not_folder(project / here / name, never)
            if reason is not None:
                folders.remove(name)
                left_out.append(f"{(here / name).as_posix()}/ ({reason})")
        for name in sorted(files):
            reason = _why_not_file(project / here / name, project)
            if reason is None:
                packed.append((here / name).as_posix())
            elif reason:
                left_out.append(f"{(here / name).as_posix()} ({reason})")
        if not packed and not folders and not leftover and here.parts:
            packed.append(f"{here.as_posix()}/")
        found += packed
    return sorted(found), left_out


def _refuse_unreadable(error: OSError) -> None:
    # A folder that came and went is nobody's mistake.
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise InputError(
            f"A folder of the project cannot be read: {error.filename!r} ({error.strerror}). "
            "Move it out, or name a smaller project= (--project)."
        )


def _why_not_folder(path: Path, never: set[Path]) -> str | None:
    if path.name in _SKIPPED_FOLDERS:
        return "never packaged"
    # pathlib's exists() and resolve() raise where the folder cannot be read.
    if os.access(path / "pyvenv.cfg", os.F_OK):
        return "a virtual environment"
    if Path(os.path.realpath(path)) in never:
        return "the root of runs"
    return "a link to a folder" if path.is_symlink() else None


def _why_not_file(path: Path, project: Path) -> str | None:
    """Return why a file is left out, "" when that is not worth a word, None when it is packaged."""
    if path.suffix in (".pyc", ".pyo"):
        return ""
    # pathlib's resolve() raises at a loop of links.
    if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(project):
        return "a link that leaves the folder"
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        # A file that came and went is nobody's mistake.
        return "a broken link" if path.is_symlink() else ""
    except OSError as error:
        if path.is_symlink():
            return "a broken link"
        raise InputError(f"A file of the project cannot be read: {str(path)!r} ({error.strerror}).") from None
    return None if stat.S_ISREG(mode) else "not a regular file"


def _pack(project: Path, paths: list[str], sink: _Hash) -> Iterator[Member]:
    # GNU tar's own headers would hold times and owners: fixed here, so that only names and bytes decide the digest.
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            info = tarfile.TarInfo(path)
            if path.endswith("/"):
                (project / path).stat()
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
                yield Member(path, 0, "")
                continue
            data, executable = _read(project / path)
            info.size = len(data)
            info.mode = 0o755 if executable else 0o644
            archive.addfile(info, io.BytesIO(data))
            yield Member(path, len(data), hashlib.sha256(data).hexdigest(), executable)


def _read(path: Path) -> tuple[bytes, bool]:
    try:
        return path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"A file of the project cannot be read: {str(path)!r} ({error.strerror}).") from None


class _Hash(io.RawIOBase):
    """A sink that hashes what is written to it, and passes it on."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self.hash = hashlib.sha256()
        self._file = file

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.hash.update(data)
        if self._file is not None:
            self._file.write(data)
        return len(data)
