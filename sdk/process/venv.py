"""Virtual environments built from exactly a job's requirements, cached by content.

<cache>/environments/<key>/
    lock          held exclusively during a build or removal, shared while a run uses the environment
    used          its mtime is the last use by a run
    ready.json    written last: the complete build, its distributions, and the sha256 of files.json
    files.json    size and sha256 of each file; sizes are compared at each use, all bytes once a day
    checked       its mtime is the last comparison of all bytes
    <build>/      the environment; each build has its own folder, because environments cannot be moved and
                  child processes of a killed builder may keep writing for a moment
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from ..clock import Clock
from ..errors import InputError
from ..storage import own_folders, posix, small_files
from ..storage.cache import environments
from ..storage.checksums import sha256
from . import uv
from .uv import EnvironmentBuildError

_FORMAT = 1
_LOCK, _USED, _MARKER, _LINES, _CONSTRAINTS = "lock", "used", "ready.json", "requirements.txt", "constraints.txt"
_FILES, _CHECKED = "files.json", "checked"
_READ_EVERY_S = 86400.0
# Long enough to be unique, and short enough for the 127 bytes of a script's first line.
_KEY_LENGTH = 24
# Required by the part of podlift that runs in tasks.
_OLDEST = (3, 10)
_PRINT_IDENTITY = (
    "import json, os, platform, sys, sysconfig; print(json.dumps([sys.version_info[:2], "
    "os.path.realpath(sys.executable), sys.version, sysconfig.get_platform(), platform.libc_ver()]))"
)
_HASHES = re.compile(r"(?:\s+--hash=[a-z0-9]+:[0-9a-f]+)+$")


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    python: str  # absolute path of the base interpreter
    # PEP 508 lines as a plan has them, optionally with `--hash=...`, in any order
    requirements: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # lines such as `--index-url https://...`, in order
    constraints: tuple[str, ...] = ()  # PEP 508 lines that limit versions without installing anything


def key(spec: EnvironmentSpec) -> str:
    """Return the key of an environment: a sha256 of its interpreter, this platform and its lines."""
    version, *identity = _ask(spec.python, _PRINT_IDENTITY)
    if tuple(version) < _OLDEST:
        needed, received = (".".join(map(str, parts)) for parts in (_OLDEST, version))
        raise InputError(f"A task needs Python {needed} or later. Received: {spec.python!r}, which is {received}.")
    parts = [_FORMAT, identity, spec.options, sorted(set(spec.requirements)), sorted(set(spec.constraints))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@contextmanager
def using(
    spec: EnvironmentSpec, *, cache: Path, log: Path, environ: Mapping[str, str], clock: Clock, stop: Callable[[], bool]
) -> Iterator[Path]:
    """Build an environment unless it exists, yield its interpreter, and protect it from removal within the block.

    `stop` is polled several times a second while waiting and building. True ends both.
    """
    home = environments(cache) / key(spec)[:_KEY_LENGTH]
    runner = uv.UvRunner(log=log, environ=environ, clock=clock, stop=stop)
    while True:
        with _acquire(home, fcntl.LOCK_SH, runner.wait_for_others):
            _touch(home / _USED, clock.now())
            marker = _read_marker(home)
            if marker is not None and not _damage(home, marker, clock.now()):
                yield marker.python
                return
        with _acquire(home, fcntl.LOCK_EX, runner.wait_for_others):
            # Another run may have built it in the meantime.
            marker = _read_marker(home)
            damage = "" if marker is None else _damage(home, marker, clock.now())
            if marker is None or damage:
                if damage:
                    runner.log_line(f"the cached environment is damaged and is built again: {damage}")
                _build(home, spec, runner, clock.now())


def installed(python: Path) -> dict[str, str]:
    """Return the versions of the distributions of a complete environment by normalized name, such as "tf-keras"."""
    marker = _read_marker(python.parent.parent.parent)
    return {} if marker is None else marker.installed


def facade(folder: Path) -> str:
    """Make a folder with a link to this package and nothing else, for a task's sys.path, and return its path.

    Tasks find `sdk` there, and nothing else of the environment that podlift is installed in.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".sdk.{secrets.token_hex(4)}.part"
    part.symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
    # Replaced atomically: a task may be starting from it.
    part.replace(folder / "sdk")
    return str(folder)


