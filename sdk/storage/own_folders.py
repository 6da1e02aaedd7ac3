"""Folders of this user outside of a run's directory: opened, checked and removed without trust in the path to them.

Another user of the machine may exchange a folder for a link, or for another folder, between a check of it and its removal. So
each step starts at a folder that is open, a link is never removed through, and a link on the way counts only if this user or
root has made it.

The janitor loads this file by its path: it imports nothing but the smallest modules.
"""

from __future__ import annotations

import os
import stat

# On Linux a folder can be opened as a start, and a link for reading, without a right to read its contents.
_PATH: int = getattr(os, "O_PATH", 0)
_LOOK = (_PATH or os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = 40  # on the way to a folder, at most, as in the kernel
_NOTE = ".podlift-run"
_NOTE_BYTES = 4096


class ForeignFolderError(OSError):
    """A folder is not one of this user alone, or something on the way to it is another user's link."""


def open_private(path: str) -> int:
    """Open a folder of this user that no other user may write to, and return its handle."""
    parent, name = _parent_of(path)
    with _Closing(parent):
        folder = _entered(name, parent)
    try:
        _check(os.fstat(folder), folder, path, private=True)
    except BaseException:
        os.close(folder)
        raise
    return folder


def claim(path: str, url: str) -> None:
    """Note in a new folder which run it belongs to."""
    with _Closing(open_private(path)) as folder:
        note = os.open(_NOTE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with _Closing(note):
            os.write(note, os.fsencode(url))


def claimed(path: str) -> str | None:
    """Return the run that this user has noted in a folder; None if it is not his alone, or without a note."""
    try:
        with _Closing(open_private(path)) as folder:
            note = os.open(_NOTE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with _Closing(note):
                info = os.fstat(note)
                mine = stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and _is_mine(info, folder)
                return os.fsdecode(os.read(note, _NOTE_BYTES)) if mine else None
    except OSError:
        return None


def remove(path: str, inside: str = "", *, private: bool = True, owner: int | None = None) -> None:
    """Remove a file or folder of this user with all its contents; OSError names the first entry that stays.

    Args:
        path: a folder that no other user may write to, unless it need not be `private`.
        inside: the entry to remove in it; by default the folder itself.
        private: False for a folder with a mode of the user's choice.
        owner: the required owner, if not this user.
    """
    parent, name = _parent_of(path)
    try:
        for part in filter(None, inside.split("/")):
            folder = _entered(name, parent)
            os.close(parent)
            parent = folder
            _check(os.fstat(parent), parent, path, private=private, owner=owner)
            name, private = part, False
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(info.st_mode):
            if not inside:
                _check(info, parent, path, private=False, owner=owner)
            os.unlink(name, dir_fd=parent)
            return
        _remove_folder(name, parent, path, private=private, owner=owner)
    finally:
        os.close(parent)


def discard(path: str, inside: str = "", *, private: bool = True) -> bool:
    """Do the same, but ignore failures; return whether the path no longer exists."""
    try:
        remove(path, inside, private=private)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def discard_temporary(run: str, path: str, inside: str = "") -> str:
    """Remove a folder for temporary files of a run, or the entry `inside`, and return why it stays, "" if it does not.

    In the run's folder, modes are the user's choice, and entries of the run's owner count as the user's.
    """
    private, owner = not path.startswith(f"{run}/"), None
    try:
        if not private and (user := os.lstat(path).st_uid) == os.stat(run).st_uid:
            owner = user
        remove(path, inside, private=private, owner=owner)
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{path!r} could not be removed: {error}"
    return ""


def is_mine(folder: int) -> bool:
    """Return whether an open folder is this user's, even on a file system that shows this user's files as another's."""
    return _is_mine(os.fstat(folder), folder)


def _is_mine(info: os.stat_result, folder: int) -> bool:
    if info.st_uid == os.geteuid():
        return True
    name = f".podlift-{os.urandom(8).hex()}"
    try:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError:
        return False
    with _Closing(handle):
        os.unlink(name, dir_fd=folder)
        return os.fstat(handle).st_uid == info.st_uid


class _Closing:
    """Closes a handle after a block; `contextlib` is no small module."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        return self._handle

    def __exit__(self, *error: object) -> None:
        os.close(self._handle)


def _remove_folder(name: str, parent: int, path: str, *, private: bool, owner: int | None) -> None:
    with _Closing(_entered(name, parent)) as folder:
        _check(os.fstat(folder), folder, path, private=private, owner=owner)
        failed = _emptied(folder, path, os.fstat(folder).st_dev)
        if failed is not None:
            raise failed
        # It was exchanged for another one, which stays.
        if not os.path.samestat(os.fstat(folder), os.stat(name, dir_fd=parent, follow_symlinks=False)):
            raise ForeignFolderError(f"{path!r} was exchanged for another folder meanwhile.")
    os.rmdir(name, dir_fd=parent)


def _emptied(folder: int, path: str, device: int) -> OSError | None:
    """Remove as many entries of an open folder of this device as possible, and return the first error."""
    first: OSError | None = None
    if os.fstat(folder).st_dev != device:
        return OSError(f"Something is mounted at {path!r}.")
    try:
        _allow(folder)
        names = os.listdir(folder)
    except OSError as error:
        return error
    for name in names:
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                with _Closing(_entered(name, folder)) as inner:
                    failed = _emptied(inner, f"{path}/{name}", device)
                if failed is not None:
                    first = first or failed
                    continue
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            first = first or OSError(error.errno, error.strerror, f"{path}/{name}")
        except RecursionError:
            first = first or OSError(f"The folders in {path!r} are nested too deeply.")
    return first


def _check(info: os.stat_result, folder: int, path: str, *, private: bool, owner: int | None = None) -> None:
    """Raise unless the entry belongs to the required user; `folder` is open: the entry itself, or its parent."""
    if info.st_uid != owner and (owner is not None or not _is_mine(info, folder)):
        expected = os.geteuid() if owner is None else owner
        raise ForeignFolderError(f"{path!r} belongs to user {info.st_uid}, not to {expected}.")
    if private and info.st_mode & 0o022:
        raise ForeignFolderError(f"Others may write to {path!r}: its mode is {stat.S_IMODE(info.st_mode):o}.")


def _entered(name: str, parent: int) -> int:
    """Open a folder in an open one, even if its owner has closed it to himself. OSError: it is a link, or no folder."""
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        if not _PATH:
            os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        else:
            with _Closing(os.open(name, _LOOK | os.O_DIRECTORY, dir_fd=parent)) as handle:
                os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(name, _FOLDER, dir_fd=parent)


def _allow(folder: int) -> None:
    """Restore the owner's rights in an open folder."""
    info = os.fstat(folder)
    if info.st_mode & 0o700 != 0o700 and is_mine(folder):
        os.fchmod(folder, 0o700)


def _is_trusted(link: os.stat_result, *, closed: bool) -> bool:
    """Return whether no other user can have made a link; `closed` if only their owners may write to all folders above it."""
    if link.st_uid in (0, os.geteuid()):
        return True
    # In a user namespace, root and all others look like one user. Where all may make folders, it may be any of them.
    return link.st_uid == os.stat("/").st_uid and closed


def _parent_of(path: str) -> tuple[int, str]:
    """Open the folder that a path is in, one folder after the other, and return its handle and the last name."""
    path = os.path.abspath(path)
    if not _PATH:
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    *waiting, last = path.split("/")[1:]
    waiting.reverse()
    folder, links, closed = os.open("/", _LOOK), 0, True
    try:
        while waiting:
            closed = closed and not os.fstat(folder).st_mode & 0o022
            name = waiting.pop()
            if name in ("", "."):
                continue
            inner = os.open(name, _LOOK, dir_fd=folder)
            info = os.fstat(inner)
            if not stat.S_ISLNK(info.st_mode):
                os.close(folder)
                folder = inner
                continue
            target = os.readlink("", dir_fd=inner)
            os.close(inner)
            links += 1
            if not _is_trusted(info, closed=closed) or links > _LINKS:
                raise ForeignFolderError(f"A link of user {info.st_uid} is on the way to {path!r}: {name!r}.")
            if target.startswith("/"):
                os.close(folder)
                folder, closed = os.open("/", _LOOK), True
            waiting += reversed(target.split("/"))
    except BaseException:
        os.close(folder)
        raise
    return folder, last
