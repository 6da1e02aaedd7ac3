"""The root: the folder, or the prefix in a bucket, below which runs, bundles and models live."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, TypeVar

from .. import backends
from ..errors import InputError, Problems, nearest
from ..job.plan import Plan
from ..job.policies import PREFIX
from ..job.values import is_utf8
from ..records.named import NamedRecords, remembered
from ..storage import cache, emulator, posix
from ..storage.folder_files import SCHEME, in_folder, path_of
from ..storage.gcs import files as gcs_files
from ..storage.paths import usable
from ..text import emulator_at, joined
from .settings import file as configfile

_DEFAULT_ROOT = "~/.podlift"
# The placeholder that a plan shows while no bucket is set; nothing can start there.
NO_BUCKET = f"gs://<bucket>/{PREFIX}"
# A file in a root that several machines share.
_SHARED = ".podlift-shared"
# No wildcards of a listing, and no path segments that start with a dot, which stores reserve.
_IN_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^/.*?\[\]{}\\][^/*?\[\]{}\\]*)*")

_B = TypeVar("_B", bound=NamedRecords[Any])


def resolve_root(root: str | Path | None, environ: Mapping[str, str]) -> str:
    """Return the root as an absolute path, gs://BUCKET/PREFIX, or file:///PATH of a folder that machines share.

    It is the argument, else `PODLIFT_ROOT`, else the root in the project's file, else the default.
    """
    if root is None:
        file = _file()
        value = file.values.get("root")
        with _sourced("PODLIFT_ROOT" if environ.get("PODLIFT_ROOT") else file.source):
            configured = environ.get("PODLIFT_ROOT") or (value if isinstance(value, str) else None)
            return resolved(configured)
    return resolved(root)


def resolved(root: str | Path | None, *, shared: bool = False) -> str:
    """Return a root that was named as an absolute path or a URL; None is the default. `shared`: machines share its folder."""
    root = _DEFAULT_ROOT if root is None else root
    text = str(root)
    if not isinstance(root, (str, PurePath)) or not text:
        raise InputError(f"The root is not a folder. Received: {root!r}. Omit it for {_DEFAULT_ROOT!r}.")
    if not is_utf8(text):
        raise InputError(f"The root's name is not UTF-8, but records of runs store it as text. Received: {text!r}.")
    if in_folder(text):
        return f"{SCHEME}{os.path.realpath(path_of(_checked_url(text)))}"
    if "://" in text:
        return _checked_url(text)
    with usable("The root", text):
        folder = str(Path(text).expanduser().resolve())
        return f"{SCHEME}{folder}" if shared or is_shared(folder) else folder


def configured_root(root: str | Path | None, environ: Mapping[str, str], backend: str | None = None) -> str:
    """Return the root to search for runs: as `resolve_root`, but the bucket of a cloud if that is the configured backend.

    `backend` is the backend of the runs to search; None for the configured one.
    """
    if root is not None:
        return resolve_root(root, environ)
    cloud = _cloud_root_of(backend or configured_backend(environ), environ, _file())
    if cloud == NO_BUCKET and backend:
        setting = "root" if backends.load(backend).capabilities.shares_folders else f"{backend}_bucket"
        raise InputError(
            f"Runs of {backend} live in a bucket, but none is set. Next: --root gs://BUCKET/PREFIX, or {setting} in "
            "the project's file."
        )
    return resolve_root(None, environ) if cloud in ("", NO_BUCKET) else cloud


def configured_backend(environ: Mapping[str, str]) -> str:
    """Return the name of the configured backend."""
    return str(environ.get("PODLIFT_BACKEND") or _file().values.get("backend") or "local")


def configured_roots(environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the roots of all configured backends, beginning with `configured_root`, and the problems of the others."""
    roots, problems, file = [configured_root(None, environ)], [], _file()
    # Other backends use the root of this machine. They are not loaded: that would take longer than listing runs.
    named = [
        name for name in backends.names() if environ.get(_bucket_variable(name)) or file.values.get(f"{name}_bucket")
    ]
    for name in ("", *named):
        try:
            roots.append(_cloud_root_of(name, environ, file) if name else resolve_root(None, environ))
        except InputError as error:
            problems.append(f"The runs of {name or 'this machine'} are not listed: {error}")
    return [root for root in dict.fromkeys(roots) if root and root != NO_BUCKET], problems


