"""The verb that checks the machine: doctor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict

import typer

from ..errors import InputError
from ..planning.roots import resolve_root
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from ..text import counted
from ..upkeep.doctor import Check, examine
from .output import answer, as_json, say
from .parameters import Json, Root


def doctor(root: Root = None, json_output: Json = False) -> None:
    """Check whether this machine can run podlift.

    Each failure says what to do about it.
    """
    checks = []
    for check in _checks(root):
        checks.append(check)
        if not json_output:
            answer(_line(check))
    failed = [check for check in checks if not check.ok and check.level == "error"]
    code = EXIT_INFRASTRUCTURE if failed else EXIT_DONE
    warned = sum(not check.ok and check.level == "warning" for check in checks)
    if json_output:
        as_json({"checks": [asdict(check) for check in checks], "failed": len(failed), "exit_code": code})
    say(f"{len(failed) or 'Nothing'} failed, {counted(warned, 'warning') if warned else 'no warnings'}.")
    raise typer.Exit(code)


def _checks(root: str | None) -> Iterator[Check]:
    place = None
    try:
        place = resolve_root(root, os.environ)
    except InputError as error:
        for problem in error.problems:
            yield Check("root", False, "error", problem, "set --root or PODLIFT_ROOT to a folder")
    yield from examine(place, os.environ)


def _line(check: Check) -> str:
    word = "ok" if check.ok else {"error": "FAILED", "warning": "warning", "note": "note"}[check.level]
    line = f"{word:<8} {check.name:<11} {check.said}"
    if check.ok:
        return line
    return f"{line if line.endswith(('.', '?')) else f'{line}.'} Next: {check.fix}"
