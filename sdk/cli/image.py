"""The verb that builds a container image for jobs: `podlift image`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import typer

from .. import backends
from ..backends.services import Build, ImageDraft, ImageService
from ..clock import Clock, SystemClock
from ..errors import InputError, PodliftError, Problems, UnavailableError
from ..job.images import EMULATED, family_of
from ..job.setting_names import setting_name
from ..planning.settings import record, table
from ..planning.settings.merge import UNNAMED, Destination, Settings, gather
from ..storage import emulator
from ..text import duration, emulator_at, money
from . import parameters as p
from .output import EXIT_DETACHED, answer, as_json, say

# How long to wait before the next look at a build.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 10.0


def image(
    family: p.ImageFamily = None,
    submit: p.ImageSubmit = False,
    wait: p.ImageWait = True,
    region: p.ImageRegion = None,
    build_account: p.BuildAccount = None,
    dockerfile: p.Dockerfile = None,
    vertex_project: p.ImageProject = None,
    json_output: p.Json = False,
) -> None:
    """Print the build of a container image for CPUs, GPUs or TPUs; with --submit, build it in the cloud.

    The image is written to the project's file by its digest, and is then the default of jobs on such hardware. The same
    content is built once.
    """
    settings = _settings(vertex_project)
    name, service = next((name, services.images) for name, services in backends.offered() if services.images)
    target = table.target(name, settings.values)
    hardware = family or family_of(str(settings.values.get("accelerator") or "cpu"))
    draft = service.draft(hardware, target, region=region, account=build_account, dockerfile=dockerfile)
    about: dict[str, object] = {**asdict(draft), **dict.fromkeys(("digest", "image", "file", "build_id", "log_url"))}
    if submit:
        about |= _submit(service, draft, f"{name}.image", settings, wait)
    if json_output:
        as_json(about)
    elif not submit:
        answer(json.dumps(draft.build, indent=2))
        say(f"This is the build of {draft.name}, from {draft.dockerfile}. Nothing was sent.")
        say(_estimate(draft))
        say(f"Next: podlift image {draft.family} --submit; or write this to a file, and {draft.command}.")
    elif about["image"]:
        answer(str(about["image"]))


def _settings(project: str | None) -> Settings:
    problems = Problems()
    with problems.closing():
        return gather(UNNAMED, {"vertex_project": project} if project else {}, Destination(), os.environ, problems)


def _estimate(draft: ImageDraft) -> str:
    return f"It takes about {draft.minutes} minutes, and costs about {money(draft.usd)}: both are estimates."


def _submit(
    service: ImageService, draft: ImageDraft, setting: str, settings: Settings, wait: bool
) -> dict[str, object]:
    """Build the image and record it, and return the facts about both."""
    where = record.place(Path.cwd())
    # A file that the image could not be written to is refused before anything is spent.
    record.changed(where, setting, draft.family, draft.name)
    clock = SystemClock()
    image, image_facts = service.built(draft, clock), dict[str, object]()
    if image:
        say(f"{draft.name} was built before, with the same content.")
    else:
        build = _built(service, draft, clock, wait)
        image, image_facts = build.image, {"build_id": build.id, "log_url": build.log_url}
    if image:
        file = _record(where, setting, draft, image, settings)
        image_facts |= {"digest": image.rpartition("@")[2], "image": image, "file": file or None}
    return image_facts


def _built(service: ImageService, draft: ImageDraft, clock: Clock, wait: bool) -> Build:
    """Start a build, or find the one that goes on, and return its facts: its end, if it is waited for."""
    try:
        build, started = service.start(draft, clock)
    except KeyboardInterrupt:
        again = f"podlift image {draft.family} --submit, which looks for it before it starts one"
        say(f"podlift: interrupted. It is unknown whether a build was started. Next: {again}.")
        raise typer.Exit(EXIT_DETACHED) from None
    where = f"the {emulator_at(emulator.endpoint())}, which runs no Docker" if emulator.endpoint() else draft.service
    say(f"{'Building' if started else 'This content is being built already:'} {draft.name} with {where}.")
    say(_estimate(draft))
    if build.log_url:
        say(f"Log: {build.log_url}")
    if wait:
        return _watched(service, draft, build, clock)
    _explain_detached(draft, build)
    return build


def _watched(service: ImageService, draft: ImageDraft, build: Build, clock: Clock) -> Build:
    """Wait for the end of a build; an interruption or an outage explains how to continue."""
    start, wait_s, state = clock.monotonic(), _FIRST_WAIT_S, build.state
    try:
        while build.state in ("waiting", "working"):
            clock.sleep(wait_s)
            wait_s = min(wait_s * 1.5, _LONGEST_WAIT_S)
            build = service.look(draft, build, clock)
            if build.state != state and build.state == "working":
                say("Working.")
            state = build.state
    except KeyboardInterrupt:
        _explain_detached(draft, build)
        raise typer.Exit(EXIT_DETACHED) from None
    except UnavailableError:
        _explain_detached(draft, build)
        raise
    if build.state == "failed":
        log = f" Log: {build.log_url}" if build.log_url else ""
        raise PodliftError(f"The build {build.id} failed. {build.problem}{log}")
    say(f"Built in {duration(clock.monotonic() - start)}.")
    return build


def _explain_detached(draft: ImageDraft, build: Build) -> None:
    say(f"The build {build.id} continues.")
    say(f"Next: podlift image {draft.family} --submit, which waits for it and records its image.")
    say(f"To cancel it: {build.cancel}")


def _record(where: record.SettingsFile, setting: str, draft: ImageDraft, reference: str, settings: Settings) -> str:
    """Write the image to the project's file, and return the file; "" if it has a real image, and this is an emulator's."""
    current = record.current(where, setting)
    before = str(current.get(draft.family, "") if isinstance(current, dict) else current or "")
    if before and EMULATED in reference and EMULATED not in before:
        say(f"{str(where.path)!r} keeps {before}, because no registry has the image of an emulator.")
        return ""
    try:
        record.write(where, setting, draft.family, reference)
    except InputError as error:
        raise InputError(f"The image was built: {reference}. {error}") from error
    say(f"Written to {str(where.path)!r}: {setting}.{draft.family}")
    if isinstance(current, str) and current != reference:
        say(f"{setting} was one image for all hardware. Jobs on other hardware keep it: {current}")
    name = setting_name(setting)
    if (origin := settings.origins.get(name, settings.file)) != settings.file:
        say(f"{origin} has priority over it. Next: unset that variable.")
    return str(where.path)
