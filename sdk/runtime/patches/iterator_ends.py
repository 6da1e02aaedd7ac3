"""Releases iterators of tf.data in another thread: their end may wait for one that sleeps.

A thread of each iterator tunes its input, first after 10 ms and then after twice as long each time, up to a minute. The end
wakes it, and then sets the flag that it checks (`CancellationManager::StartCancel` runs the callbacks first). If it checks too
early, it sleeps again, and the end waits for it. The buffers are freed before that. At the end of the process no other thread
can do it: Python aborts if one returns from C++ then. There, podlift lets a woken thread run only when the end waits for it.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from . import Function, Patch, around, version

# An end that has neither run nor been woken for so long waits for the sleeping thread, and has freed everything else.
_STILL_S = 0.1
_POLL_S = 0.01
# The last release of TensorFlow that is known to wait: tests/runtime/test_iterator_ends.py.
_LAST = (2, 21)
_OWNED, _DEVICES = "tensorflow.python.data.ops.iterator_ops", "tensorflow.python.data.ops.multi_device_iterator_ops"
_PYTHON = "tensorflow.python.ops.script_ops"
# Their unfinished iterators hold a lock file until they end.
_WRITERS = ("CacheDataset", "_SnapshotDataset")
# References to an iterator of several devices: the data sets of its devices are garbage only in the next collection.
_CAPTURED = ("_variant_tensor_attr", "_init_captured_args", "_next_captured_args", "_finalize_captured_args")
_KEY = "_podlift_end"


def patches() -> list[Patch]:
    why = "the end of an iterator waits for a sleeping thread of tf.data"
    changes = {_OWNED: _RELEASER.owned, _DEVICES: _RELEASER.of_devices}
    # Before the exit handlers of the program, so that it is called after them.
    atexit.register(_RELEASER.go_first)
    return [
        Patch(name="iterator-ends", why=why, module=module, applies=_applies, apply=change, quiet=True)
        for module, change in changes.items()
    ]


def leave_waiting() -> None:
    """Let this process exit without a wait for iterators that are being released: it will end by `os._exit`."""
    _RELEASER.waits = False


def settle() -> None:
    """Wait for dropped iterators, but not for a sleeping thread."""
    _RELEASER.settle()


def _applies(module: ModuleType) -> bool:
    from tensorflow.python.framework.versions import VERSION

    return version(VERSION) <= _LAST


class _Resources:
    """What an iterator owns."""

    def __init__(self, link: weakref.ref[Any], parts: list[Any], devices: Sequence[Any]) -> None:
        self.link = link
        self.parts = parts
        self.devices = devices
        self.thread = 0
        self.ended = _locked()

    def release(self) -> None:
        self.thread = threading.get_native_id()
        try:
            with contextlib.suppress(Exception):  # the attributes are TensorFlow's
                self.parts.extend(_parts(self.devices))
            self.devices = ()
            while self.parts:
                self.parts.pop()
        finally:
            self.ended.release()

    def settle(self) -> None:
        """Return when this has ended or only waits for a sleeping thread; where that is unknown, when it has ended."""
        state, since = None, time.monotonic()
        while not self.ended.acquire(timeout=_POLL_S):
            now, was = time.monotonic(), state
            state = _sleeping(self.thread)
            if state is None or state != was:
                since = now
            elif now - since >= _STILL_S:
                return
        self.ended.release()


class _Releaser:
    """Drops the resources of iterators in threads.

    An iterator reports its end by a function of C: a destructor in Python would lose the exception of a signal's handler
    that runs in it.
    """

    def __init__(self) -> None:
        self.waits = True
        # The process that has made iterators, and the one that releases them in threads.
        self._user = self._pid = 0
        self._over = False
        # Each of these changes in one step.
        self._dropped: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._resources: dict[int, _Resources] = {}
        self._ending: set[_Resources] = set()
        self._recent: list[_Resources] = []

    def owned(self, module: ModuleType) -> None:
        @around(module.OwnedIterator, "_create_iterator")
        def create(original: Function, iterator: Any, dataset: Any) -> None:
            self._user = os.getpid()
            self.settle()
            original(iterator, dataset)
            with contextlib.suppress(Exception):
                if self._may_own(module, dataset):
                    # The data set goes first: the iterator may wait, and needs it only for functions of Python.
                    self._own(iterator, [vars(iterator)["_iterator_resource"], dataset])

    def of_devices(self, module: ModuleType) -> None:
        @around(module.OwnedMultiDeviceIterator, "__init__")
        def create(original: Function, iterator: Any, dataset: Any = None, *args: Any, **options: Any) -> None:
            self._user = os.getpid()
            self.settle()
            original(iterator, dataset, *args, **options)
            with contextlib.suppress(Exception):
                if dataset is not None and self._may_own(module, dataset):
                    devices = list(vars(iterator)["_device_iterators"])
                    for device in devices:
                        self._resources.pop(vars(device).pop(_KEY, 0), None)
                    self._own(iterator, [vars(iterator)["_multi_device_iterator_resource"]], devices)

    def _may_own(self, module: ModuleType, dataset: Any) -> bool:
        if self._over or not module.context.executing_eagerly():  # the iterator of a function ends with each call of it
            return False
        # The program may rely on its functions not running, and on its generators being closed, once the iterator is gone.
        if _PYTHON in sys.modules and sys.modules[_PYTHON]._py_funcs.size():
            return False
        return not _writes(dataset) and (self._pid == os.getpid() or self._start())

    def _own(self, iterator: Any, parts: list[Any], devices: Sequence[Any] = ()) -> None:
        link = weakref.ref(iterator, self._dropped.put)
        self._resources[id(link)] = _Resources(link, parts, devices)
        vars(iterator)[_KEY] = id(link)

    def _start(self) -> bool:
        """Return whether this process can release in threads."""
        self._keep()
        fresh = _Releaser()
        try:
            # Before the threads of executors are joined, exit handlers run and modules are taken down.
            threading._register_atexit(self._finish)  # type: ignore[attr-defined]
            self._dropped, self._resources = fresh._dropped, fresh._resources
            self._ending, self._recent = fresh._ending, fresh._recent
            threading.Thread(target=self._serve, name="podlift-iterator-ends", daemon=True).start()
        except RuntimeError:  # no thread is left, or the process is ending
            return False
        self._pid = os.getpid()
        return True

    def _keep(self) -> None:
        """In a forked child, never end iterators of the parent: their threads are not here."""
        for container in (self._resources, self._ending, self._recent, self._dropped) if self._pid else ():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(container))

    def _serve(self) -> None:
        while (entry := self._dropped.get()) is not None:
            if isinstance(entry, _thread.LockType):
                entry.release()
            elif (resources := self._resources.pop(id(entry), None)) is not None:
                self._ending.add(resources)
                self._recent.append(resources)
                try:
                    # Each waits as long as its iterator has lived, at most.
                    threading.Thread(target=self._release, args=(resources,), daemon=True).start()
                except Exception:  # no thread is left
                    self._release(resources)

    def _release(self, resources: _Resources) -> None:
        resources.release()
        self._ending.discard(resources)

    def settle(self) -> None:
        """Wait for dropped iterators, so that the next one finds its files closed and its buffers freed."""
        if self._pid != os.getpid() or self._over or (self._dropped.empty() and not self._recent):
            return
        self._pass().acquire(timeout=1)
        recent, self._recent = self._recent, []
        for resources in recent:
            if resources.thread != threading.get_native_id():
                resources.settle()

    def go_first(self) -> None:
        """Let this thread end the remaining iterators: the threads that it wakes run when it waits, on the same processor."""
        if self._user != os.getpid() or not hasattr(os, "SCHED_BATCH"):
            return
        own = threading.get_native_id()
        with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel that does not report it
            cpu = _processor_of(own)
            for thread in map(int, os.listdir("/proc/self/task")):
                with contextlib.suppress(OSError):  # it has ended, or a sandbox forbids it
                    if thread != own:
                        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
                    os.sched_setaffinity(thread, {cpu})

    def _pass(self) -> _thread.LockType:
        """Return a lock that is free when the thread has begun with all that was dropped."""
        lock = _locked()
        self._dropped.put(lock)
        return lock

    def _finish(self) -> None:
        if self._pid != os.getpid():
            self._keep()
        # A child that was forked calls it twice.
        if self._pid != os.getpid() or self._over or not self.waits:
            return
        self._over = True
        interrupted = _wait(self._pass())
        # Recently dropped iterators are released by now; living iterators own their resources.
        self._resources.clear()
        self._dropped.put(None)
        for resources in self._ending.copy():
            interrupted = _wait(resources.ended) or interrupted
        if interrupted is not None:
            raise interrupted


def _locked() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def _wait(lock: _thread.LockType) -> BaseException | None:
    """Wait for a lock to be free; return the exception that a signal's handler has raised meanwhile."""
    raised = None
    while True:
        try:
            lock.acquire()
        except BaseException as error:
            raised = error
        else:
            lock.release()
            return raised


