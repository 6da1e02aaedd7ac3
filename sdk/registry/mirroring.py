"""The champion of a model, mirrored to a service's registry of models: its version, and an alias that names it.

    records/<model>/mirror.json     where, and what became of it; changed by compare-and-swap
    exports/<model>/000001/...      the files of a mirrored version, whole, as the service reads them

The champion moves first, and stays whatever becomes of the mirror. The record names the class that asks the service: the last
phase of a run promotes in a container, and has no table of backends.
"""

from __future__ import annotations

import importlib
import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from ..errors import ConflictError, CorruptObjectError, InputError, MissingError, PodliftError, StoreError
from ..ids import digest_of
from ..logs import logger
from ..spec.layout import RootPaths
from ..storage import emulator, trees
from ..storage.registry import open_files
from ..storage.store import current
from .mirrors import MirrorDraft, MirroredVersion, MirrorPlace, MirrorService
from .records import FORMAT, account, decoded

if TYPE_CHECKING:
    from .models import Model, ModelVersion

ALIAS = "champion"
_log = logger("backends.mirror")
_CLASS = re.compile(r"(backends(?:\.[a-z_]+)+):([A-Za-z]+)")
_ROOT_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class MirrorRecord:
    """Where a model is mirrored, and what became of it."""

    service: str  # the class that asks the service
    place: MirrorPlace
    champion: int = 0  # the champion that was mirrored last, 0 for none
    alias: str = ""  # the id there of the version that got the alias last
    moving: str = ""  # the id of the version that is about to get it
    problem: str = ""  # why the last attempt failed
    time: float = 0.0  # of the last attempt, a Unix time
    by: str = ""
    version: int = FORMAT


def key(model: str) -> str:
    return f"records/{model}/mirror.json"


def read(model: Model) -> tuple[MirrorRecord | None, str | None]:
    """Return where a model is mirrored, None if it is not, and the generation of the object that holds it."""
    try:
        data, generation = current(model.store, key(model.name))
        return decoded(MirrorRecord, data, f"{model.store.url}/{key(model.name)}"), generation
    except MissingError:
        return None, None
    except CorruptObjectError as error:
        raise CorruptObjectError(
            f"{error} Next: podlift models mirror {model.name} --stop, which removes it and leaves the service as it is; then "
            f"mirror the model again."
        ) from None


def write(model: Model, record: MirrorRecord, generation: str | None) -> None:
    made = replace(record, time=model.clock.now(), by=account())
    data = json.dumps(asdict(made), sort_keys=True).encode()
    model.store.swap(key(model.name), [data], expected=generation)


def stop(model: Model) -> None:
    """Mirror a model no longer. What is at the service stays."""
    with suppress(MissingError):
        model.store.delete(key(model.name))


def follow(model: Model) -> None:
    """Mirror the champion of a model that is mirrored. A failure is logged and recorded, and changes nothing else."""
    try:
        if read(model)[0] is not None:
            sync(model)
    except Exception as error:  # of any vendor's library: the promotion has happened
        text = emulator.mask_token(str(error) or type(error).__name__)
        _log.warning(
            f"The champion of {model.name!r} was not mirrored: {text} Next: podlift models mirror {model.name}"
        )
        with suppress(PodliftError):
            record, generation = read(model)
            if record is not None:
                write(model, replace(record, problem=text), generation)


def sync(model: Model, *, take_alias: bool = False) -> MirrorRecord:
    """Let the service have the champion, and the alias name it; with `take_alias` also if another client moved that."""
    given: set[str] = set()  # versions that got the alias from this process
    while True:
        record, generation = _required(model)
        service, champion = service_of(record), model.record()[0].champion
        if not champion:
            return record
        made, holder = _placed(model, record, service, champion)
        if holder is not None and not take_alias and holder.id not in {record.alias, record.moving, made.id, *given}:
            raise InputError(_moved(model, record, holder, made))
        done = replace(record, champion=champion, alias=made.id, moving="", problem="")
        try:
            if holder is None or holder.id != made.id:
                moving = replace(record, moving=made.id)
                write(model, moving, generation)
                service.set_alias(record.place, made, ALIAS, model.clock)
                given.add(made.id)
                generation = _same(model, moving)
            write(model, done, generation)
        except ConflictError:
            continue  # another process mirrors, too
        if model.record()[0].champion == champion:
            return done


def _same(model: Model, expected: MirrorRecord) -> str | None:
    """Return the generation of the record if it is still the expected one; ConflictError if it is not."""
    record, generation = _required(model)
    if (record.alias, record.moving, record.place) != (expected.alias, expected.moving, expected.place):
        raise ConflictError(f"{model.store.url}/{key(model.name)} was changed by another process.")
    return generation


def _required(model: Model) -> tuple[MirrorRecord, str | None]:
    record, generation = read(model)
    if record is None:
        raise InputError(
            f"The model {model.name!r} is not mirrored. Next: podlift models mirror {model.name} --to BACKEND, such as vertex."
        )
    emulator.require(record.place.emulator, f"The mirror of the model {model.name!r}")
    return record, generation


