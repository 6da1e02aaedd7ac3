"""The verb that mirrors a model to a service's registry of models: `podlift models mirror`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from .. import registered
from ..errors import CorruptObjectError, InputError
from ..registry import mirroring
from ..registry.mirroring import MirrorRecord
from ..registry.models import Model
from ..registry.records import shown_time
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from . import parameters as p
from .output import answer, as_json, say


def mirror(
    name: p.ModelName,
    to: p.MirrorTo = None,
    model_id: p.MirrorId = None,
    image: p.MirrorImage = "",
    take_alias: p.TakeAlias = False,
    check: p.MirrorCheck = False,
    stop: p.MirrorStop = False,
    root: p.Root = None,
    json_output: p.Json = False,
) -> None:
    """Mirror the champion to a service's registry of models.

    With --to, also after every later promotion. Repeating it repairs what failed.
    """
    if check + stop + (to is not None or take_alias) > 1:
        raise InputError("--check, --stop and --to or --take-alias exclude each other.")
    registry = registered.models(root)
    if check:
        _check(registry[name], json_output)
    if stop:
        mirroring.stop(registry[name])
        say(f"{name}: mirrored no longer. What is there stays.")
        return
    found = registry.mirror(name, to, model_id=model_id, image=image, take_alias=take_alias)
    if json_output:
        as_json(asdict(found))
        return
    answer(found.place.model)
    say(line(found))


def _check(model: Model, json_output: bool) -> None:
    found = mirroring.drift(model)
    if json_output:
        as_json({"differences": found})
    else:
        for each in found or [f"{model.name}: the mirror has the champion"]:
            say(each)
    raise typer.Exit(EXIT_INFRASTRUCTURE if found else EXIT_DONE)


def line(record: MirrorRecord) -> str:
    """Return what a mirror has, in one line."""
    place = record.place.model
    if record.problem:
        return f"not mirrored to {place}: {record.problem}"
    if not record.champion:
        return f"mirrored to {place} from the first promotion on"
    return f"mirrored to {place}@{record.alias}: version {record.champion}, at {shown_time(record.time)}"


def say_mirror(model: Model) -> None:
    """Say what became of the mirror of a model, if it has one."""
    try:
        record = mirroring.read(model)[0]
    except CorruptObjectError as error:  # of the mirror alone: what was asked for has been done
        say(f"{model.name}: {error}")
        return
    if record is not None:
        repair = f" Next: podlift models mirror {model.name}"
        next_step = repair if record.problem and "Next: " not in record.problem else ""
        say(f"{model.name}: {line(record)}{next_step}")
