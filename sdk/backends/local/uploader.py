"""The uploader: a process that copies a run to its bucket, from its submit until all of it is there.

It is not a child of the supervisor. It can reach the network if the tasks cannot, it is not killed together with their
descendants, and it uploads the rest after the supervisor was killed. If it is killed itself, its watchdog starts another
one; if both are killed, the next client on this machine does. Its only state is the content of the bucket.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from ... import logs
from ...clock import Clock, SystemClock
from ...errors import AccessError, ConflictError, PodliftError
from ...process import spawn
from ...process.supervision import is_supervised
from ...records.plans import read_plan
from ...records.recorder import has_ended
from ...records.sync.index import KEYS, SYNC_RETRY
from ...records.sync.ownership import is_uploaded, known_resumes, upload_lock
from ...records.sync.periodic import PeriodicAction, PeriodicThread
from ...records.sync.push import Pusher
from ...spec.layout import RunPaths
from ...spec.plan import Plan
from ...storage import emulator, posix
from ...storage.retry import Retries
from . import watchdog

_log = logs.logger("backends.local")
_POLL_S = 0.25
_HEARTBEAT_S, _CANCEL_REQUESTS_S = 10.0, 2.0
_RESUMED = re.compile(r"events/0000\.client-(\d+)\.000001\.resumed\.json")
# After the end of the run, uploads are retried for this long. The next client continues.
_GIVE_UP_S = 900.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_uploaders: list[subprocess.Popen[bytes]] = []


def start(plan: Plan) -> None:
    """Start an uploader and its watchdog. While another one is running, it waits, and exits if nothing is left to upload."""
    paths = plan.paths
    Path(paths.sync_log).parent.mkdir(parents=True, exist_ok=True)
    for process in list(_uploaders):
        if process.poll() is not None:
            _uploaders.remove(process)
    home = str(Path(__file__).absolute().parents[3])
    env = {**os.environ, "PYTHONPATH": home}
    # Started by path: that keeps the watchdog tiny.
    command = [sys.executable, "-I", "-S", watchdog.__file__]
    command += [sys.executable, "-m", "sdk.backends.local.uploader", paths.url]
    _uploaders.append(spawn.spawn(command, env=env, cwd=paths.url, log=paths.sync_log))


def is_starting(paths: RunPaths) -> bool:
    """True while an uploader of the run that this process started may be about to begin."""
    return any(process.poll() is None and str(process.args).endswith(f"{paths.url!r}]") for process in _uploaders)


def main(folder: str) -> None:
    """Upload the run in this folder until all of it is in its bucket."""
    emulator.skip_check()
    logs.start(logs.DATED)
    paths = RunPaths(folder)
    while not is_uploaded(paths):
        with upload_lock(paths) as alone:
            if alone:
                Uploader(paths, SystemClock()).run()
                return
        time.sleep(_POLL_S)


class Uploader:
    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        self._paths = paths
        self._clock = clock
        self._plan = read_plan(paths)
        self._pusher = Pusher(paths, self._plan.url, clock)
        self._replaced = threading.Event()
        actions = (
            PeriodicAction(_CANCEL_REQUESTS_S, "cancel requests", self._receive_cancel_requests),
            PeriodicAction(_HEARTBEAT_S, "heartbeat", self._heartbeat_if_supervised),
        )
        self._thread = PeriodicThread(actions, clock)

    def run(self) -> None:
        """Return when everything is in the bucket, or when uploading has failed for too long."""
        self._thread.start()
        try:
            self._push_all()
        finally:
            self._thread.stop(SYNC_RETRY.total_s)

    def _push_all(self) -> None:
        tries = None
        while not self._replaced.is_set():
            number = known_resumes(self._paths)
            # Asked first, so that everything written before the end is uploaded.
            over = not self._is_supervised()
            try:
                self._pusher.push(last=over)
                tries = None
                if over and number == known_resumes(self._paths):
                    self._finish(number)
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

    def _is_supervised(self) -> bool:
        return is_supervised(self._paths, self._clock)

    def _finish(self, number: int) -> None:
        self._thread.stop(SYNC_RETRY.total_s)
        if not has_ended(self._paths):
            self._pusher.write_heartbeat(self._plan.tasks[0], supervised=False, resumes=number)
        with suppress(FileExistsError):
            posix.put_passing(self._paths.uploaded(number), b"")

    def _heartbeat_if_supervised(self) -> None:
        number = known_resumes(self._paths)
        if not self._is_supervised():
            return
        found = [_RESUMED.fullmatch(each.key) for each in self._pusher.store.list(f"{KEYS.events}/0000.client-")]
        resumed = any(match is not None and int(match[1]) > number for match in found)
        # The record of a resume on this machine is here by now.
        if resumed and number == known_resumes(self._paths):
            self._replace("the run was resumed on another machine")
        self._pusher.write_heartbeat(self._plan.tasks[0], supervised=True, resumes=known_resumes(self._paths))

    def _receive_cancel_requests(self) -> None:
        prefix = KEYS.remote_cancel_request(known_resumes(self._paths), "").removesuffix(".cancel.json")
        for found in self._pusher.store.list(prefix):
            received = Path(self._paths.sync_lock).with_name(posixpath.basename(found.key))
            if not received.exists():
                self._request_cancel(bytes(self._pusher.store.get(found.key)))
                received.touch()

    def _request_cancel(self, request: bytes) -> None:
        while True:
            with suppress(FileExistsError):
                posix.put_new(self._paths.cancel_request(len(posix.list_names(self._paths.control)) + 1), request)
                return

    def _replace(self, why: str) -> None:
        """End the run here: it continues elsewhere."""
        _log.info(f"{why}: the run ends here")
        self._replaced.set()
        if self._is_supervised():
            self._request_cancel(b'{"grace_s": 0}')


if __name__ == "__main__":
    main(sys.argv[1])