def unused(cache: Path, *, unused_for_s: float, now: float) -> list[Path]:
    """Return the folders of environments that are not in use, and were not for that time."""
    folder, idle = environments(cache), []
    for home in (folder / name for name in posix.list_names(str(folder)) if not (folder / name).is_symlink()):
        with suppress(FileNotFoundError, NotADirectoryError):
            # A run that was killed in its first moment has left a lock alone, or not even that.
            last = next((home / name for name in (_USED, _LOCK) if (home / name).exists()), home)
            if home.is_dir() and now - last.stat().st_mtime > unused_for_s and not _is_locked(home):
                idle.append(home)
    return idle


def _is_locked(home: Path) -> bool:
    try:
        with (home / _LOCK).open("r+b") as lock:
            return not _try_lock(lock, fcntl.LOCK_EX)
    except FileNotFoundError:
        return False


def remove(home: Path) -> bool:
    """Remove a folder that `unused` returned. Return False if it is in use again."""

    def give_up() -> NoReturn:
        raise BlockingIOError

    try:
        with _acquire(home, fcntl.LOCK_EX, give_up):
            _clear(home)
            if set(posix.list_names(str(home))) - {_LOCK, _USED}:
                return False
            (home / _USED).unlink(missing_ok=True)
            (home / _LOCK).unlink()
    except BlockingIOError:
        return False
    # Another run may have created a new lock there.
    with suppress(OSError):
        home.rmdir()
    return True


@dataclass(frozen=True, kw_only=True)
class _Marker:
    python: Path
    installed: dict[str, str]
    files: str


def _damage(home: Path, marker: _Marker, now: float) -> str:
    """Return the damage of an environment, or ""."""
    try:
        inventoried = (home / _FILES).read_bytes()
    except OSError as error:
        return f"{_FILES}: {error.strerror}"
    if hashlib.sha256(inventoried).hexdigest() != marker.files:
        return f"{_FILES} has different bytes"
    checked = home / _CHECKED
    read = not checked.exists() or not 0 <= now - checked.stat().st_mtime < _READ_EVERY_S
    damage = _compare(str(marker.python.parent.parent), inventoried, read=read)
    if read and not damage:
        _touch(checked, now)
    return damage


def _build(home: Path, spec: EnvironmentSpec, runner: uv.UvRunner, now: float) -> None:
    _clear(home)
    folder = home / secrets.token_hex(4)
    python = folder / "bin" / "python"
    try:
        runner.venv(spec.python, folder)
        if not python.exists():
            raise EnvironmentBuildError(
                f"uv succeeded, but made no environment: there is no {str(python)!r}. Next: check which uv runs "
                f"(python -m uv --version). Its output: {str(runner.log)!r}."
            )
        if spec.requirements:
            (folder / _LINES).write_text("\n".join([*sorted(set(spec.requirements)), ""]), encoding="utf-8")
            (folder / _CONSTRAINTS).write_text("\n".join([*sorted(set(spec.constraints)), ""]), encoding="utf-8")
            words = ["-r", _LINES, "-c", _CONSTRAINTS]
            # As pip does if one line has a hash. uv alone would only compare the hashes of pinned lines.
            words += ["--require-hashes"] if any(_HASHES.search(line) for line in spec.requirements) else []
            runner.install(python, spec.options, words, folder)
        versions = _ask_installed(folder)
        _check_complete(spec, versions, runner.log)
        inventoried = _inventory(str(folder))
        posix.put_new(str(home / _FILES), inventoried)
        # The environment must be on the disk before its marker is.
        posix.sync_disk(str(folder))
    except BaseException:
        own_folders.discard(str(home), folder.name)
        raise
    _touch(home / _CHECKED, now)
    marker = {"build": folder.name, "installed": versions, "files": hashlib.sha256(inventoried).hexdigest()}
    posix.put_new(str(home / _MARKER), json.dumps(marker, indent=1, sort_keys=True).encode())


