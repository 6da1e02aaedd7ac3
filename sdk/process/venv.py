"""Virtual environments made of exactly a job's requirements: built once, kept in the cache, found again by what they hold.

<cache>/environments/<key>/
    lock          exclusive while somebody builds or removes, shared while a run uses what is here
    used          its time says when a run last asked for it
    ready.json    written last: which folder is complete, what is installed there, and the sha256 of files.json
    files.json    size and sha256 of each of its files: sizes are compared with every use, all bytes once a day
    checked       its time says when they were
    <build>/      the environment; each build has a folder of its own, because an environment cannot be moved, and
                  what a killed builder has started may go on writing for a moment
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from ..clock import Clock
from ..errors import InputError, PodliftError
from ..storage import posix
from ..storage.cache import environments
from . import inventory, pip
from .pip import EnvironmentBuildError

_FORMAT = 1
_LOCK, _USED, _MARKER, _LINES, _LIMITS = "lock", "used", "ready.json", "requirements.txt", "constraints.txt"
_FILES, _CHECKED = "files.json", "checked"
_READ_EVERY_S = 86400.0
# Enough of the digest that no two meet, short enough for the 127 bytes that the first line of a script may have.
_KEY_LENGTH = 24
# The half of podlift that runs in a task needs it.
_OLDEST = (3, 10)
_ASK_IDENTITY = (
    "import json, os, platform, sys, sysconfig; print(json.dumps([sys.version_info[:2], "
    "os.path.realpath(sys.executable), sys.version, sysconfig.get_platform(), platform.libc_ver()]))"
)
_ASK_INSTALLED = (
    "import importlib.metadata as m, json; "
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}))"
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an environment shall hold.

    Args:
        python: absolute path of the interpreter that it is made from.
        requirements: lines of PEP 508, `--hash=...` behind them allowed; their order does not matter. None of them: an
            environment without even pip.
        options: lines such as `--index-url https://...`, in their order.
        constraints: lines of PEP 508 that limit versions, and ask for nothing.

    Raises:
        InputError: a line would do more than name a distribution or a place to look for them; all of them at once.
    """

    python: str
    requirements: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = pip.refusals((*self.requirements, *self.constraints), self.options)
        if not Path(self.python).is_absolute():
            problems.append(f"The Python interpreter is no absolute path. Received: {self.python!r}.")
        if problems:
            raise InputError(problems)


