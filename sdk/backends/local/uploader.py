"""The uploader: a process that copies a run to its bucket, from its submit until all of it is there.

It is not a child of the supervisor. It can reach the network if the tasks cannot, it is not killed together with their
descendants, and it uploads the rest after the supervisor was killed. If it is killed itself, its watchdog starts another
one; if both are killed, the next client on this machine does. Its only state is the content of the bucket.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from ... import logs
from ...clock import Clock, SystemClock
from ...errors import AccessError, ConflictError, PodliftError
from ...job.layout import RunPaths
from ...job.plan import Plan
from ...process import spawn
from ...process.janitor_watch import end_leftovers, is_supervised
from ...records.plans import read_plan
from ...records.recorder import has_ended, is_uploaded, known_resumes
from ...records.sync.cancels import CancelWatch
from ...records.sync.index import KEYS, SYNC_RETRY
from ...records.sync.push import PeriodicAction, PeriodicThread, Pusher, is_uploading
from ...storage import emulator, posix
from ...storage.locking import file_lock
from ...storage.retry import Retries
from ..folder import request_cancel
from . import watchdog

_log = logs.logger("backends.local")
_POLL_S = 0.25
_HEARTBEAT_S, _CANCEL_REQUESTS_S = 10.0, 2.0
# After the end of the run, uploads are retried for this long. The next client continues.
_GIVE_UP_S = 900.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_uploaders: list[subprocess.Popen[bytes]] = []


def start(plan: Plan) -> None:
    """Start an uploader and its watchdog. While another one is running, it waits, and exits if nothing is left to upload."""
    paths = plan.paths
    for process in [one for one in list(_uploaders) if one.poll() is not None]:
        with suppress(ValueError):  # another thread was faster
            _uploaders.remove(process)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).absolute().parents[3])}
    # Started by path: that keeps the watchdog tiny.
    command = [sys.executable, "-I", "-S", watchdog.__file__]
    command += [sys.executable, "-m", "sdk.backends.local.uploader", paths.url]
    _uploaders.append(spawn.spawn(command, env=env, cwd=paths.url, log=paths.sync_log))


def is_active(paths: RunPaths) -> bool:
    """True while an uploader of the run works, or may be about to begin if this process started it."""
    ours = [process for process in list(_uploaders) if str(process.args).endswith(f"{paths.url!r}]")]
    return any(process.poll() is None for process in ours) or is_uploading(paths)


def main(folder: str) -> None:
    emulator.skip_check()
    logs.start(logs.DATED)
    paths = RunPaths(folder)
    while not is_uploaded(paths):
        with file_lock(paths.sync_lock, wait=False) as is_locked:
            if is_locked:
                Uploader(paths, SystemClock()).upload()
                return
        time.sleep(_POLL_S)


class Uploader(PeriodicThread):
    """The thread that receives cancel requests and writes heartbeats; `upload` does the rest in the caller's thread."""

    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        actions = (
            PeriodicAction(_CANCEL_REQUESTS_S, "cancel requests", self._receive_cancel_requests),
            PeriodicAction(_HEARTBEAT_S, "heartbeat", self._heartbeat_if_supervised),
        )
        super().__init__(actions, clock)
        self._paths = paths
        plan = read_plan(paths)
        self._first_task = plan.tasks[0]
        self._pusher = Pusher(paths, plan.url, clock)
        self._cancels = CancelWatch(self._pusher.store, clock, known_resumes(paths), every_s=_CANCEL_REQUESTS_S)
        self._replaced = threading.Event()

    def upload(self) -> None:
        """Return when everything is in the bucket, or when uploading has failed for too long."""
        self.start()
        try:
            self._push_all()
        finally:
            self.stop(SYNC_RETRY.total_s)

    def _push_all(self) -> None:
        tries = None
        while not self._replaced.is_set():
            number = known_resumes(self._paths)
            # Checked before the upload, so that everything written before the end is uploaded.
            over = not is_supervised(self._paths, self._clock)
            if over and not has_ended(self._paths):
                end_leftovers(self._paths)
            try:
                self._pusher.push(last=over)
                tries = None
                if over and number == known_resumes(self._paths):
                    self.stop(SYNC_RETRY.total_s)
                    if not has_ended(self._paths):
                        self._pusher.write_heartbeat(self._first_task, supervised=False, resumes=number)
                    with suppress(FileExistsError):
                        posix.put_passing(self._paths.uploaded(number), b"")
                    return
            except ConflictError as error:
                self._replace(str(error))
                return
            except (PodliftError, OSError) as error:
                tries = tries or Retries(self._clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
                _log.info(f"upload failed, {tries.count + 1} times in a row: {error}")
                # A missing permission is not worth waiting for.
                if over and (isinstance(error, AccessError) or tries.spent_s > _GIVE_UP_S):
                    return
                tries.again()
            self._clock.sleep(_POLL_S)

    def _heartbeat_if_supervised(self) -> None:
        number = known_resumes(self._paths)
        if not is_supervised(self._paths, self._clock):
            return
        records = self._pusher.store.list(f"{KEYS.events}/0000.client-")
        resumes = sum(record.key.endswith(".resumed.json") for record in records)
        # The record of a resume on this machine is here by now.
        if resumes > number and number == known_resumes(self._paths):
            self._replace("the run was resumed on another machine")
        self._pusher.write_heartbeat(self._first_task, supervised=True, resumes=known_resumes(self._paths))

    def _receive_cancel_requests(self) -> None:
        resumes = known_resumes(self._paths)
        if self._cancels.resumes != resumes:
            self._cancels = CancelWatch(self._pusher.store, self._clock, resumes, every_s=_CANCEL_REQUESTS_S)
        for key in self._cancels.look():
            received = Path(self._paths.sync_lock).with_name(Path(key).name)
            if not received.exists():
                request_cancel(self._paths, bytes(self._pusher.store.get(key)))
                received.touch()

    def _replace(self, why: str) -> None:
        """End the run here: it continues elsewhere."""
        _log.info(f"{why}: the run ends here")
        self._replaced.set()
        if is_supervised(self._paths, self._clock):
            request_cancel(self._paths, b'{"grace_s": 0}')


if __name__ == "__main__":
    main(sys.argv[1])
