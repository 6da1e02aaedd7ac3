"""Runs uv: its arguments, its process, and its failures.

pip's settings hold for it too: they are where users configure a machine's index, proxy and certificates, and a training
image is installed by pip. uv gets the settings that it understands, and the log names the others.
"""

from __future__ import annotations

import configparser
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from .. import text as texts
from ..clock import Clock
from ..errors import InputError, PodliftError
from . import spawn

_QUIET = ["--color", "never", "--no-progress", "--no-python-downloads"]
# As pip does: the best version of all indexes, and the certificates of this machine. Files of the cache are copied, because a
# program that changed a linked one would change it for every environment, and an emptied cache would break it.
_LIKE_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "true", "UV_LINK_MODE": "copy"}
# These would install elsewhere, for another Python, or other things than were requested.
_WITHHELD = re.compile(
    r"PYTHONPATH|PYTHONHOME|PYTHONUSERBASE|VIRTUAL_ENV|CONDA_PREFIX|__PYVENV_LAUNCHER__|PODLIFT_.*|UV_(SYSTEM_PYTHON"
    r"|MANAGED_PYTHON|PYTHON_PREFERENCE|LINK_MODE|CONSTRAINT|OVERRIDE|EXCLUDE|NO_VERIFY_HASHES|PROJECT.*|WORKING_DIR.*|VENV_.*)"
)
# pip's settings and options, by their names in pip.conf.
_SWITCHES = {"no-index": "--no-index", "pre": "--prerelease=allow", "require-hashes": "--require-hashes"} | {
    "no-cache-dir": "--no-cache"
}
_LISTS = {"only-binary": "--only-binary", "no-binary": "--no-binary", "trusted-host": "--allow-insecure-host"}
# Variables, and the separator of several values: URLs may have passwords, and arguments are visible to all users.
_PLACES = {"extra-index-url": ("UV_EXTRA_INDEX_URL", " "), "find-links": ("UV_FIND_LINKS", ",")}
_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "retries": ("UV_HTTP_RETRIES",),
}
_OFF = {"0", "false", "no", "off", "n", "f"}
# Without an effect on the contents of an environment.
_PIPS_ALONE = {
    "config-file", "disable-pip-version-check", "no-input", "no-color", "progress-bar", "quiet", "verbose", "user", "log",
    "cache-dir", "root-user-action", "break-system-packages", "require-virtualenv", "no-warn-script-location",
}  # fmt: skip
# Runs between the builder and its command, and kills the group when the builder dies. That works on Linux only; elsewhere the
# command runs to its end, in a folder that is never used. The log is uploaded with the run, so it gets no passwords, not even
# in a URL that uv does not understand and quotes. A process that a build has left behind may keep the pipe open.
_DIE_WITH_BUILDER = """
import ctypes, os, runpy, signal, subprocess, sys, threading
def end(*_):
    os.killpg(0, signal.SIGKILL)
signal.signal(signal.SIGTERM, end)
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    end()
masked = runpy.run_path(sys.argv[2])["without_passwords"]
def write_log():
    for line in process.stdout:
        os.write(1, masked(line).encode("utf-8", "surrogateescape"))
pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "surrogateescape"}
try:
    process = subprocess.Popen(sys.argv[3:], **pipe)
except OSError as error:
    sys.exit(f"error: uv cannot be run: {error}")
log = threading.Thread(target=write_log, daemon=True)
log.start()
code = process.wait()
log.join(1.0)
os._exit(code if code >= 0 else 128 - code)
"""
_POLL_S = 0.05
_FIRST_SHOWN, _LAST_SHOWN, _SHOWN_WIDTH = 2, 8, 300
_REINSTALL = f"{sys.executable} -m pip install --force-reinstall uv."
# uv's output, whether a retry may succeed after it, and the advice.
_FAILURES = (
    (
        r"invalid peer certificate|certificate verify failed",
        False,
        "set SSL_CERT_FILE, or pip's setting cert, to the certificates that the index or the proxy needs, and check the clock.",
    ),
    (r"No space left on device", True, "free disk space, or set XDG_CACHE_HOME and UV_CACHE_DIR to a larger disk."),
    (
        r"error sending request|operation timed out|network timeout|error decoding response body|response body error"
        r"|HTTP status server error|HTTP status client error \((408|425|429) ",
        True,
        "check the network: uv could not reach its index, or a download ended early. To use another index, add --index-url to "
        "the requirements.",
    ),
    (
        r"Failed to read from zip file|Bad CRC",
        True,
        "try again: the download of a wheel may have ended early. Otherwise, the wheel is damaged where it comes from.",
    ),
    (
        r"Hash mismatch",
        False,
        "find out why the hash of the file in the index differs from the hash in the requirements, or renew the hashes.",
    ),
    (
        r"^error: (Failed to initialize cache|Could not acquire lock)",
        False,
        "set UV_CACHE_DIR to a folder that you may write to.",
    ),
    (r"^error: (unexpected argument|uv cannot be run)", False, _REINSTALL),
    (r"", False, "change the requirements, or add the index that has them with --extra-index-url."),
)


