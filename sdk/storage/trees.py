"""Trees of files: what is in one, and how a file comes from one into another without ever being there by half."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import InputError, PodliftError
from . import posix

_PART = ".podlift-{}.part"
_PARTS = re.compile(r"\.podlift-[0-9a-f]{32}\.part")
_NAMED = 10


@dataclass
class FileTree:
    """What lies below a folder, by path relative to it.

    Args:
        files: regular files.
        links: symbolic links, which are not followed, with the text of each.
        others: what is neither file, link nor folder, or cannot be looked at, with the reason; a folder
            ends with "/", and the top is "".
    """

    files: dict[str, os.stat_result] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)


def walk(top: str, *, at_most: int | None = None) -> FileTree:
    """Return what lies below a folder.

    Args:
        top: the folder.
        at_most: so many files and links; of the rest only the first is named.
    """
    tree = FileTree()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(_join(top, folder)) as entries:
                # What a killed process of podlift was about to bring is no file of anybody's.
                found = sorted((e for e in entries if not _PARTS.fullmatch(e.name)), key=lambda entry: entry.name)
        except OSError as error:
            tree.others[folder] = why(error)
            continue
        for entry in found:
            path = folder + entry.name
            if len(tree.files) + len(tree.links) == at_most:
                tree.others[path] = f"beyond the first {at_most} files, with all that follows"
                return tree
            try:
                waiting += _add(tree, path, entry)
            except OSError as error:
                tree.others[path] = why(error)
    return tree


def why(error: OSError) -> str:
    """Return the reason of an error without the path, which stands beside it."""
    return (error.strerror or str(error)).lower()


def inside(top: str, link: str) -> tuple[str | None, str]:
    """Return where a link below `top` leads, relative to it, or None and the reason why it leads nowhere there."""
    base = os.path.realpath(top)
    place = _join(base, link)
    real = os.path.realpath(place)
    if os.path.commonpath([base, real]) != base:
        return None, "a link that leaves the folder"
    if not os.path.lexists(real) or os.path.islink(real):
        return None, "a link to nothing"
    if os.path.commonpath([real, place]) == real:
        return None, "a link to a folder that it lies in"
    return os.path.relpath(real, base), ""


def put(source: str, target: str, *, link: bool = False) -> None:
    """Bring a file to another place, whose folder is there; it replaces what is there, and is never there by half.

    Args:
        source: the file.
        target: its new name.
        link: let both names be one file, where the file system can.
    """
    _place(target, lambda part: _copy(source, part, link))


def put_link(text: str, target: str) -> None:
    """Make a symbolic link, in place of what is there."""
    _place(target, lambda part: os.symlink(text, part))


def copy_outputs(source: str, dest: str) -> list[str]:
    """Copy what a run has left into a folder, as `copy_into`; folders made for it are marked, so that no run packages them."""
    parts = os.listdir(source)
    new = [part for part in parts if not os.path.lexists(_join(dest, part))]
    written = copy_into(source, dest)
    # What lay there before may be anybody's, a project's own folder too.
    alone = os.path.isdir(dest) and set(os.listdir(dest)) <= {*parts, posix.MARKER}
    for folder in [dest] if alone else [_join(dest, part) for part in new]:
        with suppress(OSError):
            posix.mark(folder, posix.RESULTS)
    return written


def copy_into(source: str, dest: str) -> list[str]:
    """Copy all that lies below `source` into the folder `dest`, and return the paths that were written.

    A file that is there already with the same content stays as it is.

    Raises:
        InputError: before anything is written, a file would be overwritten, or something cannot be copied.
        PodliftError: the disk refused. What was copied until then stays.
    """
    tree = walk(source)
    strange = {**tree.others, **{path: reason for path in tree.links if (reason := inside(source, path)[1])}}
    if strange:
        said = _some([f"{readable(path) or '.'} ({reason})" for path, reason in strange.items()])
        raise InputError(f"{source!r} holds what cannot be copied: {said}. Nothing was written. Next: remove it.")
    paths = sorted([*tree.files, *tree.links])
    taken = _taken(source, dest, paths)
    if taken:
        raise InputError(
            f"{dest!r} holds other files of the same name: {_some([readable(path) for path in taken])}. Nothing was "
            "written. Next: name another destination, or move them away."
        )
    missing = [path for path in paths if not os.path.lexists(_join(dest, path))]
    written: list[str] = []
    try:
        for path in missing:
            place = _join(dest, path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if path in tree.links:
                put_link(tree.links[path], place)
            else:
                put(_join(source, path), place)
            written.append(place)
    except OSError as error:
        raise PodliftError(
            f"The files could not all be copied: {error}. {len(written)} of {len(missing)} are in {dest!r}. "
            "Next: the same again copies the rest."
        ) from error
    return written


def readable(path: str) -> str:
    """Return a path as text that can be shown: what is no UTF-8 in it stands as its numbers."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def prefixes(folder: str) -> list[str]:
    """Return the folders on the way to a relative one, itself last: "a/b" gives "a", "a/b"."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _join(top: str, path: str) -> str:
    return os.path.join(top, path)  # pathlib would cost more than the files themselves


def _add(tree: FileTree, path: str, entry: os.DirEntry[str]) -> list[str]:
    """Note what a folder holds; return it with a "/" if it is a folder itself."""
    if entry.is_symlink():
        tree.links[path] = os.readlink(entry.path)
    elif entry.is_dir(follow_symlinks=False):
        return [f"{path}/"]
    elif entry.is_file(follow_symlinks=False):
        tree.files[path] = entry.stat(follow_symlinks=False)
    else:
        tree.others[path] = "neither file nor folder"
    return []


def _place(target: str, make: Callable[[str], None]) -> None:
    part = _join(os.path.dirname(target), _PART.format(uuid.uuid4().hex))
    try:
        make(part)
        os.replace(part, target)
    finally:
        # Between two names of one file a rename does nothing, and leaves both.
        with suppress(FileNotFoundError):
            os.unlink(part)


def _copy(source: str, target: str, link: bool) -> None:
    if link:
        # Another file system, one without links, or too many links of this file.
        with suppress(OSError):
            os.link(source, target, follow_symlinks=False)
            return
    shutil.copyfile(source, target, follow_symlinks=False)
    # Some file systems keep neither modes nor times.
    with suppress(OSError):
        shutil.copystat(source, target, follow_symlinks=False)


def _taken(source: str, dest: str, paths: Sequence[str]) -> list[str]:
    """Return the paths below `dest` at which something else is in the way, a file among the folders too."""
    filecmp.clear_cache()
    taken: dict[str, None] = {}
    for folder in dict.fromkeys(os.path.dirname(path) for path in paths):
        for above in prefixes(folder):
            place = _join(dest, above)
            if os.path.lexists(place) and not os.path.isdir(place):
                taken[above] = None
                break
    for path in paths:
        if os.path.lexists(_join(dest, path)) and not _same(_join(source, path), _join(dest, path)):
            taken[path] = None
    return list(taken)


def _same(one: str, other: str) -> bool:
    links = [os.path.islink(one), os.path.islink(other)]
    try:
        if any(links):
            return all(links) and os.readlink(one) == os.readlink(other)
        return os.path.isfile(other) and filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
