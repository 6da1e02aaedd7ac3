"""Selects the files of a project that go into its bundle, with the reason for each that does not."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..checks import Finding
from ..errors import InputError
from . import never_packaged
from .ignore import IgnoreRules

MAX_FILES = 100_000
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class TreeEntry:
    """A file or an empty folder to package: its path in the bundle, "/" at the end of a folder's, and its stat."""

    path: str
    stat: os.stat_result


@dataclass
class ProjectTree:
    """The files of a project."""

    entries: list[TreeEntry] = field(default_factory=list)  # sorted by path
    left_out: list[str] = field(default_factory=list)  # "path (reason)"
    secrets: list[str] = field(default_factory=list)  # paths left out because of a name such as .env
    unreadable: list[str] = field(default_factory=list)  # "path (reason)"
    notes: list[Finding] = field(default_factory=list)
    forced: set[str] = field(default_factory=set)  # paths that an include names: they are never left out


def read(
    top: Path,
    base: str | None,
    *,
    parts: Sequence[str] = (),
    include: Sequence[str] = (),
    rules: IgnoreRules,
    never: Mapping[Path, str],
    own_files: Mapping[never_packaged.FileIdentity, str] | None = None,
) -> ProjectTree:
    """Return the files of the project `top`/`base` and of `parts`; of `parts` alone if `base` is None.

    Files that `include` names are never left out. Folders in `never` and files in `own_files` are left out whatever their name.
    """
    walk = _Walk(top, never, own_files or {})
    folders = parts if base is None else [base, *parts]
    for folder in dict.fromkeys(folders):
        if (top / folder).is_file():
            walk.take(str(top / folder), folder)
        else:
            walk.into(folder, _above(top, folder, rules, walk.tree.notes))
    for pattern in include:
        walk.force(base or "", pattern)
    # One folder may contain another one.
    walk.tree.entries = [entry for _, entry in sorted({entry.path: entry for entry in walk.tree.entries}.items())]
    return walk.tree


def _above(top: Path, folder: str, rules: IgnoreRules, notes: list[Finding]) -> IgnoreRules:
    """Return the rules of the folders above a folder."""
    prefix, path = "", top
    for part in folder.split("/") if folder else []:
        rules = rules.enter(path, prefix, names_in(path), notes)
        prefix, path = f"{prefix}{part}/", path / part
    return rules