def searched(root: str | Path | None) -> tuple[list[str], list[str]]:
    """Return this root, or without one all configured roots, and a sentence for each unusable one."""
    return configured_roots(os.environ) if root is None else ([resolve_root(root, os.environ)], [])


def holding(name: str, root: str | Path | None, book: Callable[[str], _B]) -> _B:
    """Return the records of the root that holds a name; InputError with the places that were searched."""
    books = [book(place) for place in searched(root)[0]]
    names = set[str]()
    for each in books:
        if name in (here := each.names()):
            return each
        names |= set(here)
    roots, noun = [each.root for each in books], books[0].noun
    step = elsewhere(noun, roots, name) or (
        nearest(name, sorted(names)) if names else f"There is none. Next: podlift {noun} create."
    )
    raise InputError(f"No such {noun} below {joined(roots, 'or')}. Received: {name!r}. {step}")


def elsewhere(noun: str, roots: Sequence[str], name: str = "") -> str:
    """Return the other roots in which this machine has used a record of this name, or any; "" if there is none."""
    known = remembered(noun)
    others = [other for other in ([known.get(name, "")] if name else known.values()) if other and other not in roots]
    if not others:
        return ""
    what, places = "it" if name else f"{noun}s", joined(list(dict.fromkeys(others)), "and")
    return f"This machine has used {what} below {places}. Next: --root {others[0]}"


def _bucket_variable(backend: str) -> str:
    return f"PODLIFT_{backend.upper()}_BUCKET"


def _cloud_root_of(backend: str, environ: Mapping[str, str], file: configfile.FileSettings) -> str:
    """Return the configured bucket of a backend, `NO_BUCKET` if it needs one and none is set, "" if it needs none."""
    if backend not in backends.names() or not backends.load(backend).capabilities.needs_bucket:
        return ""
    variable = _bucket_variable(backend)
    bucket = environ.get(variable) or file.values.get(f"{backend}_bucket")
    configured = environ.get("PODLIFT_ROOT") or file.values.get("root")
    sources = [name for name in (variable, "PODLIFT_ROOT") if environ.get(name)] + [file.source]
    with _sourced(", ".join(filter(None, sources))):
        named = cloud_root(backend, bucket, None if configured is None else str(configured), explicit=False)
        return named if in_cloud_storage(named) else resolved(named, shared=True)


def in_bucket(root: str) -> bool:
    """True for a root in a bucket, or in a folder that machines share, which is used like a bucket."""
    return in_cloud_storage(root) or in_folder(root)


def in_cloud_storage(root: str) -> bool:
    return root.startswith("gs://")


def is_shared(folder: str) -> bool:
    """True for a root that several machines share: its records are objects, as in a bucket."""
    return os.path.isfile(f"{folder}/{_SHARED}")


def share(root: str) -> None:
    """Mark a folder as a root that machines share, if its URL says so; InputError if it has runs of this machine."""
    if not in_folder(root) or is_shared(folder := path_of(root)):
        return
    _check_writable(folder)
    if any(os.path.isdir(f"{folder}/{name}") for name in ("runs", "models", "schedules")):
        raise InputError(
            f"The root {folder!r} holds runs of this machine, with records in plain files. Runs that other machines supervise "
            "need a separate folder. Next: --root with another folder that all machines see."
        )
    posix.make_folders(folder)
    with suppress(FileExistsError):
        posix.put_new(f"{folder}/{_SHARED}", b"Runs of podlift that several machines share.\n")


def on_emulator(environ: Mapping[str, str]) -> str:
    """Return " on the emulator at HOST:PORT" if one stands in for Google Cloud here, else ""."""
    address = emulator.endpoint(environ)
    return f" on the {emulator_at(address)}" if address else ""


