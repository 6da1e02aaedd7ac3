"""Files and folders that no bundle contains, whatever the project's rules say: secrets, caches, runs, files being written."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ..job.credentials import formats_in
from ..storage.posix import EMULATED, MARKER, RESULTS

# Device and inode.
FileIdentity = tuple[int, int]

_FOLDER_NAMES = {
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox", ".mypy_cache", ".ruff_cache",
    ".pytest_cache", ".hypothesis", ".ipynb_checkpoints", ".eggs",
}  # fmt: skip
_SECRET_NAMES = re.compile(
    r"\.env(\..+)?|\.netrc|\.pypirc|\.npmrc|\.git-credentials|\.htpasswd|id_(rsa|dsa|ecdsa|ed25519)|.+\.(p12|pfx|jks|keystore)|"
    r"(.*[-_.])?(service[-_]?account|client[-_]secrets?|credentials?)([-_.].*)?\.json|application_default_credentials\.json",
    re.IGNORECASE,
)
_SAMPLES = re.compile(r".*\.(example|sample|template|dist)", re.IGNORECASE)
_MARKED_FOLDERS = {EMULATED: "the data of podlift emulator", RESULTS: "results of podlift get"}
_BUNDLE = re.compile(r"[0-9a-f]{64}\.tar")
_SWAP_FILE = re.compile(r"\..+\.sw[a-p]")


def files_being_written(output: Path | None = None) -> dict[FileIdentity, str]:
    """Return the files that this process writes, redirected output included, with the reason to leave them out."""
    numbers = {0, 1, 2}
    for stream in (sys.stdout, sys.stderr):
        # In a notebook or a test there is no file below it.
        with suppress(AttributeError, OSError, ValueError):
            numbers.add(stream.fileno())
    reasons = {}
    for number in numbers:
        with suppress(OSError):
            about = os.fstat(number)
            if stat.S_ISREG(about.st_mode) and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                reasons[about.st_dev, about.st_ino] = "this command writes to it"
    if output is not None:
        with suppress(OSError):
            about = output.expanduser().stat()
            reasons[about.st_dev, about.st_ino] = "this command writes it"
    return reasons


def is_swap_file(name: str) -> bool:
    return bool(_SWAP_FILE.fullmatch(name))


def is_secret_name(name: str) -> bool:
    return bool(_SECRET_NAMES.fullmatch(name)) and not _SAMPLES.fullmatch(name)


def is_secret(data: bytes) -> bool:
    """True for data with a credential, and for the output of `podlift emulator`: its URL is a key."""
    return (
        next(formats_in(data.decode("utf-8", "replace")), None) is not None
        or re.search(rb"http://[\w.\[\]:]+:\d+/[0-9a-f]{32}\b", data) is not None
    )


def why_folder_by_name(path: str, name: str) -> str | None:
    """Return why a folder is never packaged, from its name and the marks of a virtual environment; None if it may be."""
    if name in _FOLDER_NAMES or name.endswith(".egg-info"):
        return "never packaged"
    # pathlib's exists() raises if the folder cannot be read.
    if any(os.access(os.path.join(path, mark), os.F_OK) for mark in ("pyvenv.cfg", "conda-meta")):
        return "a virtual environment"
    return None


def why_folder_by_content(folder: Path, names: Collection[str]) -> str | None:
    """Return why a folder with these files is never packaged, None if it may be."""
    if MARKER in names:
        return _MARKED_FOLDERS.get(_first_line(folder / MARKER), "a folder of podlift")
    if "plan.json" in names and "events" in names:
        return "a run of podlift"
    return "the code of earlier runs" if names and all(map(_BUNDLE.fullmatch, names)) else None


def _first_line(path: Path) -> str:
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            return file.read(200).decode("utf-8", "replace").partition("\n")[0]
    except OSError:
        return ""
