"""What goes into pip and what comes out: the lines it may read, the variables it sees, how it runs, how it fails."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from ..clock import Clock
from ..errors import PodliftError
from . import spawn

INSTALL = ["-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-color"] + [
    "--progress-bar", "off",
]  # fmt: skip
# They would put things elsewhere, install for another Python, or add to what was asked for.
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
# Stands between the builder and what it runs: ends the whole group when the builder is killed. Only Linux tells it so;
# elsewhere what runs comes to its end, in a folder that nobody reads.
_WITH_US = """
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
# What pip says, whether another try as it is may do better, and what to do. The first that is found counts.
_NEXT = (
    (r"No space left on device", True, "free some disk, or let XDG_CACHE_HOME name a folder on a larger one."),
    (
        r"(?s)Retrying \(.*\(from versions: none\)|Read timed out|Max retries exceeded",
        True,
        "check the network: pip could not reach its index. Another one is named by --index-url among the requirements.",
    ),
    (r"ResolutionImpossible|conflicting dependencies", False, "loosen one of them."),
    (r"requires a different Python", False, "choose a version of it that is made for this Python."),
    (r"DO NOT MATCH THE HASHES", False, "write the lock file again, if what the index holds now can be trusted."),
    (
        r"No matching distribution found",
        False,
        "choose a version that exists for this Python and machine, or name the index that has it by --extra-index-url "
        "among the requirements.",
    ),
    (
        r"(?i)subprocess-exited-with-error|failed (to )?build|could not build",
        False,
        "choose a version that has a wheel for this Python and machine: its source does not build here.",
    ),
    (r"ensurepip", False, "install this Python's venv package (Debian and Ubuntu: apt-get install python3-venv)."),
)


class EnvironmentBuildError(PodliftError):
    """The environment of a job's requirements cannot be made.

    Args:
        message: the requirement, what pip said last, the next step.
        transient: whether another try may succeed as it is: the network was away, or the disk full.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class EnvironmentStoppedError(PodliftError):
    """`stop` came true before the environment was there."""


class Runner:
    """Runs venv and pip to their end, or to the moment at which nobody wants that any more.

    Args:
        log: takes their output, at its end.
        environ: the caller's variables.
        clock: what time it is.
        stop: True once the work is to be given up.
    """

    def __init__(self, *, log: Path, environ: Mapping[str, str], clock: Clock, stop: Callable[[], bool]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._clock = clock
        self._stop = stop
        self._env, self._dropped = environment(environ)
        self._waited = False

    def run(self, command: Sequence[str], *, cwd: Path, requirements: Sequence[str]) -> None:
        """Run a command; every process of its group is gone when this returns or raises.

        Args:
            command: its words.
            cwd: where it starts.
            requirements: the lines that it installs, for the error.

        Raises:
            EnvironmentBuildError: it failed.
            EnvironmentStoppedError: it was killed, because `stop` came true.
        """
        start = self.log.stat().st_size if self.log.exists() else 0
        words = [sys.executable, "-I", "-S", "-c", _WITH_US, str(os.getpid()), *command]
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
        """Write to the log which of pip's variables it will not see."""
        if self._dropped:
            self.say(f"pip does not see {', '.join(self._dropped)}: the environment holds the job's requirements only")

    def wait_for_others(self) -> None:
        """Wait a moment, and say why in the log the first time."""
        if not self._waited:
            self.say("waiting for another run that makes the same environment")
        self._waited = True
        self._pause()

    def _pause(self) -> None:
        if self._stop():
            raise EnvironmentStoppedError("Stopped before the environment of the job's requirements was made.")
        self._clock.sleep(_POLL_S)

    def say(self, text: str) -> None:
        """Write a line to the log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"podlift: {text}\n")


def refusals(requirements: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return a sentence for each line that would do more than name a distribution or a place to look for them."""
    reasons = [(line, "requirement by name", "'numpy>=1.26'", _why_not_requirement(line)) for line in requirements]
    reasons += [
        (line, "option of where to look", "'--index-url https://...'", _why_not_option(line)) for line in options
    ]
    return [
        f"A line is no {what}: {why}. Received: {_without_passwords(line)[:_SHOWN_WIDTH]!r}. Expected: such as {example}."
        for line, what, example, why in reasons
        if why
    ]