def names_in(folder: str | Path) -> list[str]:
    """Return the content of a folder, sorted; nothing if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


class _Walk:
    """Walks through folders, and sorts their files into a ProjectTree."""

    def __init__(
        self, top: Path, never: Mapping[Path, str], own_files: Mapping[never_packaged.FileIdentity, str]
    ) -> None:
        self.tree = ProjectTree()
        self._own_files = own_files
        self._top = top
        self._real_top = Path(os.path.realpath(top))
        self._never = never

    def into(self, folder: str, rules: IgnoreRules, *, forced: bool = False) -> None:
        """Take the content of a folder; `forced` ignores the rules."""
        waiting = [(folder, rules)]
        while waiting:
            where, above = waiting.pop()
            waiting += self._folder(where, above, forced, named=where == folder)
            if len(self.tree.entries) > MAX_FILES:
                raise InputError(self._too_many())

    def _folder(
        self, where: str, above: IgnoreRules, forced: bool, *, named: bool = False
    ) -> list[tuple[str, IgnoreRules]]:
        """Take the files of one folder; return the folders in it that are to be taken too, with their rules."""
        prefix = f"{where}/" if where else ""
        entries = self._scan(where)
        if entries is None:
            return []
        names = {entry.name for entry in entries}
        owner = None if named or forced else never_packaged.why_folder_by_content(self._top / where, names)
        if owner is not None:
            self.tree.left_out.append(f"{_printable(where)}/ ({owner})")
            return []
        rules = above.enter(self._top / where, prefix, sorted(names), self.tree.notes)
        inner, count_before, leftover = [], len(self.tree.entries), False
        for entry in entries:
            path = f"{prefix}{entry.name}"
            # A folder with nothing but stale bytecode is the rest of a deleted one.
            leftover = leftover or entry.name == "__pycache__"
            if _is_folder(entry):
                reason = self._why_not_folder(entry) or (None if forced else rules.why(f"{path}/"))
                if reason is None:
                    inner.append((path, rules))
                elif entry.name != "__pycache__":
                    self.tree.left_out.append(f"{_printable(path)}/ ({reason})")
            elif forced or (reason := rules.why(path)) is None:
                self.take(entry.path, path, forced=forced)
            else:
                self.tree.left_out.append(f"{_printable(path)} ({reason})")
        if where and not inner and not leftover and len(self.tree.entries) == count_before:
            with suppress(FileNotFoundError):
                self.tree.entries.append(TreeEntry(f"{where}/", (self._top / where).stat()))
        return inner

    def _scan(self, where: str) -> list[os.DirEntry[str]] | None:
        """Return the content of a folder; None, and it is left out, if it cannot be read."""
        try:
            with os.scandir(self._top / where) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            # It was removed meanwhile.
            return []
        except OSError as error:
            self._cannot_read(f"{where or '.'}/", error)
            return None

    def _cannot_read(self, path: str, error: OSError) -> None:
        reason = f"{_printable(path)} (cannot be read: {(error.strerror or str(error)).lower()})"
        self.tree.left_out.append(reason)
        self.tree.unreadable.append(reason)

    def take(self, file: str, path: str, *, forced: bool = False) -> None:
        """Take one file, or say why not."""
        name = path.rpartition("/")[2]
        # These are not reported.
        if name.endswith((".pyc", ".pyo")) or name == ".DS_Store":
            return
        if forced:
            self.tree.forced.add(path)
        try:
            about, reason = self._stat(file)
        except OSError as error:
            self._cannot_read(path, error)
            return
        reason = reason or _odd_name(path)
        if about is not None and reason is None and not forced:
            if never_packaged.is_swap_file(name):
                reason = "an editor's swap file"
            elif (about.st_dev, about.st_ino) in self._own_files:
                reason = self._own_files[about.st_dev, about.st_ino]
            elif never_packaged.is_secret_name(name):
                self.tree.secrets.append(path)
                reason = "looks like a secret"
        if reason is not None:
            self.tree.left_out.append(f"{_printable(path)} ({reason})")
        elif about is not None:
            self.tree.entries.append(TreeEntry(path, about))

    def force(self, base: str, pattern: str) -> None:
        """Take the files that an include names, despite any rule."""
        project = self._top / base
        matches = sorted(project.glob(pattern)) if _PATTERN.search(pattern) else [project / pattern]
        before = len(self.tree.forced) + len(self.tree.entries)
        for match in matches:
            path = match.relative_to(self._top).as_posix()
            if match.is_dir() and not match.is_symlink():
                self.into(path, IgnoreRules(), forced=True)
            elif os.path.lexists(match):
                self.take(str(match), path, forced=True)
        if len(self.tree.forced) + len(self.tree.entries) == before:
            raise InputError(
                f"An include does not match any file. Received: {pattern!r}. Paths are relative to {str(project)!r}."
            )
        self.tree.left_out = [text for text in self.tree.left_out if text.rpartition(" (")[0] not in self.tree.forced]
        self.tree.secrets = [path for path in self.tree.secrets if path not in self.tree.forced]

    def _why_not_folder(self, entry: os.DirEntry[str]) -> str | None:
        # pathlib's resolve() raises if the folder cannot be read.
        reason = never_packaged.why_folder_by_name(entry.path, entry.name) or self._never.get(
            Path(os.path.realpath(entry.path))
        )
        if reason is not None:
            return reason
        return "a link to a folder" if entry.is_symlink() else _odd_name(entry.name)

    def _stat(self, file: str) -> tuple[os.stat_result | None, str | None]:
        """Return the stat of a file and the reason to leave it out; neither for one that was removed meanwhile."""
        try:
            about = os.lstat(file)
        except FileNotFoundError:
            return None, None
        if stat.S_ISLNK(about.st_mode):
            # pathlib's resolve() raises at a loop of links.
            if not Path(os.path.realpath(file)).is_relative_to(self._real_top):
                return None, "a link that leaves the folder"
            try:
                about = os.stat(file)
            except OSError:
                return None, "a broken link"
        return about, None if stat.S_ISREG(about.st_mode) else "not a regular file"

    def _too_many(self) -> str:
        counts: dict[str, int] = {}
        for entry in self.tree.entries:
            for above in _folders(entry.path):
                counts[above] = counts.get(above, 0) + 1
        fullest = sorted(counts, key=lambda name: (-counts[name], name))[:5]
        names = ", ".join(f"{_printable(name)}/ ({counts[name]})" for name in fullest)
        return (
            f"The project contains more than {MAX_FILES} files: {str(self._top)!r}. Largest folders so far: {names}. "
            "Next: move data out, exclude it, or name a smaller code_project= (--code-project)."
        )


def _folders(path: str) -> Iterator[str]:
    parts = path.split("/")[:-1]
    return ("/".join(parts[: i + 1]) for i in range(len(parts)))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A loop of links.
        return False


def why_left_out(path: str, left_out: Sequence[str]) -> str:
    """Return the entry of `left_out` for a file or for a folder that contains it, "" if there is none."""
    names = {path, *(f"{folder}/" for folder in _folders(path))}
    return next((text for text in left_out if text.rpartition(" (")[0] in names), "")


def _odd_name(path: str) -> str | None:
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return None


def _printable(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()
