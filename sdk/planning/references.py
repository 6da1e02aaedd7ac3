"""References to runs: an id, a prefix of an id, "latest", a directory, or a URL."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .. import ids
from ..errors import InputError, RunNotFoundError, nearest
from ..packaging.paths import usable
from ..spec.layout import RootPaths, RunPaths
from ..text import and_more
from . import remote
from .roots import configured_root, in_bucket, resolve_root

LATEST = "latest"
_SHOWN = 6


def url_of(text: str, root: str | Path | None, environ: Mapping[str, str]) -> str:
    """Return the directory of the run that `text` refers to, as an absolute path or gs://BUCKET/PREFIX/runs/ID.

    A bare word is a run of the root rather than a folder here, since `podlift get` names its folder after the run. `attach`
    checks that the run exists.
    """
    if in_bucket(text):
        return resolve_root(text, environ)
    with usable("The run", text):
        if text and "/" not in text and not text.startswith((".", "~")):
            return _named(text, configured_root(root, environ))
        return str(Path(text).expanduser().resolve())


def _named(word: str, root: str) -> str:
    exact = RootPaths(root).run(word).url
    if ids.is_run_id(word) and (in_bucket(root) or Path(exact).is_dir()):
        return exact
    here = str(Path(word).resolve())
    if Path(RunPaths(here).plan).is_file():
        return here
    names = _newest(root)
    if word == LATEST and names:
        return RootPaths(root).run(names[0]).url
    fitting = [name for name in names if name.startswith(word)]
    if len(fitting) > 1:
        raise InputError(
            f"{len(fitting)} runs have ids with this prefix, newest first: {and_more(fitting, _SHOWN)}. Received: {word!r}. "
            f"Next: use one of these ids, or {LATEST!r} for the newest run of all."
        )
    if fitting:
        return RootPaths(root).run(fitting[0]).url
    if Path(here).is_dir():
        return here
    if not names:
        raise RunNotFoundError(
            f"No such run. Received: {word!r}. {root!r} holds no runs (--root selects another root)."
        )
    hint = nearest(word, names)
    known = hint if hint.startswith("Did") else f"The newest is {names[0]!r}."
    raise RunNotFoundError(f"No such run. Received: {word!r}. Looked below {root!r}. {known} Next: podlift runs.")


def _newest(root: str) -> list[str]:
    if in_bucket(root):
        return [url.rpartition("/")[2] for url in remote.runs(root, None)]
    return [name for _, name, whole in sorted(candidates(RootPaths(root).runs), reverse=True) if whole]


def candidates(folder: str) -> list[tuple[float, str, bool]]:
    """Return (time of the submit, name, plan is a file that is not empty) for each folder that may be a run."""
    try:
        with os.scandir(folder) as entries:
            # Hidden folders are being removed.
            names = [entry.name for entry in entries if entry.name[0] != "." and _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"The runs cannot be listed: {error.strerror}. Received: {folder!r}.") from None
    return [_submitted(f"{folder}/{name}", name) for name in names]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir()
    return False


def _submitted(url: str, name: str) -> tuple[float, str, bool]:
    # The plan is written once, on submit; the folder's own time changes with its content.
    for place in (RunPaths(url).plan, url):
        with suppress(OSError):
            info = os.stat(place)
            return info.st_mtime, name, place != url and stat.S_ISREG(info.st_mode) and info.st_size > 0
    # Missing or unreadable: the listing reports which.
    return 0.0, name, False
