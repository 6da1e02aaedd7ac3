"""The root: the folder, or the place in a bucket, below which runs, bundles and models live."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from ..backends import IN_CLOUD
from ..errors import InputError, Problems
from ..packaging.paths import usable
from ..spec.values import is_utf8
from .settings import file as configfile

_DEFAULT_ROOT = "~/.podlift"
_PREFIX = "podlift"
# Where runs of a cloud live as long as nobody has named a bucket: a plan shows it, and nothing starts there.
NO_BUCKET = f"gs://<bucket>/{_PREFIX}"
# What stands for other names in a listing is no name here, and a part that starts with a dot is none of a store's.
_IN_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^/.*?\[\]{}\\][^/*?\[\]{}\\]*)*")


def resolve_root(root: str | Path | None, environ: Mapping[str, str]) -> str:
    """Return the root: what is given, else `PODLIFT_ROOT`, else the project's file, else the default.

    It is an absolute path, or gs://BUCKET/PREFIX.

    Raises:
        InputError: it is no path, or another URL.
    """
    if root is None:
        place, said = _of_project()
        source = "PODLIFT_ROOT" if environ.get("PODLIFT_ROOT") else place
        with _sourced(source):
            return resolve_root(environ.get("PODLIFT_ROOT") or said or _DEFAULT_ROOT, environ)
    text = str(root)
    if not isinstance(root, (str, PurePath)) or not text:
        raise InputError(f"The root is no folder. Received: {root!r}. Leave it out for {_DEFAULT_ROOT!r}.")
    if not is_utf8(text):
        raise InputError(f"The root's name is not UTF-8, and records of runs hold it as text. Received: {text!r}.")
    if "://" in text:
        return _in_bucket(text)
    with usable("The root", text):
        return str(Path(text).expanduser().resolve())


def configured_root(root: str | Path | None, environ: Mapping[str, str], backend: str | None = None) -> str:
    """Return the root in which runs are looked for: as `resolve_root`, but that of a cloud where one is the usual backend.

    Args:
        root: what is given.
        environ: this process's variables.
        backend: whose runs are looked for; None for the usual one's.

    Raises:
        InputError: as `resolve_root`; or a cloud's runs are wanted, and no bucket is named.
    """
    if root is not None:
        return resolve_root(root, environ)
    file = configfile.FileSettings()
    # What is wrong with the file is said beside the verb's own words.
    with suppress(OSError):
        file = configfile.find(Path.cwd(), Problems())
    said = file.values
    asked, backend = backend, backend or environ.get("PODLIFT_BACKEND") or said.get("backend") or "local"
    place = environ.get("PODLIFT_ROOT") or said.get("root")
    if backend in IN_CLOUD:
        bucket = environ.get(f"PODLIFT_{backend.upper()}_BUCKET") or said.get(f"{backend}_bucket")
        named = [name for name in (f"PODLIFT_{backend.upper()}_BUCKET", "PODLIFT_ROOT") if environ.get(name)]
        with _sourced(", ".join(filter(None, [*named, file.place]))):
            found = cloud_root(backend, bucket, None if place is None else str(place), explicit=False)
        if found != NO_BUCKET:
            return found
        if asked:
            raise InputError(
                f"Runs of {asked} live in a bucket, and none is named. Next: --root gs://BUCKET/PREFIX, or {asked}_bucket in "
                "the project's file."
            )
    return resolve_root(None, environ)


def in_bucket(root: str) -> bool:
    """True for a root that is no folder of this machine."""
    return root.startswith("gs://")


def cloud_root(backend: str, bucket: str | None, root: str | None, *, explicit: bool) -> str:
    """Return the root of a backend whose machines see no folder of this one.

    Args:
        backend: its name.
        bucket: where it is told to keep runs, as BUCKET or BUCKET/PREFIX.
        root: what is said for every backend: a folder there means the runs of this machine.
        explicit: True where this very call names the root.

    Raises:
        InputError: it is no place in a bucket, or two are named.
    """
    named = _in_bucket(f"gs://{bucket.removeprefix('gs://').rstrip('/')}") if bucket else ""
    if named and "/" not in named.removeprefix("gs://"):
        named += f"/{_PREFIX}"
    if root is not None and "://" in root:
        found = _in_bucket(root)
        if named and found.split("/")[2] != named.split("/")[2]:
            raise InputError(f"Two buckets are named: {found!r} as the root, and {bucket!r} as {backend}'s. Name one.")
        return found
    if root is not None and explicit:
        raise InputError(
            f"Machines of {backend} see no folder of this one. Received: root={root!r}. Expected: gs://BUCKET/PREFIX, or "
            "nothing and a bucket."
        )
    return named or NO_BUCKET


def _in_bucket(text: str) -> str:
    if not in_bucket(text):
        raise InputError(f"Runs live in a folder or below gs://BUCKET/PREFIX. Received: root={text!r}.")
    text = text.rstrip("/")
    if not _IN_BUCKET.fullmatch(text) or not text.isprintable():
        raise InputError(
            f"This is no place in a bucket. Received: {text!r}. Expected: gs://BUCKET/PREFIX, where a bucket's name has 3 to "
            "63 lowercase letters, digits, dashes, underscores and dots."
        )
    return text


def _of_project() -> tuple[str, str | None]:
    # What is wrong with the file is said beside the verb's own words.
    with suppress(OSError):
        found = configfile.find(Path.cwd(), Problems())
        value = found.values.get("root")
        return found.place, value if isinstance(value, str) else None
    return "", None


@contextmanager
def _sourced(source: str) -> Iterator[None]:
    """Let a mistake name the file or the variable from which the root comes."""
    try:
        yield
    except InputError as error:
        raise InputError([f"{text} It comes from {source}." if source else text for text in error.problems]) from None


def check_writable(root: str) -> None:
    """Raise where a root cannot be made or written.

    Raises:
        InputError: names the place that is in the way.
    """
    # The only call that says of a name that it is too long.
    with suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(root)
    place = Path(root)
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise InputError(f"The root cannot be made: {str(place)!r} is a file. Received: {root!r}.")
    above = next(
        (str(p) for p in [Path(root), *Path(root).parents] if (p / "plan.json").is_file() and (p / "events").is_dir()),
        None,
    )
    if above is not None:
        raise InputError(
            f"The root lies inside the run {above!r}, whose folder is its own. Received: {root!r}. Name another (--root)."
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(
            f"The root cannot be written: no permission for {str(place)!r}. Received: {root!r}. Name another (--root)."
        )