def located(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """Return a plan as this machine sees it: with the folder here of a root in a bucket, and this machine's emulator."""
    if not in_bucket(plan.root):
        return plan
    return asked_here(replace(plan, local=local_folder(plan.root, environ)), "plan of", environ)


def local_folder(root: str, environ: Mapping[str, str]) -> str:
    """Return this machine's copy of a root in a bucket, "" for a root that is a folder."""
    try:
        return cache.bucket_folder(cache.cache_folder(environ), root) if in_bucket(root) else ""
    except RuntimeError:
        raise InputError(
            "A root in a bucket needs a cache folder, but this user has no home folder. Set XDG_CACHE_HOME."
        ) from None


def asked_here(plan: Plan, what: str, environ: Mapping[str, str]) -> Plan:
    """Return a plan with this machine's emulator; InputError, before any request, if the plan belongs to another one."""
    if in_folder(plan.root):
        return plan
    return replace(plan, emulator=emulator.require(plan.emulator, f"The {what} {plan.run_id}", environ))


def cloud_root(backend: str, bucket: str | None, root: str | None, *, explicit: bool) -> str:
    """Return the root of a backend that runs on other machines, as the user named it. Pure.

    `bucket` is the backend's own setting, as BUCKET or BUCKET/PREFIX. `root` is the setting for all backends: a folder there
    only concerns runs of this machine, unless this call names it (`explicit`), or the machines share folders with this one.
    """
    shares = backends.load(backend).capabilities.shares_folders
    if shares and root is not None and not in_cloud_storage(root):
        return root
    named = _checked_url(f"gs://{bucket.removeprefix('gs://').rstrip('/')}") if bucket else ""
    if named and "/" not in named.removeprefix("gs://"):
        named += f"/{PREFIX}"
    if root is not None and "://" in root:
        url = _checked_url(root)
        if in_folder(url):
            raise InputError(
                f"Machines of {backend} share no folder. Received: root={root!r}. Expected: gs://BUCKET/PREFIX."
            )
        if named and url.split("/")[2] != named.split("/")[2]:
            raise InputError(f"Two buckets are given: {url!r} as the root, and {bucket!r} for {backend}. Use one.")
        return url
    if root is not None and explicit:
        raise InputError(
            f"Machines of {backend} cannot see folders of this one. Received: root={root!r}. Expected: gs://BUCKET/PREFIX, or "
            "a bucket and no root."
        )
    return named or NO_BUCKET


def _checked_url(text: str) -> str:
    """Return the URL of a root without slashes at its end; InputError if it is no root. Pure."""
    if in_folder(text):
        if not path_of(text).startswith("/"):
            raise InputError(
                f"The URL of a folder needs an absolute path. Received: {text!r}. Expected: {SCHEME}/PATH."
            )
        return text
    if not in_bucket(text):
        raise InputError(f"A root is a folder or gs://BUCKET/PREFIX. Received: root={text!r}.")
    text = text.rstrip("/")
    if not _IN_BUCKET.fullmatch(text) or not text.isprintable():
        raise InputError(
            f"This is not a location in a bucket. Received: {text!r}. Expected: gs://BUCKET/PREFIX; a bucket's name has 3 to "
            "63 lowercase letters, digits, dashes, underscores and dots."
        )
    return text


def _file() -> configfile.FileSettings:
    """Return the settings of the current project; mistakes in the file are reported elsewhere."""
    with suppress(OSError):
        return configfile.find(Path.cwd(), Problems())
    return configfile.FileSettings()


@contextmanager
def _sourced(source: str) -> Iterator[None]:
    """Add to a mistake the file or the variable that set the root."""
    try:
        yield
    except InputError as error:
        raise InputError([f"{text} root comes from {source}." if source else text for text in error.problems]) from None


def check_root(root: str) -> None:
    """Raise InputError if a root cannot be used."""
    if in_cloud_storage(root):
        gcs_files.check_root(root, retry=gcs_files.INTERACTIVE)
    else:
        _check_writable(path_of(root))


def _check_writable(root: str) -> None:
    """Raise InputError if a root cannot be created or written; the message names the obstacle."""
    # The only call that reports a name that is too long.
    with suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(root)
    existing = Path(root)
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"The root cannot be created: {str(existing)!r} is a file. Received: {root!r}.")
    for above in [Path(root), *Path(root).parents]:
        if (above / "plan.json").is_file() and (above / "events").is_dir():
            raise InputError(
                f"The root lies inside the run {str(above)!r}. Received: {root!r}. Use another root (--root)."
            )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(
            f"The root is not writable: no permission for {str(existing)!r}. Received: {root!r}. Use another root (--root)."
        )
