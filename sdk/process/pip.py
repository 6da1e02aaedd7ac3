"""Runs pip: the lines and variables it gets, its process, and the explanation of its failures."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from ..clock import Clock
from ..errors import PodliftError
from ..text import without_passwords
from . import spawn

INSTALL = ["-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-color"] + [
    "--progress-bar", "off",
]  # fmt: skip
# These would install elsewhere, for another Python, or more than was requested.
_KEPT_FROM_PIP = re.compile(
    r"PYTHONPATH|PYTHONHOME|PYTHONUSERBASE|VIRTUAL_ENV|__PYVENV_LAUNCHER__|PODLIFT_.*|PIP_(TARGET|PREFIX|ROOT|PYTHON"
    r"|PYTHON_VERSION|PLATFORM|IMPLEMENTATION|ABI|SRC|DRY_RUN|REQUIREMENT|EDITABLE|CONSTRAINT|GROUP)"
)
_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(?:[(<>=!~;@].*)?")
_HASHES = re.compile(r"(?:\s+--hash=[a-z0-9]+:[0-9a-f]+)+$")
_ALONE = {"--no-index", "--pre", "--prefer-binary", "--require-hashes"}
_FOLDERS = {"-f", "--find-links"}
_WITH_VALUE = _FOLDERS | {
    "-i", "--index-url", "--extra-index-url", "--trusted-host", "--only-binary", "--no-binary",
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
_SHOWN_LINES, _SHOWN_WIDTH = 10, 300
# pip's output, whether a retry may succeed, and the advice. The first match counts.
_ADVICE = (
    (r"No space left on device", True, "free disk space, or set XDG_CACHE_HOME to a folder on a larger disk."),
    (
        r"(?s)Retrying \(.*\(from versions: none\)|Read timed out|Max retries exceeded",
        True,
        "check the network: pip could not reach its index. To use another one, add --index-url to the requirements.",
    ),
    (r"ResolutionImpossible|conflicting dependencies", False, "relax one of them."),
    (r"requires a different Python", False, "choose a version that supports this Python."),
    (r"DO NOT MATCH THE HASHES", False, "write the lock file again, if the current files on the index can be trusted."),
    (
        r"No matching distribution found",
        False,
        "choose a version that exists for this Python and machine, or add its index to the requirements with "
        "--extra-index-url.",
    ),
    (
        r"(?i)subprocess-exited-with-error|failed (to )?build|could not build",
        False,
        "choose a version with a wheel for this Python and machine: its source does not build here.",
    ),
    (r"ensurepip", False, "install this Python's venv package (Debian and Ubuntu: apt-get install python3-venv)."),
)


class EnvironmentBuildError(PodliftError):
    """The environment for a job's requirements cannot be built. If `transient`, a retry may succeed."""

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class EnvironmentStoppedError(PodliftError):
    """`stop` returned True before the environment was complete."""


