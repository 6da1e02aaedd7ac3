"""A job's inputs: where each of them lies, whether it is there, and whether the tasks will be able to read it.

`resolve` asks the disk and the network; `refusals` is pure.
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
from .urls import chained, look_up, near

_DISK = ("file", "local")
_LISTED = 10_000
# "gs:/bucket" and "s3:bucket": what is meant as a URL and written as a path.
_HALF_URL = re.compile(r"(gs|s3|https?|abfs|az|hdfs|ftp):/?(?!/)(.+)")
_SECRET = re.compile(
    r"(.*(signature|token|secret|password|passwd|passphrase|credentials?|api[-_]?key|access[-_]?key|secret[-_]?key)"
    r"|sig|key|auth|pwd|awsaccesskeyid|googleaccessid)",
    re.IGNORECASE,
)
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1|0\.0\.0\.0")
_WEB = ("http", "https", "ftp")


def resolve(inputs: Mapping[str, str], base: Path) -> tuple[dict[str, str], list[Finding]]:
    """Return where the inputs lie, each one looked for: paths absolute, URLs as they were given.

    Args:
        inputs: a path, a pattern of paths or a URL, by name.
        base: the folder that relative paths start from.

    Raises:
        InputError: every input that is not there or cannot be read, in one error.
    """
    found: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    findings = []
    for name, given in inputs.items():
        problems = Problems()
        with problems.collect():
            found[name] = _placed(given, base)
            findings += [_about(name, text) for text in _remarks(found[name])]
        said[name] = problems.found
    remote = {name: place for name, place in found.items() if "://" in place}
    cause = None
    for (name, place), answer in zip(remote.items(), look_up(list(remote.values())), strict=True):
        said[name] += [f"{_shown(place)}: {answer.problem}"] if answer.problem else []
        cause = cause or answer.cause
        findings += [Finding("note", f"inputs.{name}: {_shown(place)}: {answer.note}")] if answer.note else []
    mistakes = [f"inputs.{name}: {text}" for name in inputs for text in said[name]]
    if mistakes:
        raise InputError(mistakes) from cause
    return found, findings


def refusals(
    inputs: Mapping[str, str], *, disk: bool, network: bool = True, upload_to: str = "gs://BUCKET"
) -> list[Finding]:
    """Return an error for each input that tasks could not read where they run. Pure.

    Args:
        inputs: as `resolve` returns them.
        disk: whether the tasks see this machine's disk.
        network: whether they reach anything beyond their own machine.
        upload_to: where the command that is shown would put a file.
    """
    return [
        Finding("error", f"inputs.{name}: {text}")
        for name, place in inputs.items()
        for text in _refused(name, place, disk, network, upload_to)
    ]


def _about(name: str, text: str) -> Finding:
    return Finding("warning", f"inputs.{name}: {text}")


def _placed(given: str, base: Path) -> str:
    """Return a local path made absolute, a URL as it is; raises InputError for what can be no input."""
    if not given:
        raise InputError("It is empty. Name a path, gs://BUCKET/PATH or another URL.")
    parts = chained(given)
    for part in parts:
        half = _HALF_URL.fullmatch(part)
        _refuse_credentials(f"{half[1]}://{half[2]}" if half else part)
        if part.split("://")[0].lower() == "memory":
            raise InputError("memory:// lives in this process only, and the tasks are others. Write it to a file.")
    if not _is_disk(parts[-1]):
        return given
    # In a chain, such as zip://a.csv::b.zip, the last part is the file that holds the others.
    parts[-1] = _on_disk(parts[-1], base)
    return "::".join(parts)


def _refuse_credentials(part: str) -> None:
    """Raise if a URL holds credentials; nothing of it is shown."""
    if "://" not in part:
        return
    try:
        url = urlsplit(part)
        words = parse_qsl(f"{url.query}&{url.fragment}", keep_blank_values=True)
        held = [f"the parameter {word!r}" for word, _ in words if _SECRET.fullmatch(word)]
        # s3://user@host and abfs://container@account name nobody's secret; a token stands where a web user would.
        if url.password is not None or (url.username is not None and url.scheme in _WEB):
            held.append("a user's name or password")
    except ValueError:
        raise InputError("It is no valid URL. It is not shown here, because it may hold a password.") from None
    if held:
        raise InputError(
            f"It holds credentials ({', '.join(held)}), and inputs are stored with the run. The URL is not shown. Next: leave "
            "them out, and give them to the program in a variable: env={'NAME': FromCaller()}."
        )


def _is_disk(part: str) -> bool:
    scheme, separator, _ = part.partition("://")
    return not separator or scheme.lower() in _DISK


def _on_disk(given: str, base: Path) -> str:
    """Return the absolute path of a file, a folder or a pattern that is there."""
    text = _path_of(given)
    try:
        path = os.path.join(base.absolute(), Path(text).expanduser())
        plain = os.path.normpath(path)
        # "link/.." is not where it seems to be.
        path = plain if os.path.realpath(plain) == os.path.realpath(path) else path
        # Who gave "data/" may go on with + "a.csv", as behind a URL.
        path += "/" if text.endswith("/") and path != "/" else ""
        if os.path.lexists(path):
            _check_readable(path, given)
            return path
        if has_magic(text):
            return _pattern(text, base, given)
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"It is no usable path: {str(error).rstrip('.')}. Received: {given!r}.") from None
    if path.endswith("/") and os.path.lexists(path.rstrip("/")):
        raise InputError(f"{path.rstrip('/')!r} is a file, no folder. Received: {given!r}.")
    raise InputError(f"There is no {path!r}. {_instead(path)} Received: {given!r}.{_meant(given)}")


def _path_of(given: str) -> str:
    """Return the path that a file:// URL means: as it is written, or decoded if only that is there."""
    if "://" not in given:
        return given
    host, slash, rest = given.partition("://")[2].partition("/")
    if host not in ("", "localhost") or not slash:
        raise InputError(f"A file:// URL of this machine begins with file:///. Received: {given!r}.")
    path = f"/{rest}"
    return unquote(path) if not os.path.lexists(path) and os.path.lexists(unquote(path)) else path


