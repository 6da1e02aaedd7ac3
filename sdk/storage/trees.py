"""Trees of files: listing them, and copying files between them atomically."""

from __future__ import annotations

import errno
import filecmp
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os.path import join  # pathlib is slower than the file operations themselves

from ..errors import CorruptRunError, InputError, PodliftError
from ..text import and_more
from . import posix

_PART = ".podlift-{}.part"
_PARTS = re.compile(r"\.podlift-[0-9a-f]{32}\.part")
_NAMED = 10
# Of the machine or of a network disk, not of the file.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE)


@dataclass
class FileTree:
    """The content of a folder, by path relative to it. Folders in `others` end with "/", and the top is ""."""

    files: dict[str, os.stat_result] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)  # not followed, with their targets
    others: dict[str, str] = field(default_factory=dict)  # the reason for everything else, also unreadable folders


def walk(top: str, *, at_most: int | None = None, complete: bool = False) -> FileTree:
    """Return the content of a folder, at most `at_most` files and links; of the rest only the first is named.

    With `complete`, an error that may be gone the next time is raised: files would be missing without a recorded reason.
    """
    tree = FileTree()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(join(top, folder)) as entries:
                # Skip temporary files of a killed podlift process.
                children = sorted((e for e in entries if not _PARTS.fullmatch(e.name)), key=lambda entry: entry.name)
        except OSError as error:
            if complete and error.errno in _PASSING:
                raise
            tree.others[folder] = why(error)
            continue
        for entry in children:
            path = folder + entry.name
            if len(tree.files) + len(tree.links) == at_most:
                tree.others[path] = f"beyond the first {at_most} files, like all that follow"
                return tree
            try:
                waiting += _add(tree, path, entry)
            except OSError as error:
                if complete and error.errno in _PASSING:
                    raise
                tree.others[path] = why(error)
    return tree


def why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def inside(top: str, link: str) -> tuple[str | None, str]:
    """Return the target of a link below `top`, relative to it, or None and the reason why it is not inside."""
    base = os.path.realpath(top)
    path = join(base, link)
    real = os.path.realpath(path)
    if os.path.commonpath([base, real]) != base:
        return None, "a link that leaves the folder"
    if not os.path.lexists(real) or os.path.islink(real):
        return None, "a link to nothing"
    if os.path.commonpath([real, path]) == real:
        return None, "a link to one of its own parent folders"
    return os.path.relpath(real, base), ""


