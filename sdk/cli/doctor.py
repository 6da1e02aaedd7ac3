"""The verb that checks the machine, or the account at a backend's service: doctor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict

import typer

from .. import backends
from ..checks.check import Check
from ..errors import InputError, Problems
from ..planning.roots import cloud_root, resolve_root
from ..planning.settings import table
from ..planning.settings.merge import UNNAMED, Destination, gather
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from ..storage import emulator
from ..text import counted, emulator_at
from ..upkeep.doctor import examine
from .check_lines import line, lines
from .options import with_some
from .output import answer, as_json, say
from .parameters import CheckedBackend, Json, Root

_OF_SERVICES = [name for name, setting in table.SETTINGS.items() if setting.group in backends.proposed_fields()]


@with_some(["accelerator", "workers", "ps", "evaluator", *_OF_SERVICES])
def doctor(
    given: dict[str, object], backend: CheckedBackend = None, root: Root = None, json_output: Json = False
) -> None:
    """Check whether this machine can run podlift, or what an account lacks: --backend vertex.

    Each failure says what to do about it. Nothing is changed.
    """
    checks = []
    for check in _of_machine(root, given) if backend is None else _of_service(backend, root, given):
        checks.append(check)
        if not json_output:
            answer(line(check) if backend is None else "\n".join(lines(check)))
    failed = [check for check in checks if not check.ok and check.level == "error"]
    code = EXIT_INFRASTRUCTURE if failed else EXIT_DONE
    warned = sum(not check.ok and check.level == "warning" for check in checks)
    if json_output:
        as_json({"checks": [asdict(check) for check in checks], "failed": len(failed), "exit_code": code})
    unknown = sum(check.level == "unknown" for check in checks)
    others = counted(warned, "warning") if warned else "no warnings"
    say(f"{len(failed) or 'Nothing'} failed, {others}{f', {unknown} not known' if unknown else ''}.")
    if backend is not None and emulator.asked():
        say(
            f"gcloud reaches the {emulator_at(emulator.asked())} only with the lines that podlift emulator has printed."
        )
    raise typer.Exit(code)


def _of_machine(root: str | None, given: dict[str, object]) -> Iterator[Check]:
    if given:
        flags = ", ".join(table.SETTINGS[name].flag for name in given)
        raise InputError(f"{flags}: only together with --backend. Next: podlift doctor --backend NAME.")
    place = None
    try:
        place = resolve_root(root, os.environ)
    except InputError as error:
        for problem in error.problems:
            yield Check("root", False, "error", problem, "set --root or PODLIFT_ROOT to a folder")
    yield from examine(place, os.environ)


def _of_service(backend: str, root: str | None, given: dict[str, object]) -> Iterator[Check]:
    service, problems = backends.setup_service(backend), Problems()
    settings = gather(UNNAMED, given, Destination(backend=backend, root=root), os.environ, problems)
    with problems.closing(settings.sourced):
        job = table.job({**settings.job, "entry": "train.py"})
        target = table.target(backend, settings.values)
        place = settings.target.root
        explicit = settings.origins.get("root") == "argument"
        where = cloud_root(backend, target.bucket, None if place is None else str(place), explicit=explicit)
    return service.checks(job, target, where)
