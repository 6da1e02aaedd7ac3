"""A recent copy of the state in the memory of this machine, for the attempt that follows a kill.

It is written like a checkpoint, in a store of its own below /dev/shm, and never instead of one: it is gone with the machine
and the supervisor. The lease in that store repeats the one of the checkpoints. So the copy is only used by the attempt that
directly follows the one that wrote or inherited it, and another boot, run or machine can have left nothing that matches.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, MissingError, PodliftError
from ..logs import logger
from ..process import free_memory
from ..spec.policies import Checkpoints
from ..storage import folders
from ..storage.posix_store import PosixStore
from . import names, opening, restore
from .commit import SaveLimits
from .opening import Lease, Opening, OpenStore
from .policy import Waits, due_in_memory, training_cost_s
from .saver import AsyncSaver, Ticket

_log = logger("checkpoint")

SHARED_MEMORY = "/dev/shm"  # noqa: S108
# A new copy is complete before the old one is removed; the state in the training is a third one.
_COPIES, _COPIES_WITH_STATE = 2, 3
# What stays for the program, which may share memory between processes of its own and dies if there is none.
_SPARE, _SPARE_SHARE = 16 << 20, 0.25
_LIMITS = SaveLimits(receipts_s=20.0)
# Holds the folder for temporary files that the copy belongs to. Copies whose folder is gone were left by something that was
# killed with its janitor, as a container is; one that shares this memory, but not its folders, still changes its copy.
_OWNER = "OWNER"
_LEFT_S = 3600.0


def folder_of(temporary: str, top: str = SHARED_MEMORY) -> str:
    """Return the folder in memory that belongs to a folder for temporary files; the janitor computes the same."""
    return f"{top}/podlift-{os.geteuid()}/{hashlib.sha256(temporary.encode()).hexdigest()[:24]}"


def left_behind(now: float, top: str = SHARED_MEMORY) -> list[Path]:
    """Return the copies of this user that belong to nothing any more, and have not changed for an hour."""
    return [
        folder
        for folder, owner in _owned(top)
        if not (owner and os.path.isdir(owner)) and now - folders.extent(folder)[1] >= _LEFT_S
    ]


def remove_those_of(inside: str, top: str = SHARED_MEMORY) -> None:
    """Remove the copies whose folders for temporary files are, or were, inside this one."""
    for folder, owner in _owned(top):
        if owner and os.path.realpath(owner).startswith(f"{os.path.realpath(inside)}/"):
            shutil.rmtree(folder, ignore_errors=True)


def _owned(top: str) -> list[tuple[Path, str]]:
    """Return the folders of copies of this user, and whose each is; "" if that is not known."""
    found = []
    with suppress(OSError):
        for folder, info in folders.entries(Path(f"{top}/podlift-{os.geteuid()}")):
            if stat.S_ISDIR(info.st_mode):
                owner = ""
                with suppress(OSError, ValueError):
                    owner = (folder / _OWNER).read_text()
                found.append((folder, owner))
    return found


class RecentCopy:
    """The copy of one task in one attempt. No method raises: without it, the training has its checkpoints.

    `temporary` is the folder for temporary files that it belongs to.
    """

    def __init__(
        self, folder: str, record: Callable[[float], None] = lambda every_s: None, *, temporary: str = ""
    ) -> None:
        self.folder, self._record, self._temporary = folder, record, temporary
        self.store = PosixStore(folder, cached=True)
        self._saver: AsyncSaver | None = None
        self._since: float | None = None
        self._told_s = 0.0
        self._waits, self._blobs = Waits(), 0

    @property
    def is_on(self) -> bool:
        return self._saver is not None

    def newest(self, lease: Lease, run_id: str) -> restore.Checkpoint | None:
        """Return the copy that the attempt directly before this lease left; None for none. For the first task."""
        try:
            _check(self.folder)
            left = opening.decode_lease(self.store.get(names.LEASE))
            if left.epoch != lease.epoch - 1:
                return None
            return restore.newest(self.store, run_id=run_id)
        except (MissingError, FileNotFoundError):
            return None
        except (PodliftError, OSError) as error:
            _log.info(f"The copy of the state in memory is not used. {error}")
            return None

    def begin(self, opened: OpenStore) -> None:
        """Write copies from now on. The first task makes the folder, without what does not belong to this attempt."""
        if opened.info.rank == 0:
            try:
                for left in left_behind(opened.env.clock.now()):
                    shutil.rmtree(left, ignore_errors=True)
                self._take_over(opened.opening, opened.info.task)
            except (PodliftError, OSError) as error:
                _log.info(f"The state is not copied to memory: {error}")
                return
        policy = Checkpoints(every_s=None, keep_last=1)
        own = replace(opened.opening, commit=None, manifest=None)
        env = replace(opened.env, saved=lambda step: None)
        self._saver = AsyncSaver(
            replace(opened, store=self.store, opening=own, policy=policy, env=env), _LIMITS, what="copy in memory"
        )

    def _take_over(self, chosen: Opening, task: str) -> None:
        if not chosen.memory:
            self.remove()
        _make(self.folder)
        _check(self.folder)
        Path(self.folder, _OWNER).write_text(self._temporary)
        opening.put_lease(self.store, Lease(epoch=chosen.epoch, nonce=chosen.nonce, holder=task, taken_at=0.0))

    def is_due(self, now: float, size: int) -> bool:
        """True if a copy is to be made now, `now` on the clock of the training. For the first task."""
        saver = self._saver
        if saver is not None and saver.error is not None:
            self._stop(f"The state is no longer copied to memory. {saver.error}")
        if saver is None or self._saver is None:
            return False
        if self._since is None:
            # The first step compiles the training.
            self._since = now
        cpu_s = self._waits.added_to(saver.cpu_s)
        cost_s = None if cpu_s is None else training_cost_s(cpu_s, size)
        every_s = due_in_memory(size, cost_s)
        if saver.busy or now - self._since < every_s:
            return False
        self._since = now
        if not self._has_room(size + self._blobs):
            return False
        if not 0.5 < self._told_s / every_s < 2 and cost_s is not None:
            self._told_s = every_s
            with suppress(OSError):  # of a full disk
                self._record(every_s)
        return True

    def waited(self, seconds: float) -> None:
        """Note how long the training waited for the state that is copied next."""
        self._waits.add(seconds)

    def saved(self, now: float) -> None:
        """Note that a checkpoint was saved, which makes a copy of the same state pointless."""
        if self._since is not None:
            self._since = now

    def save(self, contents: Any, *, step: int, position: Any, downgrades: tuple[str, ...]) -> Ticket | None:
        """Begin to copy a state. Every task calls this at the same step."""
        if self._saver is None:
            return None
        try:
            self._blobs = sum(map(len, contents.blobs.values())) * len(self._saver.opened.info.tasks)
            _check(self.folder)  # the first task may have made it after the others began
            return self._saver.save(contents, step=step, position=position, downgrades=downgrades)
        except (PodliftError, OSError) as error:
            self._stop(f"The state is no longer copied to memory. {error}")
            return None

    def close(self) -> None:
        """End the threads without waiting for a copy in progress; the last complete one stays."""
        if self._saver is not None:
            with suppress(PodliftError):
                self._saver.close(0.0)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _has_room(self, size: int) -> bool:
        try:
            room = os.statvfs(self.folder)
            free, spare = room.f_bavail * room.f_frsize, int(_SPARE_SHARE * room.f_blocks * room.f_frsize)
        except OSError:
            free = spare = 0
        wanted, held = _COPIES * size + max(spare, _SPARE), self._held()
        if free + held < wanted:
            self._stop(f"The state is not copied to memory: {self.folder} has room for {free:,} bytes of {wanted:,}.")
        # In a container these files count as memory.
        elif free_memory.is_short(_COPIES_WITH_STATE * size - held, free_memory.available()):
            self._stop(f"The state is not copied to memory, which is short: the state has {size / 1e6:.0f} MB.")
        return self._saver is not None

    def _held(self) -> int:
        try:
            return sum(found.size for found in self.store.list(names.DATA))
        except PodliftError:
            return 0

    def _stop(self, sentence: str) -> None:
        _log.info(sentence)
        self._saver = None
        self.remove()


def _make(folder: str) -> None:
    for each in (os.path.dirname(folder), folder):
        with suppress(FileExistsError):
            os.mkdir(each, 0o700)


def _check(folder: str) -> None:
    """Return if a folder belongs to this user alone, or raise CheckpointError."""
    for each in (os.path.dirname(folder), folder):
        found = os.lstat(each)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
            raise CheckpointError(f"{each} is not a folder of this user alone. Next: remove it.")
