"""A job's inputs: where they are, whether they exist, and whether the tasks can read them.

`resolve` uses the disk and the network; `find_unreachable` is pure.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from glob import escape, has_magic, iglob
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ..checks import Finding
from ..errors import InputError, Problems
from .paths import usable
from .urls import chained, probe_urls, suggest

_DISK = ("file", "local")
_LISTED = 10_000
# "gs:/bucket" and "s3:bucket": URLs mistyped as paths.
_MISTYPED_URL = re.compile(r"(gs|s3|https?|abfs|az|hdfs|ftp):/?(?!/)(.+)")
_SECRET = re.compile(
    r"(.*(signature|token|secret|password|passwd|passphrase|credentials?|api[-_]?key|access[-_]?key|secret[-_]?key)"
    r"|sig|key|auth|pwd|awsaccesskeyid|googleaccessid)",
    re.IGNORECASE,
)
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1|0\.0\.0\.0")
_WEB = ("http", "https", "ftp")


def resolve(inputs: Mapping[str, str], base: Path) -> tuple[dict[str, str], list[Finding]]:
    """Return absolute paths and URLs of the inputs, each verified, or one error with all that cannot be read."""
    locations: dict[str, str] = {}
    problems_of: dict[str, list[str]] = {}
    findings = []
    for name, source in inputs.items():
        problems = Problems()
        with problems.collect():
            locations[name] = _located(source, base)
            if _is_empty_folder(locations[name]):
                findings.append(Finding("warning", f"inputs.{name}: {locations[name]!r} is an empty folder."))
        problems_of[name] = problems.messages
    remote = {name: location for name, location in locations.items() if "://" in location}
    cause = None
    for (name, location), answer in zip(remote.items(), probe_urls(list(remote.values())), strict=True):
        problems_of[name] += [f"{_quote(location)}: {answer.problem}"] if answer.problem else []
        cause = cause or answer.cause
        findings += [Finding("note", f"inputs.{name}: {_quote(location)}: {answer.note}")] if answer.note else []
    mistakes = [f"inputs.{name}: {text}" for name in inputs for text in problems_of[name]]
    if mistakes:
        raise InputError(mistakes) from cause
    return locations, findings


def find_unreachable(inputs: Mapping[str, str], *, disk: bool, network: bool = True) -> list[Finding]:
    """Return an error for each input that tasks cannot read without this machine's disk or without network. Pure."""
    return [
        Finding("error", f"inputs.{name}: {text}")
        for name, location in inputs.items()
        for text in _unreachable(name, location, disk, network)
    ]


def _located(source: str, base: Path) -> str:
    """Return a local path made absolute, or a URL unchanged; raises InputError for anything that cannot be an input."""
    if not source:
        raise InputError("It is empty. Expected: a path, gs://BUCKET/PATH or another URL.")
    parts = chained(source)
    for part in parts:
        mistyped = _MISTYPED_URL.fullmatch(part)
        _reject_credentials(f"{mistyped[1]}://{mistyped[2]}" if mistyped else part)
        if part.split("://")[0].lower() == "memory":
            raise InputError(
                "memory:// exists in this process only, and tasks are other processes. Next: write it to a file."
            )
    if not _is_disk(parts[-1]):
        return source
    # The last part of a chain such as zip://a.csv::b.zip is the file that contains the others.
    parts[-1] = _on_disk(parts[-1], base)
    return "::".join(parts)


def _reject_credentials(part: str) -> None:
    """Raise if a URL contains credentials, without showing it."""
    if "://" not in part:
        return
    try:
        url = urlsplit(part)
        words = parse_qsl(f"{url.query}&{url.fragment}", keep_blank_values=True)
        credentials = [f"the parameter {word!r}" for word, _ in words if _SECRET.fullmatch(word)]
        # The user in s3://user@host or abfs://container@account is not secret; in a web URL it may be a token.
        if url.password is not None or (url.username is not None and url.scheme in _WEB):
            credentials.append("a user name or password")
    except ValueError:
        raise InputError("It is not a valid URL. It is not shown here because it may contain a password.") from None
    if credentials:
        raise InputError(
            f"It contains credentials ({', '.join(credentials)}), and inputs are stored with the run. The URL is not shown. "
            "Next: remove them, and pass them to the program in a variable: env={'NAME': FromCaller()}."
        )


