"""The process that carries a run between this machine and its bucket, from its submit until all of it is there.

It is no child of the supervisor: it can reach the network where the tasks cannot, it is not ended with what they leave behind,
and it brings the rest when the supervisor was killed. When it is killed itself, its guard starts another one, and where both
were killed the next client on this machine does. What it has done is known by the bucket alone.
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

from ...clock import Clock, SystemClock
from ...errors import AccessError, ConflictError, PodliftError
from ...process import spawn
from ...records.events import generation
from ...records.plans import read_plan
from ...records.recorder import has_ended, position, read_events
from ...records.sync.heartbeats import Heartbeat
from ...records.sync.push import KEYS, PATIENCE, Mirror
from ...spec.layout import RunPaths
from ...spec.plan import Plan
from ...storage import emulator, posix
from ...storage.gcs.store import GcsStore
from . import watchdog

_POLL_S = 0.25
_BEAT_S, _WISH_S = 10.0, 2.0
_TELL_AGAIN_S = 600.0
_RESUMED = re.compile(r"events/0000\.client-(\d+)\.000001\.resumed\.json")
# A run that is over waits for its bucket so long; the next client goes on.
_GIVE_UP_S = 900.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_carriers: list[subprocess.Popen[bytes]] = []


def start(plan: Plan) -> None:
    """Start the process and its guard; where one is at work, it waits for its turn and leaves when nothing is left to do."""
    paths = plan.paths
    Path(paths.sync_log).parent.mkdir(parents=True, exist_ok=True)
    for process in list(_carriers):
        if process.poll() is not None:
            _carriers.remove(process)
    home = str(Path(__file__).absolute().parents[3])
    env = {**os.environ, "PYTHONPATH": home}
    # By its path: beside what carries, the guard is next to nothing.
    command = [sys.executable, "-I", "-S", watchdog.__file__]
    command += [sys.executable, "-m", "sdk.backends.local.uploader", paths.url]
    _carriers.append(spawn.spawn(command, env=env, cwd=paths.url, log=paths.sync_log))


def number_of(paths: RunPaths) -> int:
    """Return how often a run was resumed, as far as this machine knows."""
    return generation(read_events(paths, ("resumed",)))


def is_carried(paths: RunPaths) -> bool:
    """True when all that a run has left here is in its bucket."""
    return os.path.exists(paths.uploaded(number_of(paths)))


def is_at_work(paths: RunPaths) -> bool:
    """True while somebody carries."""
    with _locked(paths) as alone:
        return not alone


def is_starting() -> bool:
    """True while a process that this one has started may be about to begin."""
    return any(process.poll() is None for process in _carriers)


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
    """Carry the run of that folder until all of it is in its bucket."""
    emulator.be_patient()
    paths = RunPaths(folder)
    while not is_carried(paths):
        with _locked(paths) as alone:
            if alone:
                Carrier(paths, SystemClock()).carry()
                return
        time.sleep(_POLL_S)


class Carrier:
    """Carries one run.

    Args:
        paths: the run's folder.
        clock: what time it is.
    """

    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        from . import Local

        self._paths = paths
        self._clock = clock
        self._plan = read_plan(paths)
        self._backend = Local()
        self._store = GcsStore(self._plan.url.partition("://")[2], retry=PATIENCE, clock=clock)
        self._mirror = Mirror(paths, self._plan.url, clock, _say)
        self._done = threading.Event()
        self._replaced = threading.Event()
        self._heartbeat = Heartbeat(self._store)

    def carry(self) -> None:
        """Return when all is in the bucket, or it is given up for now."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            self._push_all()
        finally:
            self._done.set()
            thread.join(PATIENCE.total_s)

    def _push_all(self) -> None:
        failures, failing_since = 0, 0.0
        while not self._replaced.is_set():
            number = number_of(self._paths)
            # Asked before: what is written until then is brought.
            over = not self._lives()
            try:
                self._mirror.push(last=over)
                failures = 0
                if over and number == number_of(self._paths):
                    self._finish(number)
                    return
            except ConflictError as error:
                self._replace(str(error))
                return
            except (PodliftError, OSError) as error:
                failures += 1
                failing_since = self._clock.monotonic() if failures == 1 else failing_since
                _say(f"not carried, {failures} times in a row: {error}")
                # Nobody has to wait for a permission that somebody has to give.
                if over and (isinstance(error, AccessError) or self._clock.monotonic() - failing_since > _GIVE_UP_S):
                    return
                self._clock.sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(failures, 10)))
            self._clock.sleep(_POLL_S)

    def _lives(self) -> bool:
        return not has_ended(self._paths) and self._backend.observe(self._plan).supervised

    def _finish(self, number: int) -> None:
        self._done.set()
        if not has_ended(self._paths):
            self._beat(supervised=False)
        with suppress(FileExistsError):
            posix.put_passing(self._paths.uploaded(number), b"")

    def _watch(self) -> None:
        """Say that the run is looked after, and look for what others wish, as long as that is so."""
        looks = (Look(_WISH_S, "wishes", self._take_wishes), Look(_BEAT_S, "heartbeat", self._say_that_it_lives))
        while not self._done.wait(_POLL_S):
            for look in looks:
                look.take(self._clock.monotonic())

    def _say_that_it_lives(self) -> None:
        if self._lives():
            self._look_for_others()
            self._beat(supervised=True)

    def _beat(self, *, supervised: bool) -> None:
        found = position(self._paths, self._plan.tasks[0])
        progress = None if found is None else asdict(found)
        self._heartbeat.say({"supervised": supervised, "generation": number_of(self._paths), "progress": progress})

    def _take_wishes(self) -> None:
        number, prefix = number_of(self._paths), KEYS.remote_cancel_request(0, "").rpartition("/")[0]
        for found in list(self._store.list(f"{prefix}/")):
            taken = Path(self._paths.sync_lock).with_name(found.key.rpartition("/")[2])
            if found.key.startswith(f"{prefix}/{number:04d}-") and not taken.exists():
                self._wish(bytes(self._store.get(found.key)))
                taken.touch()

    def _wish(self, text: bytes) -> None:
        while True:
            with suppress(FileExistsError):
                posix.put_new(self._paths.cancel_request(len(posix.list_names(self._paths.control)) + 1), text)
                return

    def _look_for_others(self) -> None:
        number = number_of(self._paths)
        found = [_RESUMED.fullmatch(each.key) for each in self._store.list(f"{KEYS.events}/0000.client-")]
        resumed = any(match is not None and int(match[1]) > number for match in found)
        # One of this machine has its record here by now.
        if resumed and number == number_of(self._paths):
            self._replace("the run was resumed on another machine")

    def _replace(self, why: str) -> None:
        """End the run here: it goes on elsewhere."""
        _say(f"{why}: the run ends here")
        self._replaced.set()
        if self._lives():
            self._wish(b'{"grace_s": 0}')


class Look:
    """One thing that is looked at again and again. A look that fails is told, and neither the next one nor others stop for it.

    Args:
        every_s: seconds from one to the next.
        name: what is looked for.
        look: looks.
    """

    def __init__(self, every_s: float, name: str, look: Callable[[], None]) -> None:
        self._every_s = every_s
        self._name = name
        self._look = look
        self._due = -math.inf
        self._told = ("", -math.inf)

    def take(self, now: float) -> None:
        """Look, if it is time."""
        if now < self._due:
            return
        self._due = now + self._every_s
        try:
            self._look()
        except (PodliftError, OSError) as error:
            self._tell(str(error), now)
        except Exception:  # whatever it is, the next look may be better, and the records are carried meanwhile
            self._tell(traceback.format_exc(), now)

    def _tell(self, text: str, now: float) -> None:
        # What goes wrong in the same way for days must not fill the disk.
        if text != self._told[0] or now - self._told[1] >= _TELL_AGAIN_S:
            self._told = (text, now)
            _say(f"no {self._name}: {text}")


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%F %T')} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1])