def _check_complete(spec: EnvironmentSpec, versions: Mapping[str, str], log: Path) -> None:
    # Only the client has it, and a task imports this room.
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    # Requirements with a marker may be absent.
    lines = [_HASHES.sub("", line) for line in spec.requirements if ";" not in line]
    names = [canonicalize_name(Requirement(line).name) for line in lines]
    absent = sorted(set(names) - set(versions))
    if absent:
        raise EnvironmentBuildError(
            f"uv succeeded, but did not install into the environment: {', '.join(absent)}. Next: check whether uv's "
            f"configuration (uv.toml) sets a target or a prefix. Its output: {str(log)!r}."
        )


def _clear(home: Path) -> None:
    """Empty a folder, its marker first, so that this can be killed at any time."""
    (home / _MARKER).unlink(missing_ok=True)
    for path in home.iterdir():
        if path.name not in (_LOCK, _USED):
            own_folders.discard(str(home), path.name)


def _read_marker(home: Path) -> _Marker | None:
    """Return the complete environment. None if there is none, or if its base interpreter is gone."""
    try:
        data = json.loads(small_files.read(home / _MARKER))
        python = home / data["build"] / "bin" / "python"
        marker = _Marker(python=python, installed=dict(data["installed"]), files=str(data["files"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return marker if marker.python.exists() else None


def _acquire(home: Path, kind: int, wait: Callable[[], None]) -> BinaryIO:
    """Create a folder and its lock if they are missing, and return the lock, held until it is closed."""
    while True:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = (home / _LOCK).open("a+b")
        except FileNotFoundError:
            continue  # removed at this moment
        try:
            while not _try_lock(lock, kind):
                wait()
            # `remove` unlinks the file while it holds the lock, which makes this lock void.
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


def _ask_installed(folder: Path) -> dict[str, str]:
    from packaging.utils import canonicalize_name

    packages = importlib.metadata.distributions(path=[str(path) for path in folder.glob("lib/python*/site-packages")])
    return {canonicalize_name(package.metadata["Name"]): package.version for package in packages}


def _ask(python: str, code: str) -> Any:
    command = [python, "-I", "-c", code]
    try:
        output = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
        # A .pth file may print something first.
        return json.loads(output.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"exit code {error.returncode}"
    except (OSError, ValueError, IndexError) as error:
        reason = getattr(error, "strerror", None) or "it does not behave like Python"
    raise InputError(f"The Python interpreter cannot be run: {reason}. Received: {python!r}.")


def _inventory(top: str) -> bytes:
    files = {}
    for folder, folders, names in os.walk(top):
        # Without compiled modules: Python replaces them whenever they do not match their source.
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for file in (f"{folder}/{name}" for name in sorted(names)):
            if os.path.isfile(file) and not os.path.islink(file):
                files[os.path.relpath(file, top)] = [os.path.getsize(file), sha256(file)]
    return json.dumps(files).encode()


def _compare(top: str, inventory: bytes, *, read: bool) -> str:
    """Return the first file that was changed or removed, or "". Compare all bytes only if `read`. New files are allowed."""
    for path, (size, digest) in json.loads(inventory).items():
        file = f"{top}/{path}"
        try:
            if os.path.getsize(file) != size:
                return f"{path} has a different size"
            if read and sha256(file) != digest:
                return f"{path} has different bytes"
        except OSError as error:
            return f"{path}: {error.strerror}"
    return ""