def name_of(requirement: str) -> str:
    """Return the normalized name of a requirement that `refusals` has nothing against."""
    found = _REQUIREMENT.fullmatch(_HASHES.sub("", requirement))
    return normalized(found[1]) if found else ""


def normalized(name: str) -> str:
    """Return the one spelling of a distribution's name: "tf-keras"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def environment(caller: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that pip sees, and the names of pip's own that it does not."""
    dropped = [name for name in caller if _KEPT_FROM_PIP.fullmatch(name)]
    # pip.conf may say `user = true`, which no virtual environment can do.
    kept = {name: value for name, value in caller.items() if name not in dropped} | {"PIP_USER": "0"}
    return kept, sorted(name for name in dropped if name.startswith("PIP_"))


def failure(output: str, code: int, *, requirements: Sequence[str], log: Path) -> EnvironmentBuildError:
    """Return the error for what venv or pip said before it ended badly.

    Args:
        output: all that it said.
        code: its exit code.
        requirements: the lines that it was given.
        log: where the output is.
    """
    lines = _that_matter(output)
    said = "\n".join(lines)
    culprits = [_HASHES.sub("", line) for line in requirements if _mentions(said, line)]
    where = f"pip failed at {' and '.join(repr(_without_passwords(line)) for line in culprits[:3])}" if culprits else (
        f"pip ended with exit code {code}" if requirements else f"venv ended with exit code {code}"
    )  # fmt: skip
    transient, advice = next(
        ((transient, advice) for pattern, transient, advice in _NEXT if re.search(pattern, output)),
        (False, "read the whole output."),
    )
    message = f"The environment of the job's requirements cannot be made: {where}.\n"
    message += "".join(f"    {line}\n" for line in lines)
    return EnvironmentBuildError(f"{message}Next: {advice} The whole output: {str(log)!r}.", transient=transient)


def _that_matter(output: str) -> list[str]:
    """Return pip's lines from its first error on, without its hints; its last lines where there is no error."""
    lines = [_without_passwords(line.rstrip())[:_SHOWN_WIDTH] for line in output.splitlines()]
    lines = [line for line in lines if line.strip() and not re.match(r"\s*(note|hint|\[notice\])[: ]", line)]
    start = next((i for i, line in enumerate(lines) if re.match(r"\s*(ERROR|error):", line)), 0)
    return lines[start:][-_SHOWN_LINES:]


def _mentions(said: str, requirement: str) -> bool:
    pattern = re.sub(r"-", "[-_.]+", name_of(requirement))
    return re.search(rf"(?i)(?<![\w.-]){pattern}(?![\w-])", said) is not None


def _without_passwords(text: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://****@", text)


def _why_not_line(line: str) -> str:
    # pip splits its file at every kind of line break that Unicode knows, and joins lines that end in a backslash.
    if not line.replace("\t", " ").isprintable():
        return "it holds a character that cannot be printed"
    if line.endswith("\\"):
        return "it goes on in a next line"
    return "it holds a comment" if re.search(r"(^|\s)#", line) else ""


def _why_not_requirement(line: str) -> str:
    broken = _why_not_line(line)
    if broken:
        return broken
    bare = _HASHES.sub("", line)
    if re.search(r"(^|\s)-", bare):
        return "it holds an option"
    if not _REQUIREMENT.fullmatch(bare):
        return "it does not start with a distribution's name"
    return ""


def _why_not_option(line: str) -> str:
    name, separator, value = re.fullmatch(r"(?s)([^\s=]*)([\s=]?)\s*(.*)", line).groups()  # type: ignore[union-attr]
    if name not in _ALONE | _WITH_VALUE:
        return f"known are {', '.join(sorted(_ALONE | _WITH_VALUE))}"
    if (name in _ALONE) == bool(separator or value):
        return f"{name} takes no value" if name in _ALONE else f"{name} needs a value"
    if re.search(r"(^|\s)-", value):
        return "it holds a second option"
    if name in _FOLDERS and "://" not in value and not PurePosixPath(value.strip("'\"")).is_absolute():
        return "its path is relative"
    return _why_not_line(line)
