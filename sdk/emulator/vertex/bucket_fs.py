"""The buckets of the emulator as files, which jobs see as /gcs: what is in one becomes visible in the other.

A thread compares both with what they had in synced, as long as a job runs. What a program has written becomes an object when it
closes the file; what a client has uploaded becomes a file. Whoever comes last wins.
"""

from __future__ import annotations

import mimetypes
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import PodliftError
from ..gcs.blobs import Blob, read_pieces
from ..gcs.conditions import Conditions
from ..gcs.errors import StorageApiError
from ..gcs.names import check_object
from ..gcs.state import StorageState
from . import files
from .files import FileStat, OpenForWriting
from .threads import StateThread

if TYPE_CHECKING:
    from ...process.redirect.proxy import Redirect

Key = tuple[str, str]

_POLL_S = 0.2
# A look at many files must not be all that this process does.
_SHARE = 10
# What was written later than this before a look may have been written after another file that the look has missed.
_MARGIN_S = 0.03
# Where the file system does not say whether somebody writes, a file that rests is complete.
_REST_S = 0.5


@dataclass
class _SyncedPath:
    """What objects and files had in common at the last look.

    Generation 0 stands for what is no object: a folder that is there because of what is in it, a file that cannot be one.
    """

    generation: int
    signature: tuple[int, ...]


@dataclass
class _LiveObjects:
    """The live objects at some time, and the number of changes until then."""

    changes: int = -1
    objects: dict[Key, tuple[int, str]] = field(default_factory=dict)
    buckets: list[str] = field(default_factory=list)