def _is_disk(part: str) -> bool:
    scheme, separator, _ = part.partition("://")
    return not separator or scheme.lower() in _DISK


def _on_disk(source: str, base: Path) -> str:
    text = _path_of(source)
    with usable("It", source):
        path = os.path.join(base.absolute(), Path(text).expanduser())
        plain = os.path.normpath(path)
        # "link/.." is not the parent of "link".
        path = plain if os.path.realpath(plain) == os.path.realpath(path) else path
        # A program may append "a.csv" to "data/", as to a URL.
        path += "/" if text.endswith("/") and path != "/" else ""
        if os.path.lexists(path):
            _check_readable(path, source)
            return path
        if has_magic(text):
            return _pattern(text, base, source)
    if path.endswith("/") and os.path.lexists(path.rstrip("/")):
        raise InputError(f"{path.rstrip('/')!r} is a file, not a folder. Received: {source!r}.")
    raise InputError(f"There is no {path!r}. {_nearest_path(path)} Received: {source!r}.{_suggested_url(source)}")


def _path_of(source: str) -> str:
    """Return the path of a file:// URL: as written, or decoded if only that exists."""
    if "://" not in source:
        return source
    host, slash, rest = source.partition("://")[2].partition("/")
    if host not in ("", "localhost") or not slash:
        raise InputError(f"A file:// URL of this machine starts with file:///. Received: {source!r}.")
    path = f"/{rest}"
    return unquote(path) if not os.path.lexists(path) and os.path.lexists(unquote(path)) else path


def _check_readable(path: str, source: str) -> None:
    if not os.path.exists(path):
        target = os.path.realpath(path)
        raise InputError(f"{path!r} is a link to {target!r}, which does not exist. Received: {source!r}.")
    needed = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
    if not os.access(path, needed):
        raise InputError(f"Permission denied: {path!r} cannot be read. Next: chmod. Received: {source!r}.")


def _pattern(text: str, base: Path, source: str) -> str:
    # Brackets in the folder's own name are not part of the pattern.
    home = "" if Path(text).is_absolute() or text.startswith("~") else f"{escape(str(base.absolute()))}/"
    pattern = home + os.path.expanduser(text)
    if next(iglob(pattern, recursive=True), None) is None:
        raise InputError(f"No file matches {pattern!r}. Received: {source!r}.")
    return pattern


def _nearest_path(path: str) -> str:
    """Describe the contents of the nearest existing folder, for a missing path."""
    missing = Path(path)
    while not os.path.lexists(missing.parent):
        missing = missing.parent
    if not missing.parent.is_dir():
        return f"{str(missing.parent)!r} is a file."
    try:
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in islice(entries, _LISTED)]
    except OSError as error:
        return f"{str(missing.parent)!r} cannot be read: {error.strerror}."
    return f"In {str(missing.parent)!r}: {suggest(missing.name, names)}"


def _suggested_url(source: str) -> str:
    mistyped = _MISTYPED_URL.fullmatch(source)
    return f" Did you mean '{mistyped[1]}://{mistyped[2]}'?" if mistyped else ""


def _is_empty_folder(location: str) -> bool:
    if "://" in location or not os.path.isdir(location):
        return False
    with os.scandir(location) as entries:
        return next(entries, None) is None


def _quote(location: str) -> str:
    # The query may be long.
    return repr(location.partition("?")[0] if location.startswith(("http://", "https://")) else location)


def _unreachable(name: str, location: str, disk: bool, network: bool) -> Iterator[str]:
    *outer, last = chained(location)
    if _is_disk(last):
        if not disk:
            yield _upload(name, outer, last)
        return
    if not network:
        yield f"{_quote(location)} needs the network, and local_network='isolated' has none. Next: use a local copy."
    elif not disk and _LOOPBACK.fullmatch(urlsplit(last).hostname or ""):
        yield f"{_quote(location)} is a server on this machine's loopback address: tasks on other machines cannot reach it."


def _upload(name: str, outer: list[str], path: str) -> str:
    folder = f"gs://BUCKET/{name}/"
    command = shlex.join(["gcloud", "storage", "cp", "--recursive", path, folder])
    there = "::".join([*outer, folder + os.path.basename(path.rstrip("/"))])
    return (
        f"{path!r} is on this machine's disk, which the tasks cannot read. Next with your own BUCKET: {command} and then "
        f"inputs={{{name!r}: {there!r}}}."
    )