def key(wanted: Wanted) -> str:
    """Return the name of an environment: a sha256 over its interpreter, this platform and its lines.

    Raises:
        InputError: the interpreter cannot be run, or is too old for podlift's half in the task.
    """
    version, *identity = _ask(wanted.python, _ASK_IDENTITY)
    if tuple(version) < _OLDEST:
        needed, received = (".".join(map(str, parts)) for parts in (_OLDEST, version))
        raise InputError(f"A task needs Python {needed} or later. Received: {wanted.python!r}, which is {received}.")
    parts = [_FORMAT, identity, wanted.options, sorted(set(wanted.requirements)), sorted(set(wanted.constraints))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def ensure(
    wanted: Wanted, *, cache: Path, log: Path, environ: Mapping[str, str], clock: Clock, stop: Callable[[], bool]
) -> Path:
    """Build an environment unless it is there, and return its interpreter; `using` also keeps it from being removed.

    Args:
        wanted: what it shall hold.
        cache: podlift's cache folder.
        log: the file that pip's output is added to.
        environ: the variables that pip sees, but for those that would put things elsewhere.
        clock: what time it is.
        stop: asked several times a second while waiting and building; True ends both.

    Raises:
        EnvironmentBuildError: pip failed.
        EnvironmentStoppedError: `stop` came true.
        InputError: the interpreter cannot be used.
    """
    with using(wanted, cache=cache, log=log, environ=environ, clock=clock, stop=stop) as python:
        return python


@contextmanager
def using(
    wanted: Wanted, *, cache: Path, log: Path, environ: Mapping[str, str], clock: Clock, stop: Callable[[], bool]
) -> Iterator[Path]:
    """Do what `ensure` does, and let nobody remove the environment as long as the block lasts."""
    home = environments(cache) / key(wanted)[:_KEY_LENGTH]
    runner = pip.Runner(log=log, environ=environ, clock=clock, stop=stop)
    while True:
        with _take(home, fcntl.LOCK_SH, runner.wait_for_others):
            _touch(home / _USED, clock.now())
            found = _read_marker(home)
            if found is not None and not _damage(home, found, clock.now()):
                yield found.python
                return
        with _take(home, fcntl.LOCK_EX, runner.wait_for_others):
            # Another run may have built it while this one waited.
            found = _read_marker(home)
            damage = "" if found is None else _damage(home, found, clock.now())
            if found is None or damage:
                if damage:
                    runner.say(f"the environment in the cache is damaged, and is made anew: {damage}")
                _build(home, wanted, runner, clock.now())


def installed(python: Path) -> dict[str, str]:
    """Return the versions of an environment's distributions by normalized name, such as "tf-keras".

    Args:
        python: what `ensure` returned. Any other interpreter is asked each time.
    """
    found = _read_marker(python.parent.parent.parent)
    return found.installed if found is not None and found.python == python else _ask_installed(python)


def facade(folder: Path) -> str:
    """Make a folder that holds links to this package and nothing else; return its path, for a task's sys.path.

    The task finds `sdk` and `podlift` there, and nothing of the environment that podlift itself lives in.

    Raises:
        PodliftError: the folder holds something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    package = Path(__file__).resolve().parents[1]
    links = {"sdk": package, "podlift": package / "published" / "podlift"}
    names = posix.list_names(str(folder))
    others = [name for name in names if name not in links or not (folder / name).is_symlink()]
    if others:
        raise PodliftError(f"{str(folder)!r} must hold nothing but podlift's links. Received: {', '.join(others)}.")
    for name, place in links.items():
        part = folder / f".{name}.{secrets.token_hex(4)}.part"
        part.symlink_to(place, target_is_directory=True)
        # Replaced, never removed first: a task may be starting from it.
        part.replace(folder / name)
    return str(folder)


def unused(cache: Path, *, unused_for_s: float, now: float) -> list[Path]:
    """Return the folders that `remove` may take: those that no run asked for in that time, and that none uses now.

    Args:
        cache: podlift's cache folder.
        unused_for_s: seconds.
        now: Unix time in seconds.
    """
    found = []
    for home in (environments(cache) / name for name in posix.list_names(str(environments(cache)))):
        with suppress(FileNotFoundError, NotADirectoryError), (home / _LOCK).open("r+b") as lock:
            if _try_lock(lock, fcntl.LOCK_EX) and now - (home / _USED).stat().st_mtime > unused_for_s:
                found.append(home)
    return found


def remove(home: Path) -> bool:
    """Remove a folder that `unused` returned; False where it is in use by now."""

    def give_up() -> NoReturn:
        raise BlockingIOError

    try:
        with _take(home, fcntl.LOCK_EX, give_up):
            _clear(home)
            if set(posix.list_names(str(home))) - {_LOCK, _USED}:
                return False
            (home / _USED).unlink(missing_ok=True)
            (home / _LOCK).unlink()
    except BlockingIOError:
        return False
    # A run that came in between has made a lock of its own there.
    with suppress(OSError):
        home.rmdir()
    return True


@dataclass(frozen=True, kw_only=True)
class _Marker:
    python: Path
    installed: dict[str, str]
    files: str


def _damage(home: Path, marker: _Marker, now: float) -> str:
    """Return what is wrong with an environment; "" for nothing. One of an earlier podlift has no inventory."""
    if not marker.files:
        return ""
    try:
        inventoried = (home / _FILES).read_bytes()
    except OSError as error:
        return f"{_FILES}: {error.strerror}"
    if hashlib.sha256(inventoried).hexdigest() != marker.files:
        return f"{_FILES} has other bytes"
    checked = home / _CHECKED
    due = not checked.exists() or not 0 <= now - checked.stat().st_mtime < _READ_EVERY_S
    found = inventory.damage(str(marker.python.parent.parent), inventoried, read=due)
    if due and not found:
        _touch(checked, now)
    return found


def _build(home: Path, wanted: Wanted, runner: pip.Runner, now: float) -> None:
    _clear(home)
    folder = home / secrets.token_hex(4)
    python = folder / "bin" / "python"
    try:
        without = [] if wanted.requirements else ["--without-pip"]
        runner.run([wanted.python, "-I", "-m", "venv", *without, str(folder)], cwd=home, requirements=())
        if wanted.requirements:
            lines = [*wanted.options, *sorted(set(wanted.requirements)), ""]
            (folder / _LINES).write_text("\n".join(lines), encoding="utf-8")
            (folder / _LIMITS).write_text("\n".join([*sorted(set(wanted.constraints)), ""]), encoding="utf-8")
            runner.name_dropped()
            command = [str(python), *pip.INSTALL, "-r", _LINES, "-c", _LIMITS]
            runner.run(command, cwd=folder, requirements=wanted.requirements)
        versions = _ask_installed(python)
        _check_complete(wanted, versions, runner.log)
        inventoried = inventory.take(str(folder))
        posix.put_new(str(home / _FILES), inventoried)
        # The marker lasts: so must what it stands for.
        posix.sync_disk(str(folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _touch(home / _CHECKED, now)
    marker = {"build": folder.name, "installed": versions, "files": hashlib.sha256(inventoried).hexdigest()}
    posix.put_new(str(home / _MARKER), json.dumps(marker, indent=1, sort_keys=True).encode())


def _check_complete(wanted: Wanted, versions: Mapping[str, str], log: Path) -> None:
    # A requirement with a marker may rightly be absent.
    names = [pip.name_of(line) for line in wanted.requirements if ";" not in line]
    absent = sorted(set(names) - set(versions))
    if absent:
        raise EnvironmentBuildError(
            f"pip ended well, but did not install into the environment: {', '.join(absent)}. Next: look whether pip's "
            f"configuration names a target, a prefix or a root (`pip config list`). Its output: {str(log)!r}."
        )


def _clear(home: Path) -> None:
    """Remove what lies there; from the first line on it is no longer ready, so that this may be killed anywhere."""
    (home / _MARKER).unlink(missing_ok=True)
    for path in home.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in (_LOCK, _USED):
            path.unlink(missing_ok=True)


def _read_marker(home: Path) -> _Marker | None:
    """Return what is ready; None where nothing is, or where the interpreter that it was made from is gone."""
    try:
        data = json.loads((home / _MARKER).read_bytes())
        python = home / data["build"] / "bin" / "python"
        found = _Marker(python=python, installed=dict(data["installed"]), files=str(data.get("files", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.python.exists() else None


def _take(home: Path, kind: int, wait: Callable[[], None]) -> BinaryIO:
    """Return the lock of a folder, held until it is closed; both are made where they are missing."""
    while True:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = (home / _LOCK).open("a+b")
        except FileNotFoundError:
            continue  # removed at this moment
        try:
            while not _try_lock(lock, kind):
                wait()
            # `remove` takes the file away while it holds the lock: then this one locks nothing.
            if os.fstat(lock.fileno()).st_nlink:
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()


def _try_lock(lock: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _touch(path: Path, now: float) -> None:
    path.touch()
    os.utime(path, (now, now))


def _ask_installed(python: Path) -> dict[str, str]:
    return {pip.normalized(name): version for name, version in _ask(str(python), _ASK_INSTALLED).items()}


def _ask(python: str, question: str) -> Any:
    command = [python, "-I", "-c", question]
    try:
        said = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
        # A .pth file may print something of its own first.
        return json.loads(said.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"exit code {error.returncode}"
    except (OSError, ValueError, IndexError) as error:
        reason = getattr(error, "strerror", None) or "it does not answer as Python would"
    raise InputError(f"The Python interpreter cannot be run: {reason}. Received: {python!r}.")