def links_beside(files: Collection[str], links: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the links that may be made in a folder beside these files; the names are not trusted.

    Files and folders replace links of the same name. CorruptRunError names a path or link that would leave the folder.
    """
    above = {folder for name in (*files, *links) for folder in prefixes(os.path.dirname(name))}
    new_links = {name: text for name, text in links.items() if name not in files and name not in above}
    wrong = [name for name in files if not _is_inside(name)]
    wrong += [name for name, text in new_links.items() if not (_is_inside(name) and _leads_inside(name, text))]
    if wrong:
        raise CorruptRunError(
            f"{where} names files outside the folder of the run: {and_more([repr(name) for name in sorted(wrong)], _NAMED)}. "
            "Nothing was downloaded. Next: ask who may write to this bucket, and remove these objects."
        )
    return new_links


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and "\0" not in name and {".", ".."}.isdisjoint(name.split("/"))


def _leads_inside(name: str, text: str) -> bool:
    """Return whether a link goes up first, no further than its top folder, and then only down."""
    parts = text.split("/")
    climbs = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return text != "" and climbs < name.count("/") and _is_inside("/".join(parts[climbs:]))


def make_parents(top: str, name: str) -> None:
    """Make the folders above a file below `top`; OSError if a link leads out of it."""
    parent, real = os.path.dirname(join(top, name)), os.path.realpath(top)
    if os.path.commonpath([real, os.path.realpath(parent)]) != real:
        raise OSError(f"{parent!r} is a link that leaves the folder of the run")
    os.makedirs(parent, exist_ok=True)


def put(source: str, target: str, *, link: bool = False) -> None:
    """Copy a file atomically, replacing the target; `link` makes a hard link instead if the file system allows it."""
    put_atomically(target, lambda part: _copy(source, part, link))


def put_link(text: str, target: str) -> None:
    """Create a symbolic link atomically, replacing the target."""
    put_atomically(target, lambda part: os.symlink(text, part))


def copy_outputs(source: str, dest: str) -> list[str]:
    """Copy a run's outputs like `copy_into`, and mark the created folders, so that no run packages them."""
    parts = os.listdir(source)
    new = [part for part in parts if not os.path.lexists(join(dest, part))]
    written = copy_into(source, dest)
    # Folders that existed before may belong to anyone, for example to a project.
    alone = os.path.isdir(dest) and set(os.listdir(dest)) <= {*parts, posix.MARKER}
    for folder in [dest] if alone else [join(dest, part) for part in new]:
        with suppress(OSError):
            posix.mark(folder, posix.RESULTS)
    return written


def copy_into(source: str, dest: str) -> list[str]:
    """Copy everything below `source` into the folder `dest`, and return the written paths.

    A file that already exists with the same content is kept. Conflicts are reported before anything is written.
    """
    tree = walk(source)
    rejected = {**tree.others, **{path: reason for path in tree.links if (reason := inside(source, path)[1])}}
    if rejected:
        listed = and_more([f"{readable(path) or '.'} ({reason})" for path, reason in rejected.items()], _NAMED)
        raise InputError(
            f"{source!r} contains files that cannot be copied: {listed}. Nothing was written. Next: remove them."
        )
    paths = sorted([*tree.files, *tree.links])
    conflicts = _conflicts(source, dest, paths)
    if conflicts:
        listed = and_more([readable(path) for path in conflicts], _NAMED)
        raise InputError(
            f"{dest!r} contains different files of the same name: {listed}. Nothing was written. Next: choose another "
            "destination, or move the files."
        )
    missing = [path for path in paths if not os.path.lexists(join(dest, path))]
    written: list[str] = []
    try:
        for path in missing:
            target = join(dest, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if path in tree.links:
                put_link(tree.links[path], target)
            else:
                put(join(source, path), target)
            written.append(target)
    except OSError as error:
        raise PodliftError(
            f"Not all files could be copied: {error}. {len(written)} of {len(missing)} are in {dest!r}. Next: repeat the "
            "command to copy the rest."
        ) from error
    return written


def readable(path: str) -> str:
    """Return a path as printable text: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def prefixes(folder: str) -> list[str]:
    """Return a relative folder and its parents, the top first: "a/b" gives "a", "a/b"."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _add(tree: FileTree, path: str, entry: os.DirEntry[str]) -> list[str]:
    """Add an entry of a folder; return it with a "/" if it is a folder itself."""
    if entry.is_symlink():
        tree.links[path] = os.readlink(entry.path)
    elif entry.is_dir(follow_symlinks=False):
        return [f"{path}/"]
    elif entry.is_file(follow_symlinks=False):
        tree.files[path] = entry.stat(follow_symlinks=False)
    else:
        tree.others[path] = "neither file nor folder"
    return []


def put_atomically(target: str, make: Callable[[str], object]) -> None:
    """Let `make` write a file beside the target, and then replace the target by it."""
    part = join(os.path.dirname(target), _PART.format(uuid.uuid4().hex))
    try:
        make(part)
        os.replace(part, target)
    finally:
        # Renaming one name of a file to another does nothing and leaves both.
        with suppress(FileNotFoundError):
            os.unlink(part)


def _copy(source: str, target: str, link: bool) -> None:
    if link:
        # Fails across file systems, without hard links, or with too many links.
        with suppress(OSError):
            os.link(source, target, follow_symlinks=False)
            return
    shutil.copyfile(source, target, follow_symlinks=False)
    # Some file systems store neither modes nor times.
    with suppress(OSError):
        shutil.copystat(source, target, follow_symlinks=False)


def _conflicts(source: str, dest: str, paths: Sequence[str]) -> list[str]:
    """Return the paths below `dest` that are occupied by something else, including files in place of folders."""
    filecmp.clear_cache()
    conflicts: dict[str, None] = {}
    for folder in dict.fromkeys(os.path.dirname(path) for path in paths):
        for above in prefixes(folder):
            target = join(dest, above)
            if os.path.lexists(target) and not os.path.isdir(target):
                conflicts[above] = None
                break
    for path in paths:
        if os.path.lexists(join(dest, path)) and not _same(join(source, path), join(dest, path)):
            conflicts[path] = None
    return list(conflicts)


def _same(one: str, other: str) -> bool:
    links = [os.path.islink(one), os.path.islink(other)]
    try:
        if any(links):
            return all(links) and os.readlink(one) == os.readlink(other)
        return os.path.isfile(other) and filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
