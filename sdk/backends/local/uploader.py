"""The uploader: a process that copies a run to its bucket, from its submit until all of it is there.

It is not a child of the supervisor. It can reach the network if the tasks cannot, it is not killed together with their
descendants, and it uploads the rest after the supervisor was killed. If it is killed itself, its watchdog starts another
one; if both are killed, the next client on this machine does. Its only state is the content of the bucket.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from ... import logs
from ...clock import Clock, SystemClock
from ...errors import AccessError, ConflictError, PodliftError
from ...process import spawn
from ...records.events import resume_count
from ...records.plans import read_plan
from ...records.recorder import has_ended, position, read_events
from ...records.sync.heartbeats import Heartbeat
from ...records.sync.push import KEYS, SYNC_RETRY, Pusher
from ...spec.layout import RunPaths
from ...spec.plan import Plan
from ...storage import emulator, posix
from ...storage.gcs.store import GcsStore
from ...storage.retry import Retries
from . import watchdog

_log = logs.logger("backends.local")
_POLL_S = 0.25
_HEARTBEAT_S, _CANCEL_REQUESTS_S = 10.0, 2.0
_LOG_AGAIN_S = 600.0
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


def known_resumes(paths: RunPaths) -> int:
    """Return how often the run was resumed, as far as this machine knows."""
    return resume_count(read_events(paths, ("resumed",)))


def is_uploaded(paths: RunPaths) -> bool:
    """True once everything that the run wrote here is in its bucket."""
    return os.path.exists(paths.uploaded(known_resumes(paths)))


def is_running(paths: RunPaths) -> bool:
    """True while an uploader of the run is active."""
    with _locked(paths) as alone:
        return not alone


def is_starting() -> bool:
    """True while an uploader started by this process may be about to begin."""
    return any(process.poll() is None for process in _uploaders)


@contextmanager
def _locked(paths: RunPaths) -> Iterator[bool]:
    with open(paths.sync_lock, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def main(folder: str) -> None:
    """Upload the run in this folder until all of it is in its bucket."""
    emulator.skip_check()
    logs.start(logs.DATED)
    paths = RunPaths(folder)
    while not is_uploaded(paths):
        with _locked(paths) as alone:
            if alone:
                Uploader(paths, SystemClock()).run()
                return
        time.sleep(_POLL_S)


class Uploader:
    """Uploads one run."""

    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        from . import LocalBackend

        self._paths = paths
        self._clock = clock
        self._plan = read_plan(paths)
        self._backend = LocalBackend()
        self._store = GcsStore(self._plan.url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
        self._pusher = Pusher(paths, self._plan.url, clock)
        self._done = threading.Event()
        self._replaced = threading.Event()
        self._heartbeat = Heartbeat(self._store)

    def run(self) -> None:
        """Return when everything is in the bucket, or when uploading has failed for too long."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            self._push_all()
        finally:
            self._done.set()
            thread.join(SYNC_RETRY.total_s)

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
        return not has_ended(self._paths) and self._backend.observe(self._plan).supervised

    def _finish(self, number: int) -> None:
        self._done.set()
        if not has_ended(self._paths):
            self._write_heartbeat(supervised=False)
        with suppress(FileExistsError):
            posix.put_passing(self._paths.uploaded(number), b"")

    def _watch(self) -> None:
        """Write heartbeats and receive cancel requests until the upload is done."""
        actions = (
            PeriodicAction(_CANCEL_REQUESTS_S, "cancel requests", self._receive_cancel_requests),
            PeriodicAction(_HEARTBEAT_S, "heartbeat", self._heartbeat_if_supervised),
        )
        while not self._done.wait(_POLL_S):
            for action in actions:
                action.run_if_due(self._clock.monotonic())

    def _heartbeat_if_supervised(self) -> None:
        if self._is_supervised():
            self._check_for_resume()
            self._write_heartbeat(supervised=True)

    def _write_heartbeat(self, *, supervised: bool) -> None:
        found = position(self._paths, self._plan.tasks[0])
        progress = None if found is None else asdict(found)
        self._heartbeat.write({"supervised": supervised, "resumes": known_resumes(self._paths), "progress": progress})

    def _receive_cancel_requests(self) -> None:
        number, prefix = known_resumes(self._paths), KEYS.remote_cancel_request(0, "").rpartition("/")[0]
        for found in list(self._store.list(f"{prefix}/")):
            received = Path(self._paths.sync_lock).with_name(found.key.rpartition("/")[2])
            if found.key.startswith(f"{prefix}/{number:04d}-") and not received.exists():
                self._request_cancel(bytes(self._store.get(found.key)))
                received.touch()

    def _request_cancel(self, request: bytes) -> None:
        while True:
            with suppress(FileExistsError):
                posix.put_new(self._paths.cancel_request(len(posix.list_names(self._paths.control)) + 1), request)
                return

    def _check_for_resume(self) -> None:
        number = known_resumes(self._paths)
        found = [_RESUMED.fullmatch(each.key) for each in self._store.list(f"{KEYS.events}/0000.client-")]
        resumed = any(match is not None and int(match[1]) > number for match in found)
        # The record of a resume on this machine is here by now.
        if resumed and number == known_resumes(self._paths):
            self._replace("the run was resumed on another machine")

    def _replace(self, why: str) -> None:
        """End the run here: it continues elsewhere."""
        _log.info(f"{why}: the run ends here")
        self._replaced.set()
        if self._is_supervised():
            self._request_cancel(b'{"grace_s": 0}')


class PeriodicAction:
    """Calls a function at most once per period. A failure is logged, and the function is called again after the next period."""

    def __init__(self, every_s: float, name: str, action: Callable[[], None]) -> None:
        self._every_s = every_s
        self._name = name
        self._action = action
        self._due = -math.inf
        self._logged = ("", -math.inf)

    def run_if_due(self, now: float) -> None:
        if now < self._due:
            return
        self._due = now + self._every_s
        try:
            self._action()
        except (PodliftError, OSError) as error:
            self._log_failure(str(error), now)
        except Exception:  # the next call may succeed, and the upload must go on
            self._log_failure(traceback.format_exc(), now)

    def _log_failure(self, text: str, now: float) -> None:
        # The same failure repeated for days must not fill the disk.
        if text != self._logged[0] or now - self._logged[1] >= _LOG_AGAIN_S:
            self._logged = (text, now)
            _log.info(f"{self._name} failed: {text}")


if __name__ == "__main__":
    main(sys.argv[1])
