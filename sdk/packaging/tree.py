"""Which files of a project go into its bundle, and why the others do not."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..checks import Finding
from ..errors import InputError
from . import own_files as own
from .ignore import Rules

MAX_FILES = 100_000
_SKIPPED_FOLDERS = {
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox", ".mypy_cache", ".ruff_cache",
    ".pytest_cache", ".hypothesis", ".ipynb_checkpoints", ".eggs",
}  # fmt: skip
_SECRET_NAMES = re.compile(
    r"\.env(\..+)?|\.netrc|\.pypirc|\.npmrc|\.git-credentials|\.htpasswd|id_(rsa|dsa|ecdsa|ed25519)|.+\.(p12|pfx|jks|keystore)|"
    r"(.*[-_.])?(service[-_]?account|client[-_]secrets?|credentials?)([-_.].*)?\.json|application_default_credentials\.json",
    re.IGNORECASE,
)
_SAMPLES = re.compile(r".*\.(example|sample|template|dist)", re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Found:
    """A file or an empty folder that may be packaged: its path in the bundle, and what the disk says of it."""

    path: str
    stat: os.stat_result


@dataclass
class Tree:
    """What was found.

    Args:
        found: sorted by path; an empty folder's path ends in "/".
        left_out: paths that were passed over, with the reason.
        secrets: paths that were left out because their name says that they hold a secret.
        unreadable: files and folders that the system does not let this process read, with its reason.
        notes: warnings about the rules.
        forced: paths that an include names: no rule and no look leaves them out.
    """

    found: list[Found] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    forced: set[str] = field(default_factory=set)


def read(
    top: Path,
    base: str | None,
    *,
    parts: Sequence[str] = (),
    include: Sequence[str] = (),
    rules: Rules,
    never: Mapping[Path, str],
    own_files: Mapping[own.Identity, str] | None = None,
) -> Tree:
    """Return what of a project is packaged.

    Args:
        top: the folder to which paths are relative.
        base: the project below it, "" for itself; None for the parts alone.
        parts: folders and files beside the project that are packaged too.
        include: paths and patterns, relative to the project, which no rule leaves out.
        rules: those of the settings.
        never: folders that are left out wherever they lie, with what they are.
        own_files: files that are left out whatever their name, with the reason.

    Raises:
        InputError: a file of rules cannot be read, there are too many files, or an include names nothing.
    """
    walk = _Walk(top, never, own_files or {})
    for folder in dict.fromkeys([*([] if base is None else [base]), *parts]):
        if (top / folder).is_file():
            walk.take(str(top / folder), folder)
        else:
            walk.into(folder, _above(top, folder, rules, walk.tree.notes))
    for pattern in include:
        walk.force(base or "", pattern)
    # Of a folder that is given twice, as a part of itself, every file was found twice.
    walk.tree.found = [found for _, found in sorted({found.path: found for found in walk.tree.found}.items())]
    return walk.tree


def _above(top: Path, folder: str, rules: Rules, notes: list[Finding]) -> Rules:
    """Return the rules that hold on the way down to a folder."""
    prefix, place = "", top
    for part in folder.split("/") if folder else []:
        rules = rules.enter(place, prefix, _names(place), notes)
        prefix, place = f"{prefix}{part}/", place / part
    return rules


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


class _Walk:
    """Goes through folders, and sorts what it meets into a Tree."""

    def __init__(self, top: Path, never: Mapping[Path, str], own_files: Mapping[own.Identity, str]) -> None:
        self.tree = Tree()
        self._own_files = own_files
        self._top = top
        self._real_top = Path(os.path.realpath(top))
        self._never = never

    def into(self, folder: str, rules: Rules, *, forced: bool = False) -> None:
        """Take what a folder holds; `forced` leaves the rules aside."""
        waiting = [(folder, rules)]
        while waiting:
            where, above = waiting.pop()
            waiting += self._folder(where, above, forced, named=where == folder)
            if len(self.tree.found) > MAX_FILES:
                raise InputError(self._too_many())

    def _folder(self, where: str, above: Rules, forced: bool, *, named: bool = False) -> list[tuple[str, Rules]]:
        """Take one folder's files; return the folders in it that are to be taken, with their rules."""
        prefix = f"{where}/" if where else ""
        entries = self._scan(where)
        names = {entry.name for entry in entries or ()}
        whose = None if named or forced else own.folder(self._top / where, names)
        if entries is None or whose is not None:
            self.tree.left_out += [] if whose is None else [f"{_shown(where)}/ ({whose})"]
            return []
        rules = above.enter(self._top / where, prefix, sorted(names), self.tree.notes)
        inner, taken, leftover = [], len(self.tree.found), False
        for entry in entries:
            path = f"{prefix}{entry.name}"
            # A folder that holds nothing but stale bytecode is what remains of one that was deleted.
            leftover = leftover or entry.name == "__pycache__"
            if _is_folder(entry):
                reason = self._why_not_folder(entry) or (None if forced else rules.why(f"{path}/"))
                if reason is None:
                    inner.append((path, rules))
                elif entry.name != "__pycache__":
                    self.tree.left_out.append(f"{_shown(path)}/ ({reason})")
            elif forced or (reason := rules.why(path)) is None:
                self.take(entry.path, path, forced=forced)
            else:
                self.tree.left_out.append(f"{_shown(path)} ({reason})")
        if where and not inner and not leftover and len(self.tree.found) == taken:
            self._take_empty(where)
        return inner

    def _scan(self, where: str) -> list[os.DirEntry[str]] | None:
        """Return what a folder holds; None, and it is left out, where that cannot be known."""
        try:
            with os.scandir(self._top / where) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            # A folder that came and went is nobody's mistake.
            return []
        except OSError as error:
            self._cannot_read(f"{where or '.'}/", error)
            return None

    def _cannot_read(self, path: str, error: OSError) -> None:
        reason = f"{_shown(path)} (cannot be read: {(error.strerror or str(error)).lower()})"
        self.tree.left_out.append(reason)
        self.tree.unreadable.append(reason)

    def _take_empty(self, where: str) -> None:
        try:
            self.tree.found.append(Found(f"{where}/", (self._top / where).stat()))
        except FileNotFoundError:
            pass

    def take(self, place: str, path: str, *, forced: bool = False) -> None:
        """Take one file, or say why not."""
        name = path.rpartition("/")[2]
        # Not worth a word.
        if name.endswith((".pyc", ".pyo")) or name == ".DS_Store":
            return
        if forced:
            self.tree.forced.add(path)
        try:
            about, reason = self._look(place)
        except OSError as error:
            self._cannot_read(path, error)
            return
        reason = reason or _odd_name(path)
        if about is not None and reason is None and not forced:
            reason = own.file(name, about, self._own_files)
        if about is not None and reason is None and not forced and _is_secret(name):
            self.tree.secrets.append(path)
            reason = "looks like a secret"
        if reason is not None:
            self.tree.left_out.append(f"{_shown(path)} ({reason})")
        elif about is not None:
            self.tree.found.append(Found(path, about))

    def force(self, base: str, pattern: str) -> None:
        """Take what an include inside the project names, whatever the rules say."""
        project = self._top / base
        matches = sorted(project.glob(pattern)) if _PATTERN.search(pattern) else [project / pattern]
        before = len(self.tree.forced) + len(self.tree.found)
        for place in matches:
            path = place.relative_to(self._top).as_posix()
            if place.is_dir() and not place.is_symlink():
                self.into(path, Rules(), forced=True)
            elif os.path.lexists(place):
                self.take(str(place), path, forced=True)
        if len(self.tree.forced) + len(self.tree.found) == before:
            raise InputError(
                f"An include names nothing. Received: {pattern!r}. Paths are relative to {str(project)!r}."
            )
        self.tree.left_out = [text for text in self.tree.left_out if text.rpartition(" (")[0] not in self.tree.forced]
        self.tree.secrets = [path for path in self.tree.secrets if path not in self.tree.forced]

    def _why_not_folder(self, entry: os.DirEntry[str]) -> str | None:
        if entry.name in _SKIPPED_FOLDERS or entry.name.endswith(".egg-info"):
            return "never packaged"
        # pathlib's exists() and resolve() raise where the folder cannot be read.
        if any(os.access(os.path.join(entry.path, mark), os.F_OK) for mark in ("pyvenv.cfg", "conda-meta")):
            return "a virtual environment"
        own = self._never.get(Path(os.path.realpath(entry.path)))
        if own is not None:
            return own
        return "a link to a folder" if entry.is_symlink() else _odd_name(entry.name)

    def _look(self, place: str) -> tuple[os.stat_result | None, str | None]:
        """Return what the disk says of a file and why it is left out; neither for one that came and went."""
        link = os.path.islink(place)
        # pathlib's resolve() raises at a loop of links.
        if link and not Path(os.path.realpath(place)).is_relative_to(self._real_top):
            return None, "a link that leaves the folder"
        try:
            about = os.stat(place)
        except FileNotFoundError:
            return None, "a broken link" if link else None
        except OSError:
            if link:
                return None, "a broken link"
            raise
        return about, None if stat.S_ISREG(about.st_mode) else "not a regular file"

    def _too_many(self) -> str:
        counts: dict[str, int] = {}
        for found in self.tree.found:
            for above in _folders(found.path):
                counts[above] = counts.get(above, 0) + 1
        fullest = sorted(counts, key=lambda name: (-counts[name], name))[:5]
        names = ", ".join(f"{_shown(name)}/ ({counts[name]})" for name in fullest)
        return (
            f"The project holds more than {MAX_FILES} files: {str(self._top)!r}. Fullest so far: {names}. "
            "Move data out, exclude it, or name a smaller project= (--project)."
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


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAMES.fullmatch(name)) and not _SAMPLES.fullmatch(name)


def why_left_out(path: str, left_out: Sequence[str]) -> str:
    """Return what of a tree's `left_out` is about a file or a folder that holds it, "" for nothing."""
    # Of a folder, all that lies in it is left out with it.
    places = {path, *(f"{folder}/" for folder in _folders(path))}
    return next((text for text in left_out if text.rpartition(" (")[0] in places), "")


def looks_secret(data: bytes) -> bool:
    """True for a private key, the key file of a service account, and what `podlift emulator` printed: its URL is a key."""
    return (
        bool(re.match(rb"\s*-----BEGIN [A-Z ]*PRIVATE KEY-----", data))
        or (data.lstrip()[:1] == b"{" and b'"private_key"' in data and b"PRIVATE KEY-----" in data)
        or re.search(rb"http://[\w.\[\]:]+:\d+/[0-9a-f]{32}\b", data) is not None
    )


def _odd_name(path: str) -> str | None:
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return None


def _shown(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()