class EnvironmentBuildError(PodliftError):
    """The environment for a job's requirements cannot be built. If `transient`, a retry may succeed."""

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class EnvironmentStoppedError(PodliftError):
    """`stop` returned True before the environment was complete."""


def program() -> str:
    """Return the path of the uv that is installed with podlift."""
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        raise InputError(f"podlift needs uv, which is not installed beside it. Next: {_REINSTALL}") from None


class UvRunner:
    """Runs uv until it exits or `stop` returns True."""

    def __init__(self, *, log: Path, environ: Mapping[str, str], clock: Clock, stop: Callable[[], bool]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._clock = clock
        self._stop = stop
        self._environ = environ
        self._waited = False

    def venv(self, python: str, folder: Path) -> None:
        folder.mkdir()
        # uv reads the first configuration of a project above, which may be another program's, unless there is one here.
        (folder / "pyproject.toml").write_text("[tool.uv]\n")
        self._run(["venv", *_QUIET, "--no-project", "--allow-existing", "--python", python, str(folder)], {}, folder)

    def install(self, python: Path, options: Sequence[str], words: Sequence[str], folder: Path) -> None:
        """Install into an environment by pip's settings of this machine and by the options of the requirements."""
        arguments, variables, unknown = translated(self._environ, options)
        unknown += [name for name in self._environ if name.startswith("UV_") and _WITHHELD.fullmatch(name)]
        if unknown:
            self.log_line(
                f"not passed to uv, which has no equivalent or would install something else: {', '.join(unknown)}"
            )
        self._run(["pip", "install", *_QUIET, "--python", str(python), *arguments, *words], variables, folder)

    def _run(self, words: Sequence[str], variables: Mapping[str, str], cwd: Path) -> None:
        """Run a command of uv. All processes of its group are gone when this returns or raises."""
        start = self.log.stat().st_size if self.log.exists() else 0
        environ = {name: value for name, value in self._environ.items() if not _WITHHELD.fullmatch(name)}
        watcher = [sys.executable, "-I", "-S", "-c", _DIE_WITH_BUILDER, str(os.getpid()), texts.__file__]
        command = [*watcher, program(), *words]
        process = spawn.spawn(command, env={**_LIKE_PIP, **environ, **variables}, cwd=str(cwd), log=str(self.log))
        try:
            while not spawn.has_exited(process):
                self._pause()
        finally:
            spawn.signal_group(process, signal.SIGKILL)
            process.wait()
        if process.returncode != 0:
            output = self.log.read_bytes()[start:].decode("utf-8", "replace")
            raise failure(output, process.returncode, log=self.log)

    def wait_for_others(self) -> None:
        if not self._waited:
            self.log_line("waiting for another run that is building the same environment")
        self._waited = True
        self._pause()

    def _pause(self) -> None:
        if self._stop():
            raise EnvironmentStoppedError("Stopped before the environment for the job's requirements was built.")
        self._clock.sleep(_POLL_S)

    def log_line(self, text: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"podlift: {text}\n")


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings by their names in pip.conf, from its files and its variables, which take precedence."""
    parser = configparser.RawConfigParser()
    for path in _pip_files(environ):
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeError, OSError):
            # Without the line, which may contain a password.
            raise InputError(f"pip's configuration cannot be read: {str(path)!r}. Next: pip config debug.") from None
    items = [item for name in ("global", "install") if parser.has_section(name) for item in parser.items(name)]
    items += [(name[4:], value) for name, value in environ.items() if name.startswith("PIP_")]
    # pip ignores empty ones.
    return {_pip_name(name): value for name, value in items if value.strip()}


def _pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    file = Path("pip") / "pip.conf"
    if sys.platform == "darwin":
        support = Path("Library") / "Application Support"
        yield "/" / support / file
        users = home / support if (home / support / "pip").is_dir() else home / ".config"
    else:
        machine = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        yield from (Path(folder) / file for folder in machine.split(os.pathsep))
        yield Path("/etc/pip.conf")
        users = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    if not (chosen and Path(chosen).exists()):
        yield home / ".pip" / "pip.conf"
        yield users / file
    if chosen:
        yield Path(chosen)


def _pip_name(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _parts(option: str) -> tuple[str, list[str]]:
    """Return the name and the values of an option such as `--index-url https://...`."""
    name, *values = shlex.split(option.replace("=", " ", 1) if re.match(r"\S+=", option) else option)
    return name.removeprefix("--"), values


def translated(environ: Mapping[str, str], options: Iterable[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Return uv's arguments and variables for the caller's settings and for options, and the names that uv does not have."""
    # The index of an option replaces the index of a setting, and lists grow, as with pip.
    arguments: list[str] = []
    variables = {name: environ[name] for name, _ in _PLACES.values() if environ.get(name)}
    unknown = []
    settings = pip_settings(environ).items()
    for name, values in [*((name, value.split()) for name, value in settings), *map(_parts, options)]:
        if name in _SWITCHES:
            arguments += [] if values and values[0].lower() in _OFF else [_SWITCHES[name]]
        elif name in _LISTS:
            arguments += [f"{_LISTS[name]}={word}" for value in values for word in value.split(",")]
        elif name in _PLACES:
            variable, separator = _PLACES[name]
            sources = [_in_list(value, separator) for value in values]
            variables[variable] = separator.join([*filter(None, [variables.get(variable)]), *sources])
        elif name in _VARIABLES:
            value = _whole_seconds(values[0]) if name.endswith("timeout") else " ".join(values)
            variables.update(dict.fromkeys(_VARIABLES[name], value))
        elif name not in _PIPS_ALONE:
            unknown.append(name)
    return [*dict.fromkeys(arguments)], variables, unknown


def _in_list(source: str, separator: str) -> str:
    """Return a folder or URL for a list of uv: one with the separator becomes a URL without it."""
    if separator not in source:
        return source
    url = source if "://" in source else Path(source).absolute().as_uri()
    return url.replace(separator, f"%{ord(separator):02X}")


def _whole_seconds(text: str) -> str:
    try:
        return str(math.ceil(float(text)))
    except (ValueError, OverflowError):
        return text  # uv reports the mistake


def failure(output: str, code: int, *, log: Path) -> EnvironmentBuildError:
    lines = _relevant_lines(output)
    remedies = (row[1:] for row in _FAILURES if re.search(row[0], output, re.MULTILINE))
    transient, advice = next(remedies)
    message = f"The environment for the job's requirements cannot be built: uv ended with exit code {code}.\n"
    message += "".join(f"    {line}\n" for line in lines)
    return EnvironmentBuildError(f"{message}Next: {advice} Full output: {str(log)!r}.", transient=transient)


def _relevant_lines(output: str) -> list[str]:
    """Return uv's lines from its error on, without the middle of many."""
    lines = [texts.without_passwords(line.rstrip())[:_SHOWN_WIDTH] for line in output.splitlines()]
    lines = [line for line in lines if line.strip() and not re.match(r"\s*warning:", line)]
    start = next((i for i, line in enumerate(lines) if re.match(r"\s*(error:|\u00d7)", line)), 0)
    lines = lines[start:]
    if len(lines) > _FIRST_SHOWN + _LAST_SHOWN:
        lines[_FIRST_SHOWN:-_LAST_SHOWN] = ["..."]
    return lines