class BucketFs:
    """The buckets as files, in `folder`, between `join` and `leave`.

    None of its methods may be called in the thread that owns the state.

    Args:
        state: what is stored.
        thread: runs functions in the thread that owns it.
        home: a folder of this object alone; what is in it is removed.
    """

    def __init__(self, state: StorageState, thread: StateThread, home: Path) -> None:
        self._state, self._thread, home = state, thread, home.resolve()
        shutil.rmtree(home, ignore_errors=True)
        self.folder, self._staged = home / "gcs", home / "staged"
        for made in (self.folder, self._staged):
            made.mkdir(parents=True)
        self._synced: dict[Key, _SyncedPath] = {}
        self._live = _LiveObjects()
        # One look at a time; the other one is about who looks.
        self._sync_lock, self._users_lock = threading.Lock(), threading.Lock()
        self._users = 0
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None
        self._home = home
        self._redirect: Redirect | None = None

    def close(self) -> None:
        """Let go of what `redirected` needs. No job may run any more."""
        with self._users_lock:
            if self._redirect is not None:
                self._redirect.close()
                self._redirect = None

    def redirect_env(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead TensorFlow's own gs:// to the emulator, until `close`.

        Args:
            url: the emulator's; the same at every call.

        Raises:
            InputError: the proxy in this process's environment cannot be used.
        """
        # It needs `cryptography`, and nobody but jobs needs it.
        from ...process.redirect.proxy import Redirect

        with self._users_lock:
            if self._redirect is None:
                redirect = Redirect(url, self._home / "redirect", os.environ)
                redirect.start()
                self._redirect = redirect
            found = self._redirect.environment
        # Jobs have a metadata server.
        return {name: found[name] for name in found if os.environ.get(name) != found[name] and name != "NO_GCE_CHECK"}

    @property
    def buckets(self) -> list[str]:
        """The names of the buckets at the last look."""
        return list(self._live.buckets)

    def mount(self) -> None:
        """Make all objects visible, and keep them so until `leave` was called as often as this."""
        self.sync()
        with self._users_lock:
            self._users += 1
            if self._poller is None:
                self._stop = threading.Event()
                self._poller = threading.Thread(target=self._poll, args=(self._stop,), name="podlift-gcs", daemon=True)
                self._poller.start()

    def unmount(self) -> None:
        """Say that one job less needs it."""
        with self._users_lock:
            self._users -= 1
            poller = self._poller if not self._users else None
            if poller is not None:
                self._stop.set()
                self._poller = None
        if poller is not None:
            poller.join()

    def flush(self) -> None:
        """Make objects of all files that were closed before this call."""
        time.sleep(_MARGIN_S)
        self.sync()

    def sync(self) -> None:
        """Make visible on either side what is new on the other one."""
        with self._sync_lock:
            limit_ns = time.time_ns() - int(_MARGIN_S * 1e9)
            changed = self._refresh()
            here = {(bucket, name): found for bucket in self._live.buckets for name, found in self._walk(bucket)}
            written = {key for key, found in here.items() if self._is_changed(key, found)}
            for key in sorted(written, key=lambda key: here[key].changed_ns):
                if here[key].changed_ns <= limit_ns:
                    self._import_file(key, here[key])
            for key in [key for key in self._synced if key not in here]:
                self._delete_object_of(key)
            if changed:
                self._export_objects(written)
                for path in self.folder.iterdir():
                    if path.name not in self._live.buckets:
                        with suppress(OSError):  # a program has left something in it
                            path.rmdir()

    def download(self, bucket: str, name: str, target: Path) -> None:
        """Copy an object into a new file.

        Raises:
            ApiError: it is not there.
            OSError: it was deleted meanwhile.
        """
        blob = self._thread.run(lambda: self._state.get(bucket, name).blob)
        shutil.copyfile(self._state.blobs.path(blob), target)

    def _poll(self, stop: threading.Event) -> None:
        wait_s = _POLL_S
        while not stop.wait(wait_s):
            began = time.perf_counter()
            try:
                self.sync()
            except PodliftError:
                return  # nobody is left who could see it
            except Exception:
                # A look that fails must not be the last one, and a program that waits for a file shall not wait in silence.
                sys.stderr.write(f"podlift emulator: /gcs was not brought up to date.\n{traceback.format_exc()}")
            wait_s = max(_POLL_S, _SHARE * (time.perf_counter() - began))

    def _refresh(self) -> bool:
        """Learn what objects there are; False if nothing was written since."""

        def work() -> _LiveObjects | None:
            if self._state.change_count == self._live.changes:
                return None
            found = {
                (bucket, name): (generation, blob) for bucket, name, generation, blob in self._state.live_objects()
            }
            return _LiveObjects(self._state.change_count, found, [bucket.name for bucket in self._state.buckets()])

        live = self._thread.run(work)
        if live is None:
            return False
        for bucket in live.buckets:
            (self.folder / bucket).mkdir(exist_ok=True)
        self._live = live
        return True

    def _walk(self, bucket: str) -> list[tuple[str, FileStat]]:
        return list(files.walk(str(self.folder / bucket)))

    def _path(self, key: Key) -> Path:
        return self.folder / key[0] / key[1].removesuffix("/")

    def _is_changed(self, key: Key, found: FileStat) -> bool:
        synced = self._synced.get(key)
        return synced is None or synced.signature != found.signature

    # From files to objects

    def _import_file(self, key: Key, found: FileStat) -> None:
        try:
            blob = self._empty_blob() if key[1].endswith("/") else self._read(key, found)
            if blob is not None:
                made = self._commit(key, blob)
                self._synced[key] = _SyncedPath(made, found.signature)
        except OSError:
            return  # it is gone, or another one: the next look sees what it has become
        except StorageApiError as error:
            sys.stderr.write(f"podlift emulator: {'/gcs/' + '/'.join(key)!r} is no object: {error.message}\n")
            self._synced[key] = _SyncedPath(0, found.signature)

    def _read(self, key: Key, found: FileStat) -> Blob | None:
        with files.open_with_lease(self._path(key)) as (handle, writing):
            about = os.fstat(handle)
            resting = about.st_ctime_ns <= time.time_ns() - int(_REST_S * 1e9)
            if (
                writing is OpenForWriting.YES
                or (writing is OpenForWriting.UNKNOWN and not resting)
                or files.signature(about) != found.signature
            ):
                return None
            writer = self._state.blobs.create()
            try:
                for piece in read_pieces(handle, 0, about.st_size):
                    writer.write(piece)
            except BaseException:
                writer.discard()
                raise
            return writer.finish()

    def _empty_blob(self) -> Blob:
        return self._state.blobs.create().finish()

    def _commit(self, key: Key, blob: Blob) -> int:
        kind = mimetypes.guess_type(key[1])[0] or "application/octet-stream"

        def work() -> int:
            made = self._state.commit(*key, blob, {"contentType": kind})
            self._live.objects[key] = made.generation, made.blob
            return made.generation

        try:
            check_object(key[1])
            return self._thread.run(work)
        except BaseException:
            self._state.blobs.remove(blob.id)
            raise

    def _delete_object_of(self, key: Key) -> None:
        """Delete the object of a file that a program has removed."""
        path, synced = self._path(key), self._synced[key]
        if os.path.lexists(path) and path.is_dir() == key[1].endswith("/"):
            return  # it was somewhere else while the folders were read
        del self._synced[key]
        generation = self._live.objects.get(key, (0, ""))[0]
        if generation and generation != synced.generation:
            self._live.changes = -1  # a client has written another one meanwhile, which is to be seen
        elif generation:
            self._thread.run(lambda: self._delete(key, generation))
            del self._live.objects[key]

    def _delete(self, key: Key, generation: int) -> None:
        with suppress(StorageApiError):  # somebody was quicker, or has written another one
            found = self._state.get(*key, conditions=Conditions(generation=generation), reading=False)
            self._state.delete(found, permanently=False)

    # From objects to files

    def _export_objects(self, written: set[Key]) -> None:
        live = self._live.objects
        for key in [key for key, synced in self._synced.items() if synced.generation and key not in live]:
            if key not in written:
                self._remove_file(key)
        for key in sorted(live):
            synced = self._synced.get(key)
            if key not in written and (synced is None or synced.generation != live[key][0]) and files.is_path(key[1]):
                self._write_file(key, *live[key])

    def _write_file(self, key: Key, generation: int, blob: str) -> None:
        top, path = self.folder / key[0], self._path(key)
        try:
            for made in files.make_parents(top, key[1]):
                self._synced[key[0], made] = _SyncedPath(0, ())
            if key[1].endswith("/"):
                path.mkdir(exist_ok=True)
                self._synced[key] = _SyncedPath(generation, ())
            elif files.is_written(path):
                self._live.changes = -1  # look again, although nothing else may be written
            else:
                signature = files.replace_file(self._state.blobs.path(blob), self._staged / blob, path)
                self._synced[key] = _SyncedPath(generation, signature)
        except OSError:
            return  # deleted meanwhile, or a file and a folder have the same name: the first one is seen

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
        """Remove a folder that was there only because of what was in it, and those above."""
        while folder != "/":
            synced = self._synced.get((bucket, folder))
            if synced is None or synced.generation:
                return
            try:
                self._path((bucket, folder)).rmdir()
            except OSError:
                return  # something is in it
            del self._synced[bucket, folder]
            folder = folder.removesuffix("/").rpartition("/")[0] + "/"
