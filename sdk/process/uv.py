"""Runs uv: its arguments, its process, and its failures.

pip's settings hold for it too: they are where users configure a machine's index, proxy and certificates, and a training
image is installed by pip. uv gets those that it understands, and the log names the others.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..clock import Clock
from ..errors import InputError, PodliftError
from ..text import without_passwords
from . import spawn

_QUIET = ["--color", "never", "--no-progress", "--no-python-downloads"]
# As pip does: the best version of all indexes, and the certificates of this machine. Files of the cache are copied, because a
# program that changed a linked one would change it for every environment.
_LIKE_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "true", "UV_LINK_MODE": "copy"}
# These would install elsewhere, for another Python, or other things than were requested.
_WITHHELD = re.compile(
    r"PYTHONPATH|PYTHONHOME|PYTHONUSERBASE|VIRTUAL_ENV|CONDA_PREFIX|__PYVENV_LAUNCHER__|PODLIFT_.*|UV_(SYSTEM_PYTHON"
    r"|MANAGED_PYTHON|PYTHON_PREFERENCE|CONSTRAINT|OVERRIDE|EXCLUDE|NO_VERIFY_HASHES|PROJECT.*|WORKING_DIR.*|VENV_.*)"
)
# pip's settings and options, by their names in pip.conf.
_SWITCHES = {"no-index": "--no-index", "pre": "--prerelease=allow", "require-hashes": "--require-hashes"} | {
    "no-cache-dir": "--no-cache"
}
_LISTS = {"only-binary": "--only-binary", "no-binary": "--no-binary", "trusted-host": "--allow-insecure-host"}
# Variables, and what separates several values: URLs may have passwords, and arguments are visible to all users.
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
# Without an effect on what an environment contains.
_PIPS_ALONE = {
    "config-file", "disable-pip-version-check", "no-input", "no-color", "progress-bar", "quiet", "verbose", "user", "log",
    "cache-dir", "root-user-action", "break-system-packages", "require-virtualenv", "no-warn-script-location",
}  # fmt: skip
# Runs between the builder and its command, and kills the group when the builder dies. That works on Linux only; elsewhere the
# command runs to its end, in a folder that is never used.
_DIE_WITH_BUILDER = """
import ctypes, os, signal, subprocess, sys
def end(*_):
    os.killpg(0, signal.SIGKILL)
signal.signal(signal.SIGTERM, end)
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    end()
code = subprocess.call(sys.argv[2:])
sys.exit(code if code >= 0 else 128 - code)
"""
_POLL_S = 0.05
_FIRST_SHOWN, _LAST_SHOWN, _SHOWN_WIDTH = 2, 8, 300
# uv's output after which a retry may succeed, and the advice.
_TRANSIENT = (
    (r"No space left on device", "free disk space, or set XDG_CACHE_HOME and UV_CACHE_DIR to a larger disk."),
    (
        r"error sending request|operation timed out|HTTP status server error",
        "check the network: uv could not reach its index. To use another one, add --index-url to the requirements.",
    ),
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
        raise InputError(
            f"podlift needs uv, which is not installed beside it. Next: {sys.executable} -m pip install --force-reinstall uv."
        ) from None


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
        self._run(["venv", *_QUIET, "--no-project", "--python", python, str(folder)], {}, folder.parent)

    def install(self, python: Path, options: Sequence[str], words: Sequence[str], folder: Path) -> None:
        """Install into an environment by pip's settings of this machine and by the options of the requirements."""
        arguments, variables, unknown = translated(pip_settings(self._environ), options)
        unknown += [name for name in self._environ if name.startswith("UV_") and _WITHHELD.fullmatch(name)]
        if unknown:
            self.log_line(
                f"not passed to uv, which has no equivalent or would install something else: {', '.join(unknown)}"
            )
        self._run(["pip", "install", *_QUIET, "--python", str(python), *arguments, *words], variables, folder)

    def _run(self, words: Sequence[str], variables: Mapping[str, str], cwd: Path) -> None:
        """Run a command of uv. All processes of its group are gone when this returns or raises."""
        start = self.log.stat().st_size if self.log.exists() else 0
        kept = {name: value for name, value in self._environ.items() if not _WITHHELD.fullmatch(name)}
        command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_BUILDER, str(os.getpid()), program(), *words]
        process = spawn.spawn(command, env={**_LIKE_PIP, **kept, **variables}, cwd=str(cwd), log=str(self.log))
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
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _pip_files(environ):
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeError, OSError):
            # Without the line, which may contain a password.
            raise InputError(f"pip's configuration cannot be read: {str(path)!r}. Next: pip config debug.") from None
    for section, values in sections.items():
        if parser.has_section(section):
            values.update({_pip_name(name): value for name, value in parser.items(section)})
    named = {_pip_name(name[4:]): value for name, value in environ.items() if name.startswith("PIP_")}
    return {**sections["global"], **sections["install"], **named}


def _pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    machine = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    yield from (Path(folder) / "pip" / "pip.conf" for folder in machine.split(os.pathsep))
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    if chosen:
        yield Path(chosen)


def _pip_name(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _parts(option: str) -> tuple[str, list[str]]:
    """Return the name and the values of an option such as `--index-url https://...`."""
    name, *values = shlex.split(option.replace("=", " ", 1) if re.match(r"\S+=", option) else option)
    return name.removeprefix("--"), values


def translated(settings: Mapping[str, str], options: Iterable[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Return uv's arguments and variables for pip's settings and options, and the names of those that uv does not have."""
    # The index of an option replaces that of a setting, and lists grow, as with pip.
    arguments: list[str] = []
    variables: dict[str, str] = {}
    unknown = []
    for name, values in [*((name, value.split()) for name, value in settings.items()), *map(_parts, options)]:
        if name in _SWITCHES:
            arguments += [] if values and values[0].lower() in _OFF else [_SWITCHES[name]]
        elif name in _LISTS:
            arguments += [f"{_LISTS[name]}={word}" for value in values for word in value.split(",")]
        elif name in _PLACES:
            variable, separator = _PLACES[name]
            variables[variable] = separator.join([*filter(None, [variables.get(variable)]), *values])
        elif name in _VARIABLES:
            variables.update(dict.fromkeys(_VARIABLES[name], " ".join(values)))
        elif name not in _PIPS_ALONE:
            unknown.append(name)
    return [*dict.fromkeys(arguments)], variables, unknown


def failure(output: str, code: int, *, log: Path) -> EnvironmentBuildError:
    lines = _relevant_lines(output)
    transient = next((advice for pattern, advice in _TRANSIENT if re.search(pattern, output)), "")
    advice = transient or "change the requirements, or add the index that has them with --extra-index-url."
    message = f"The environment for the job's requirements cannot be built: uv ended with exit code {code}.\n"
    message += "".join(f"    {line}\n" for line in lines)
    return EnvironmentBuildError(f"{message}Next: {advice} Full output: {str(log)!r}.", transient=bool(transient))


def _relevant_lines(output: str) -> list[str]:
    """Return uv's lines from its error on, without the middle of many."""
    lines = [without_passwords(line.rstrip())[:_SHOWN_WIDTH] for line in output.splitlines()]
    lines = [line for line in lines if line.strip() and not re.match(r"\s*warning:", line)]
    start = next((i for i, line in enumerate(lines) if re.match(r"\s*(error:|\u00d7)", line)), 0)
    lines = lines[start:]
    if len(lines) > _FIRST_SHOWN + _LAST_SHOWN:
        lines[_FIRST_SHOWN:-_LAST_SHOWN] = ["..."]
    return lines