def _check_readable(path: str, given: str) -> None:
    if not os.path.exists(path):
        target = os.path.realpath(path)
        raise InputError(f"{path!r} is a link to {target!r}, which is not there. Received: {given!r}.")
    needed = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
    if not os.access(path, needed):
        raise InputError(f"There is no permission to read {path!r}. Next: chmod. Received: {given!r}.")


def _pattern(text: str, base: Path, given: str) -> str:
    # The folder's own name may hold a bracket, which means nothing in it.
    home = "" if Path(text).is_absolute() or text.startswith("~") else f"{escape(str(base.absolute()))}/"
    pattern = home + os.path.expanduser(text)
    if next(iglob(pattern, recursive=True), None) is None:
        raise InputError(f"No file matches {pattern!r}. Received: {given!r}.")
    return pattern


def _instead(path: str) -> str:
    """Return what the nearest folder that is there holds in place of a missing path."""
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
    return f"In {str(missing.parent)!r}: {near(missing.name, names)}"


def _meant(given: str) -> str:
    half = _HALF_URL.fullmatch(given)
    return f" Did you mean '{half[1]}://{half[2]}'?" if half else ""


def _remarks(place: str) -> Iterator[str]:
    if "://" not in place and os.path.isdir(place):
        with os.scandir(place) as entries:
            if next(entries, None) is None:
                yield f"{place!r} is an empty folder."


def _shown(place: str) -> str:
    # A query may hold what a reader of the error has no use for.
    return repr(place.partition("?")[0] if place.startswith(("http://", "https://")) else place)


def _refused(name: str, place: str, disk: bool, network: bool, upload_to: str) -> Iterator[str]:
    *outer, last = chained(place)
    if _is_disk(last):
        if not disk:
            yield _upload(name, outer, last, upload_to)
        return
    if not network:
        yield f"{_shown(place)} is reached through the network, and local_network='isolated' leaves none. Use a local copy."
    elif not disk and _LOOPBACK.fullmatch(urlsplit(last).hostname or ""):
        yield f"{_shown(place)} is served by this machine to itself: tasks elsewhere cannot reach it."


def _upload(name: str, outer: list[str], path: str, upload_to: str) -> str:
    folder = f"{upload_to.rstrip('/')}/{name}/"
    command = shlex.join(["gcloud", "storage", "cp", "--recursive", path, folder])
    there = "::".join([*outer, folder + os.path.basename(path.rstrip("/"))])
    ask = "" if "BUCKET" not in upload_to else " with your own BUCKET"
    return (
        f"{path!r} lies on this machine's disk, which the tasks will not see. Next{ask}: {command} and then "
        f"inputs={{{name!r}: {there!r}}}."
    )
