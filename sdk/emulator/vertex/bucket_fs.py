"""The buckets as a file system, which jobs see as /gcs: a change on one side becomes visible on the other.

While a job runs, a thread compares both sides with their last common state. A program's file becomes an object when the program
closes it; an uploaded object becomes a file. The last writer wins. On a busy machine the thread may be seconds late: a list of
objects does not wait for it (`catch_up`).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import mimetypes
import os
import shutil
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...errors import PodliftError
from ...storage import own_folders
from ..gcs.blobs import Blob, read_pieces
from ..gcs.bodies import check_object
from ..gcs.conditions import Conditions
from ..gcs.errors import StorageApiError
from ..gcs.state import StorageState

_MAX_PART_BYTES = 255
T = TypeVar("T")
# Bucket and name of an object.
Key = tuple[str, str]
_ALIVE_S = 1.0
_POLL_S = 0.2
# Syncs of many files take at most one tenth of the time.
_SHARE = 10
# A file written within this time before a sync may be newer than another one that the sync has missed.
_MARGIN_S = 0.03
# If the file system cannot tell whether a file is open for writing, one that was not changed for this long is complete.
_REST_S = 0.5


@dataclass(frozen=True)
class FileStat:
    """A file, or a folder if its name ends with a slash."""

    signature: tuple[int, ...]  # Changes with every write; () for a folder
    changed_ns: int  # When it was last written or renamed. Programs can set all other times.


def walk(top: str, prefix: str = "") -> Iterator[tuple[str, FileStat]]:
    """Yield all files and folders below a folder by their relative names; no links, and no names that are not UTF-8."""
    try:
        entries = list(os.scandir(top))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = prefix + entry.name
        with suppress(FileNotFoundError, UnicodeEncodeError):
            name.encode()
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                yield name, FileStat(signature(about), about.st_ctime_ns)
            elif stat.S_ISDIR(about.st_mode):
                yield f"{name}/", FileStat((), about.st_ctime_ns)
                yield from walk(entry.path, f"{name}/")


def signature(about: os.stat_result) -> tuple[int, ...]:
    return about.st_ino, about.st_size, about.st_mtime_ns


def is_path(name: str) -> bool:
    parts = name.removesuffix("/").split("/")
    return "\0" not in name and all(
        part not in ("", ".", "..") and len(part.encode()) <= _MAX_PART_BYTES for part in parts
    )


@contextmanager
def open_with_lease(path: Path) -> Iterator[tuple[int, bool | None]]:
    """Open a file; yield it and whether a program has it open for writing, None if this file system cannot tell.

    If none has, the kernel lets no program open it for writing before the block ends.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield handle, _is_written(handle)
    finally:
        os.close(handle)


def _is_written(handle: int) -> bool | None:
    if not hasattr(fcntl, "F_SETLEASE"):
        return None
    try:
        # A program that opens it for writing waits for us. The default signal about that would end this process, not SIGURG.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    return False


def make_parents(top: Path, name: str) -> list[str]:
    new_folders, folder = [], ""
    for part in name.removesuffix("/").split("/")[:-1]:
        folder += f"{part}/"
        try:
            (top / folder).mkdir()
            new_folders.append(folder)
        except FileExistsError:
            # Through a link a job could write anywhere on the machine.
            if not stat.S_ISDIR(os.lstat(top / folder.removesuffix("/")).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(top / folder)) from None
    return new_folders


def replace_file(source: Path, staged: Path, target: Path) -> tuple[int, ...]:
    """Replace a file by a copy of another one, atomically; open readers keep the old one. Return its signature."""
    try:
        # Never a link: a program may write into the file.
        shutil.copyfile(source, staged)
        staged.chmod(0o644)
        about = staged.stat()
        staged.rename(target)
    finally:
        staged.unlink(missing_ok=True)
    return signature(about)


if TYPE_CHECKING:
    from ...process.redirect.proxy import Redirect