class PipRunner:
    """Runs venv and pip until they exit or `stop` returns True."""

    def __init__(self, *, log: Path, environ: Mapping[str, str], clock: Clock, stop: Callable[[], bool]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._clock = clock
        self._stop = stop
        self._env, self._dropped = environment(environ)
        self._waited = False

    def run(self, command: Sequence[str], *, cwd: Path, requirements: Sequence[str]) -> None:
        """Run a command. All processes of its group are gone when this returns or raises."""
        start = self.log.stat().st_size if self.log.exists() else 0
        words = [sys.executable, "-I", "-S", "-c", _DIE_WITH_BUILDER, str(os.getpid()), *command]
        process = spawn.spawn(words, env=self._env, cwd=str(cwd), log=str(self.log))
        try:
            while not spawn.has_exited(process):
                self._pause()
        finally:
            spawn.signal_group(process, signal.SIGKILL)
            process.wait()
        if process.returncode != 0:
            output = self.log.read_bytes()[start:].decode("utf-8", "replace")
            raise failure(output, process.returncode, requirements=requirements, log=self.log)

    def name_dropped(self) -> None:
        if self._dropped:
            self.log_line(
                f"withheld from pip: {', '.join(self._dropped)}, because the environment contains only the job's requirements"
            )

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


def rejections(requirements: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return an error for each line that does more than name a distribution or an index."""
    reasons = [(line, "requirement by name", "'numpy>=1.26'", _why_not_requirement(line)) for line in requirements]
    reasons += [(line, "index option", "'--index-url https://...'", _why_not_option(line)) for line in options]
    return [
        f"A line is not a valid {what}: {why}. Received: {without_passwords(line)[:_SHOWN_WIDTH]!r}. Expected: for example "
        f"{example}."
        for line, what, example, why in reasons
        if why
    ]


def name_of(requirement: str) -> str:
    found = _REQUIREMENT.fullmatch(_HASHES.sub("", requirement))
    return normalized(found[1]) if found else ""


def normalized(name: str) -> str:
    """Return the normalized form of a distribution's name, such as "tf-keras"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def environment(caller: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that pip gets, and the names of pip's own variables that it does not get."""
    dropped = [name for name in caller if _KEPT_FROM_PIP.fullmatch(name)]
    # pip.conf may set `user = true`, which does not work in a virtual environment.
    kept = {name: value for name, value in caller.items() if name not in dropped} | {"PIP_USER": "0"}
    return kept, sorted(name for name in dropped if name.startswith("PIP_"))


def failure(output: str, code: int, *, requirements: Sequence[str], log: Path) -> EnvironmentBuildError:
    lines = _relevant_lines(output)
    text = "\n".join(lines)
    culprits = [_HASHES.sub("", line) for line in requirements if _mentions(text, line)]
    if culprits:
        cause = f"pip failed at {' and '.join(repr(without_passwords(line)) for line in culprits[:3])}"
    else:
        cause = f"{'pip' if requirements else 'venv'} ended with exit code {code}"
    transient, advice = next(
        ((transient, advice) for pattern, transient, advice in _ADVICE if re.search(pattern, output)),
        (False, "read the full output."),
    )
    message = f"The environment for the job's requirements cannot be built: {cause}.\n"
    message += "".join(f"    {line}\n" for line in lines)
    return EnvironmentBuildError(f"{message}Next: {advice} Full output: {str(log)!r}.", transient=transient)


def _relevant_lines(output: str) -> list[str]:
    """Return pip's lines from its first error on, without its hints, or its last lines if there is no error."""
    lines = [without_passwords(line.rstrip())[:_SHOWN_WIDTH] for line in output.splitlines()]
    lines = [line for line in lines if line.strip() and not re.match(r"\s*(note|hint|\[notice\])[: ]", line)]
    start = next((i for i, line in enumerate(lines) if re.match(r"\s*(ERROR|error):", line)), 0)
    return lines[start:][-_SHOWN_LINES:]


def _mentions(text: str, requirement: str) -> bool:
    pattern = re.sub(r"-", "[-_.]+", name_of(requirement))
    return re.search(rf"(?i)(?<![\w.-]){pattern}(?![\w-])", text) is not None


def _why_not_line(line: str) -> str:
    # pip splits its file at every Unicode line break, and joins lines that end in a backslash.
    if not line.replace("\t", " ").isprintable():
        return "it contains a character that is not printable"
    if line.endswith("\\"):
        return "it continues on the next line"
    return "it contains a comment" if re.search(r"(^|\s)#", line) else ""


def _why_not_requirement(line: str) -> str:
    broken = _why_not_line(line)
    if broken:
        return broken
    bare = _HASHES.sub("", line)
    if re.search(r"(^|\s)-", bare):
        return "it contains an option"
    if not _REQUIREMENT.fullmatch(bare):
        return "it does not start with a distribution's name"
    return ""


def _why_not_option(line: str) -> str:
    name, separator, value = re.fullmatch(r"(?s)([^\s=]*)([\s=]?)\s*(.*)", line).groups()  # type: ignore[union-attr]
    if name not in _ALONE | _WITH_VALUE:
        return f"known options are {', '.join(sorted(_ALONE | _WITH_VALUE))}"
    if (name in _ALONE) == bool(separator or value):
        return f"{name} does not accept a value" if name in _ALONE else f"{name} needs a value"
    if re.search(r"(^|\s)-", value):
        return "it contains a second option"
    if name in _FOLDERS and "://" not in value and not PurePosixPath(value.strip("'\"")).is_absolute():
        return "its path is relative"
    return _why_not_line(line)