def _processor_of(thread: int) -> int:
    """Return the processor on which a thread of this process ran last."""
    with open(f"/proc/self/task/{thread}/stat", errors="replace") as file:
        # The name of the thread comes second, in parentheses, and may hold anything.
        return int(file.read().rpartition(")")[2].split()[36])


def _sleeping(thread: int) -> str | None:
    """Return how often a thread of this process has run until it began to sleep, or None if it runs."""
    try:
        with open(f"/proc/self/task/{thread}/status", errors="replace") as file:  # its name may be no text
            lines = [line for line in file if line.startswith(("State:", "voluntary", "nonvoluntary"))]
    except OSError:
        return None
    return "".join(lines) if len(lines) == 3 and "\tS" in lines[0] else None


def _writes(dataset: Any) -> bool:
    if type(dataset).__name__ in _WRITERS:
        name = getattr(dataset, "_filename", None)
        return name is None or name.numpy() != b""
    return any(map(_writes, getattr(dataset, "_inputs", list)()))


def _parts(devices: Sequence[Any]) -> Iterator[Any]:
    """Take out the references that keep an iterator of several devices alive."""
    for device in devices:
        yield vars(device).pop("_iterator_resource", None)
        dataset = vars(device).get("_dataset")
        while dataset is not None:
            yield [vars(dataset).pop(name, None) for name in _CAPTURED]
            dataset = vars(dataset).get("_input_dataset")


_RELEASER = _Releaser()