class StateThread:
    """Runs functions in the thread that owns the stored state, the thread of an event loop. For all other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Callable[[], T]) -> T:
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False  # this thread has no loop
        if is_here:
            raise RuntimeError("A function that waits for the emulator's state was called in the thread that owns it.")
        future: Future[T] = Future()

        # A callback and no task: the end of the loop cancels tasks.
        def step() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # raised in the caller's thread
                future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(step)
        except RuntimeError:
            raise PodliftError("The emulator has ended.") from None
        while True:
            try:
                return future.result(_ALIVE_S)
            except NotYetError:
                if not self._loop.is_running():
                    raise PodliftError("The emulator has ended.") from None


@dataclass
class _SyncedPath:
    """The last common state of an object and its file.

    Generation 0 means that there is no object: an implicit folder, or a file that cannot be an object.
    """

    generation: int
    signature: tuple[int, ...]


@dataclass
class _LiveObjects:
    """The live objects, and the change count at which they were read."""

    changes: int = -1
    objects: dict[Key, tuple[int, str]] = field(default_factory=dict)
    buckets: list[str] = field(default_factory=list)


class BucketFs:
    """The buckets as files in `folder`, between `mount` and `unmount`.

    None of its methods may be called in the thread that owns the state. `home` is a folder of this object alone.
    """

    def __init__(self, state: StorageState, thread: StateThread, home: Path) -> None:
        # Before links are resolved: links of other users are refused.
        with suppress(FileNotFoundError):
            own_folders.remove(str(home), private=False)
        self._state, self._thread, self._home = state, thread, home.resolve()
        self.folder, self._staged = self._home / "gcs", self._home / "staged"
        for folder in (self.folder, self._staged):
            folder.mkdir(parents=True)
        self._synced: dict[Key, _SyncedPath] = {}
        self._live = _LiveObjects()
        # For one sync at a time, and for the users of the poller.
        self._sync_lock, self._users_lock = threading.Lock(), threading.Lock()
        self._users = 0
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None
        self._redirect: Redirect | None = None

    def close(self) -> None:
        with self._users_lock:
            if self._redirect is not None:
                self._redirect.close()
                self._redirect = None

    def redirect_env(self, url: str) -> Mapping[str, str]:
        """Return the variables that redirect TensorFlow's own gs:// to the emulator at `url`, until `close`."""
        # It imports `cryptography`, which only jobs need.
        from ...process.redirect.proxy import Redirect

        with self._users_lock:
            if self._redirect is None:
                redirect = Redirect(url, self._home / "redirect", os.environ)
                redirect.start()
                self._redirect = redirect
            variables = self._redirect.environment
        # Without NO_GCE_CHECK: jobs have a metadata server.
        return {
            name: text for name, text in variables.items() if os.environ.get(name) != text and name != "NO_GCE_CHECK"
        }

    @property
    def buckets(self) -> list[str]:
        return list(self._live.buckets)

    def mount(self) -> None:
        """Make all objects visible as files until `unmount` was called as often as this."""
        self.sync()
        with self._users_lock:
            self._users += 1
            if self._poller is None:
                self._state.catch_up = self.catch_up
                self._stop = threading.Event()
                self._poller = threading.Thread(target=self._poll, args=(self._stop,), name="podlift-gcs", daemon=True)
                self._poller.start()

    def unmount(self) -> None:
        with self._users_lock:
            self._users -= 1
            if self._users or self._poller is None:
                return
            self._stop.set()
            self._state.catch_up = None
            poller, self._poller = self._poller, None
        poller.join()

    def flush(self) -> None:
        time.sleep(_MARGIN_S)
        self.sync()

    def catch_up(self) -> None:
        """Make objects of all files that a program has closed by now, however long the thread takes to look again."""
        with suppress(PodliftError):  # the emulator has ended
            if not self.sync():
                self.flush()

    def sync(self) -> bool:
        """Make the changes of each side visible on the other one; False if a file was too new to become an object."""
        complete = True
        with self._sync_lock:
            limit_ns = time.time_ns() - int(_MARGIN_S * 1e9)
            changed = self._refresh()
            here = {
                (bucket, name): file for bucket in self._live.buckets for name, file in walk(str(self.folder / bucket))
            }
            old = {key: synced.signature for key, synced in self._synced.items()}
            written = {key for key, file in here.items() if old.get(key) != file.signature}
            for key in sorted(written, key=lambda key: here[key].changed_ns):
                if here[key].changed_ns <= limit_ns:
                    self._import_file(key, here[key])
                else:
                    complete = False
            for key in [key for key in self._synced if key not in here]:
                self._delete_object_of(key)
            if changed:
                self._export_objects(written)
                for path in self.folder.iterdir():
                    if path.name not in self._live.buckets:
                        with suppress(OSError):  # it is not empty
                            path.rmdir()
        return complete

    def download(self, bucket: str, name: str, target: Path) -> None:
        blob = self._thread.run(lambda: self._state.get(bucket, name).blob)
        shutil.copyfile(self._state.blobs.path(blob), target)

    def _poll(self, stop: threading.Event) -> None:
        wait_s = _POLL_S
        while not stop.wait(wait_s):
            began = time.perf_counter()
            try:
                self.sync()
            except PodliftError:
                return  # the emulator has ended
            except Exception:
                # A failed sync must not be the last one, and a program that waits for a file must not wait silently.
                sys.stderr.write(f"podlift emulator: /gcs was not brought up to date.\n{traceback.format_exc()}")
            wait_s = max(_POLL_S, _SHARE * (time.perf_counter() - began))

    def _refresh(self) -> bool:
        """Read the live objects again; False if nothing was written since."""

        def work() -> _LiveObjects | None:
            if self._state.change_count == self._live.changes:
                return None
            live = {(bucket, name): (number, blob) for bucket, name, number, blob in self._state.live_objects()}
            return _LiveObjects(self._state.change_count, live, [bucket.name for bucket in self._state.buckets()])

        live = self._thread.run(work)
        if live is None:
            return False
        for bucket in live.buckets:
            (self.folder / bucket).mkdir(exist_ok=True)
        self._live = live
        return True

    def _path(self, key: Key) -> Path:
        return self.folder / key[0] / key[1].removesuffix("/")

    # From files to objects

    def _import_file(self, key: Key, about: FileStat) -> None:
        try:
            blob = self._state.blobs.writer().finish() if key[1].endswith("/") else self._read(key, about)
            if blob is not None:
                generation = self._commit(key, blob)
                self._synced[key] = _SyncedPath(generation, about.signature)
        except OSError:
            return  # removed or replaced: the next sync sees the new state
        except StorageApiError as error:
            sys.stderr.write(f"podlift emulator: {'/gcs/' + '/'.join(key)!r} cannot be an object: {error.message}\n")
            self._synced[key] = _SyncedPath(0, about.signature)

    def _read(self, key: Key, earlier: FileStat) -> Blob | None:
        with open_with_lease(self._path(key)) as (handle, writing):
            about = os.fstat(handle)
            if writing is None:
                writing = about.st_ctime_ns > time.time_ns() - int(_REST_S * 1e9)
            if writing or signature(about) != earlier.signature:
                return None
            with self._state.blobs.writer() as writer:
                for piece in read_pieces(handle, 0, about.st_size):
                    writer.write(piece)
                return writer.finish()

    def _commit(self, key: Key, blob: Blob) -> int:
        kind = mimetypes.guess_type(key[1])[0] or "application/octet-stream"

        def work() -> int:
            new_object = self._state.commit(*key, blob, {"contentType": kind})
            self._live.objects[key] = new_object.generation, new_object.blob
            return new_object.generation

        with self._state.blobs.removed_on_error(blob):
            check_object(key[1])
            return self._thread.run(work)

    def _delete_object_of(self, key: Key) -> None:
        path, synced = self._path(key), self._synced[key]
        if os.path.lexists(path) and path.is_dir() == key[1].endswith("/"):
            return  # it was moved while the folders were read
        del self._synced[key]
        generation = self._live.objects.get(key, (0, ""))[0]
        if generation and generation != synced.generation:
            self._live.changes = -1  # a client has written a newer one, which has to become visible
        elif generation:
            self._thread.run(lambda: self._delete(key, generation))
            del self._live.objects[key]

    def _delete(self, key: Key, generation: int) -> None:
        with suppress(StorageApiError):  # it was deleted or replaced meanwhile
            record = self._state.get(*key, conditions=Conditions(generation=generation), reading=False)
            self._state.delete(record, permanently=False)

    # From objects to files

    def _export_objects(self, written: set[Key]) -> None:
        live = self._live.objects
        for key in [key for key, synced in self._synced.items() if synced.generation and key not in live]:
            if key not in written:
                self._remove_file(key)
        for key in sorted(live):
            synced = self._synced.get(key)
            if key not in written and (synced is None or synced.generation != live[key][0]) and is_path(key[1]):
                self._write_file(key, *live[key])

    def _write_file(self, key: Key, generation: int, blob: str) -> None:
        top, path = self.folder / key[0], self._path(key)
        try:
            for parent in make_parents(top, key[1]):
                self._synced[key[0], parent] = _SyncedPath(0, ())
            if key[1].endswith("/"):
                path.mkdir(exist_ok=True)
                self._synced[key] = _SyncedPath(generation, ())
            elif self._is_open(path):
                self._live.changes = -1  # sync again, even if nothing else is written
            else:
                signature = replace_file(self._state.blobs.path(blob), self._staged / blob, path)
                self._synced[key] = _SyncedPath(generation, signature)
        except OSError:
            return  # deleted meanwhile, or a file and a folder have the same name: the first one is visible

    def _is_open(self, path: Path) -> bool:
        try:
            with open_with_lease(path) as (_, writing):
                return writing is True
        except OSError:
            return False

    def _remove_file(self, key: Key) -> None:
        path, synced = self._path(key), self._synced[key]
        if key[1].endswith("/"):
            synced.generation = 0
            self._remove_implicit_folders(key[0], key[1])
            return
        path.unlink(missing_ok=True)
        del self._synced[key]
        self._remove_implicit_folders(key[0], key[1].rpartition("/")[0] + "/")

    def _remove_implicit_folders(self, bucket: str, folder: str) -> None:
        """Remove a folder that existed only because of its contents, and such folders above it."""
        while folder != "/":
            synced = self._synced.get((bucket, folder))
            if synced is None or synced.generation:
                return
            try:
                self._path((bucket, folder)).rmdir()
            except OSError:
                return  # it is not empty
            del self._synced[bucket, folder]
            folder = folder.removesuffix("/").rpartition("/")[0] + "/"