def service_of(record: MirrorRecord) -> MirrorService:
    match, named = _CLASS.fullmatch(record.service), None
    try:
        if match is not None:
            named = getattr(importlib.import_module(f"..{match[1]}", __package__), match[2], None)
    except ImportError as error:
        raise InputError(
            f"{record.place.model} cannot be asked from here: {error}. Next: pip install podlift."
        ) from error
    # Others may write this record: nothing else of podlift is called.
    if not (isinstance(named, type) and hasattr(named, "set_alias")):
        raise CorruptObjectError(f"The record of the mirror names no service. Received: {record.service!r}.")
    made: MirrorService = named()
    return made


def _placed(
    model: Model, record: MirrorRecord, service: MirrorService, number: int
) -> tuple[MirroredVersion, MirroredVersion | None]:
    """Return the version of a number at the service, where it is made if it is missing, and the one with the alias."""
    found, version = service.versions(record.place, model.clock), model.version(number)
    wanted = _draft(model, record, version)
    made = next((each for each in found if wanted.is_of(each)), None)
    if made is None:
        _export(model, version)
        made = service.upload(wanted, model.clock)
    elif not version.record.manifest.startswith(made.manifest):
        raise InputError(
            f"Version {number} of {model.name!r} is in {record.place.model} with other files (version {made.id} there): the "
            "records of this model were removed and made again. Nothing was changed there. Next: another name for the model."
        )
    return made, next((each for each in found if ALIAS in each.aliases), None)


def _draft(model: Model, record: MirrorRecord, version: ModelVersion) -> MirrorDraft:
    files, about = f"{model.store.url}/{folder(model.name, version.number)}", version.record
    return MirrorDraft(
        place=record.place,
        name=model.name,
        root=root_digest(model.root),
        number=about.number,
        run=about.run,
        manifest=about.manifest,
        files=files,
        about=f"podlift: {model.name}, version {about.number} of the run {about.run}, sha256 {about.manifest}, files {files}",
    )


def root_digest(root: str) -> str:
    return digest_of(root.encode())[:_ROOT_DIGITS]


def folder(model: str, number: int) -> str:
    return f"exports/{model}/{number:06d}"


def _export(model: Model, version: ModelVersion) -> None:
    """Write the files of a version to the bucket, each verified by its digest; what is there already stays."""
    bucket = open_files(RootPaths(model.root).models)
    known = {each.name: each for each in bucket.list(f"{folder(model.name, version.number)}/")}
    with tempfile.TemporaryDirectory(prefix="podlift-model-") as local:
        whole = version.download(f"{local}/files")
        for path in trees.walk(whole).files:
            name = f"{folder(model.name, version.number)}/{path}"
            bucket.upload(name, f"{whole}/{path}", known.get(name))


def _moved(model: Model, record: MirrorRecord, holder: MirroredVersion, made: MirroredVersion) -> str:
    ours = f" (version {holder.number} of {model.name!r})" if holder.number else ""
    place = record.place.model
    back = f"; or podlift models promote {model.name} {holder.number}" if holder.number else ""
    return (
        f"Another client moved the alias {ALIAS!r} of {place}: it is on its version {holder.id}{ours}, not on its "
        f"version {made.id}, the champion (version {made.number} of {model.name!r}). Nothing was changed there. "
        f"Next: podlift models mirror {model.name} --take-alias, which moves it to the champion{back}."
    )


def drift(model: Model) -> list[str]:
    """Return a sentence for everything at the service that differs from the champion; change nothing."""
    record, _ = _required(model)
    champion = model.record()[0].champion
    if not champion:
        return []
    found = service_of(record).versions(record.place, model.clock)
    wanted = _draft(model, record, model.version(champion))
    made = next((each for each in found if wanted.is_of(each)), None)
    holder = next((each for each in found if ALIAS in each.aliases), None)
    place = record.place.model
    if made is None:
        return [f"{place} lacks version {champion}, the champion. Next: podlift models mirror {model.name}."]
    if holder is None:
        return [f"{place} has no alias {ALIAS!r}. Next: podlift models mirror {model.name}."]
    if holder.id == made.id:
        return []
    if holder.id in (record.alias, record.moving):
        was = f"version {holder.number}"
        return [f"The alias {ALIAS!r} of {place} is still on {was}. Next: podlift models mirror {model.name}."]
    return [_moved(model, record, holder, made)]


def begin(model: Model, service: str, place: MirrorPlace, known: Sequence[MirroredVersion], *, adopt: bool) -> None:
    """Record where a model is mirrored from now on; with `adopt`, also to a model that podlift did not make."""
    if known and not adopt and not any(each.root == root_digest(model.root) for each in known):
        raise InputError(
            f"{place.model} exists, and none of its versions is from {model.root}. Nothing was changed. Next: --as "
            f"{place.model.rpartition('/')[2]}, if versions of {model.name!r} belong there; or another id."
        )
    while True:
        before, generation = read(model)
        record = MirrorRecord(service=service, place=place)
        if before is not None and before.place.model == place.model:
            record = replace(before, service=service, place=place)
        try:
            return write(model, record, generation)
        except ConflictError:
            continue
        except StoreError:
            # The reply may have been lost.
            found = read(model)[0]
            if found is None or found.place != place:
                raise
            return None
