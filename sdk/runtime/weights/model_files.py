"""Which file of a model's folder holds the weights."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...checkpoint import names
from ...errors import InputError, nearest
from ...storage import trees
from ...text import and_more

Kind = Literal["keras", "weights", "h5", "saved_model", "checkpoint"]
# The first kind that a folder holds is used: a SavedModel beside a .keras file is there for serving.
_SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "keras": (".keras",),
    "weights": (".weights.h5",),
    "h5": (".h5", ".hdf5"),
    "saved_model": ("saved_model.pb",),
    "checkpoint": (".index",),
}
_READABLE = "a .keras file, a .weights.h5 or .h5 file, a SavedModel folder, or a TensorFlow checkpoint"
_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A file or folder with the weights of a model."""

    kind: Kind
    name: str  # relative to the folder, as a user would write it
    path: str


def find(folder: str, what: str, file: str | None = None) -> tuple[ModelFile, Sequence[str]]:
    """Return the file to read, and the names of the other ones; `wanted` names it.

    Raises:
        InputError: there is none, or it is not clear which one; `what` names the folder.
    """
    paths = sorted(trees.walk(folder).files)
    candidates = _candidates(folder, paths)
    check(paths, what)
    offered = [candidate.name for candidate in candidates]
    if file is not None:
        fitting = [candidate for candidate in candidates if candidate.name == posixpath.normpath(file)]
        if not fitting:
            raise InputError(f"{what} has no such model file. Received: {file!r}. {nearest(file, offered)}")
    else:
        fitting = [candidate for candidate in candidates if candidate.kind == candidates[0].kind]
    if len(fitting) > 1:
        raise InputError(
            f"{what} has {len(fitting)} model files: {and_more([fits.name for fits in fitting], _NAMED)}. Next: name one in "
            f"the program before its first fit: sdk.context().warm_start(model, file={fitting[0].name!r})."
        )
    return fitting[0], [name for name in offered if name != fitting[0].name]


def check(paths: Sequence[str], what: str) -> None:
    """Raise InputError unless one of the files may hold weights."""
    if _candidates("", paths):
        return
    has, hint = and_more(paths, _NAMED) or "no files", ""
    if any(names.parse_commit(path[path.rfind(names.COMMITS) :]) for path in paths if names.COMMITS in path):
        hint = (
            " These are checkpoints of podlift, the state of a training. Next: register a file of keras.Model.save, or "
            "continue from that state with checkpoint_resume_from instead of warm_start."
        )
    raise InputError(f"{what} has no weights that can be read. Expected: {_READABLE}. It has {has}.{hint}")


def check_own(array: Any, opened: Any, name: str) -> None:
    """Raise InputError unless the file `opened` holds the values of its array: HDF5 reads them from any file that it names."""
    if array.external or array.is_virtual or array.file.filename != opened.filename:
        raise InputError(
            f"The model's {name!r} names another file for its values, which is not read: it could be any file of this machine. "
            "Next: do not trust this model, or save it again as one file."
        )


def _candidates(folder: str, paths: Sequence[str]) -> list[ModelFile]:
    """Return the files that hold weights, the preferred kind first."""
    files = []
    inside = [posixpath.dirname(path) for path in paths if posixpath.basename(path) == "saved_model.pb"]
    for kind, suffixes in _SUFFIXES.items():
        for path in paths:
            within = any(path.startswith(f"{top}/" if top else "") for top in inside)
            if path.endswith(suffixes) and (kind == "saved_model" or not within):
                files.append(_candidate(folder, kind, path))
    # A .weights.h5 file has the suffix of .h5 files, too.
    return list({file.name: file for file in reversed(files)}.values())[::-1]


def _candidate(folder: str, kind: Kind, path: str) -> ModelFile:
    if kind == "saved_model":
        top = posixpath.dirname(path)
        return ModelFile(kind=kind, name=top or ".", path=os.path.join(folder, top))
    name = path.removesuffix(".index") if kind == "checkpoint" else path
    return ModelFile(kind=kind, name=name, path=os.path.join(folder, name))
