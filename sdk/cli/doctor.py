"""The verb that checks the machine, or the account at a backend's service: doctor."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict
from threading import Thread
from typing import TypeVar

import typer

from .. import backends
from ..backends.services import SetupService
from ..checks.check import Check, Row, bad, unknown
from ..clock import Clock, SystemClock
from ..errors import InputError, Problems, UnavailableError
from ..planning.roots import cloud_root, resolve_root
from ..planning.settings import table
from ..planning.settings.merge import UNNAMED, Destination, gather
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from ..storage import emulator
from ..text import counted, emulator_at
from ..upkeep import doctor as machine
from .options import with_some
from .output import answer, as_json, say
from .parameters import PROPOSED, CheckedBackend, Json, Root

_OF_SERVICES = [name for name, setting in table.settings().items() if setting.group in PROPOSED]
_WORDS = {"error": "FAILED", "warning": "warning", "note": "note", "unknown": "not known"}
_NEXT, _INDENT = "\n    Next: ", "\n          "
# Each request of a row has a shorter limit of its own.
_LIMIT_S = 60.0
_T = TypeVar("_T")


@with_some(["accelerator", "workers", "ps", "evaluator", *_OF_SERVICES])
def doctor(
    flat_settings: dict[str, object], backend: CheckedBackend = None, root: Root = None, json_output: Json = False
) -> None:
    """Check whether this machine can run podlift, or what an account lacks: --backend vertex.

    Each failure says what to do about it. Nothing is changed.
    """
    checks = []
    rows = _of_machine(root, flat_settings) if backend is None else _of_account(backend, root, flat_settings)
    for check in answers(rows, SystemClock()):
        checks.append(check)
        if not json_output:
            answer(text(check))
    levels = Counter("ok" if check.ok else check.level for check in checks)
    code = EXIT_INFRASTRUCTURE if levels["error"] else EXIT_DONE
    if json_output:
        as_json({"checks": [asdict(check) for check in checks], "failed": levels["error"], "exit_code": code})
    warned = counted(levels["warning"], "warning") if levels["warning"] else "no warnings"
    not_known = f", {levels['unknown']} not known" if levels["unknown"] else ""
    say(f"{levels['error'] or 'Nothing'} failed, {warned}{not_known}.")
    if backend is not None and emulator.endpoint():
        say(
            f"gcloud reaches the {emulator_at(emulator.endpoint())} only with the lines that podlift emulator has printed."
        )
    raise typer.Exit(code)


def answers(rows: Sequence[Row], clock: Clock, limit_s: float = _LIMIT_S) -> Iterator[Check]:
    """Yield the result of each row, in their order. Rows with requests run at once, and share this time limit."""
    until = clock.monotonic() + limit_s
    futures = [_apart(lambda row=row: list(row.look())) if row.online else None for row in rows]  # type: ignore[misc]
    for row, future in zip(rows, futures, strict=True):
        if future is not None and not wait([future], max(0.0, until - clock.monotonic())).done:
            yield unknown(row.name, f"there was no answer within {limit_s:g} s", "check the network")
            continue
        try:
            yield from row.look() if future is None else future.result()
        except Exception as error:  # an unusual machine may break one row: the others still count
            message = f"the check failed: {type(error).__name__}: {error}"
            yield bad(row.name, "error", message, "report this, with the line above")


def _apart(call: Callable[[], _T]) -> Future[_T]:
    """Call in a thread that cannot hold the process; threads of an executor can."""
    future = Future[_T]()

    def answer() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=answer, daemon=True).start()
    return future


def text(check: Check) -> str:
    """Return the finding in one line and the next step in another; a command can be copied from its line."""
    line = f"{'ok' if check.ok else _WORDS[check.level]:<9} {check.name:<15} {check.said}"
    if check.ok:
        return line
    steps = filter(None, [check.fix.removesuffix(check.command).rstrip(), check.command])
    end = "" if line.endswith((".", "?")) else "."
    return f"{line}{end}{_NEXT}{_INDENT.join(steps)}" if check.fix else f"{line}{end}"


def _of_machine(root: str | None, flat_settings: dict[str, object]) -> Sequence[Row]:
    if flat_settings:
        flags = ", ".join(table.settings()[name].flag for name in flat_settings)
        raise InputError(f"{flags}: only together with --backend. Next: podlift doctor --backend NAME.")
    try:
        return machine.rows(resolve_root(root, os.environ), os.environ)
    except InputError as error:
        fix = "set --root or PODLIFT_ROOT to a folder"
        wrong = [bad("root", "error", problem, fix) for problem in error.problems]
        return [Row("root", lambda: wrong), *machine.rows(None, os.environ)]


def setup_of(backend: str) -> SetupService:
    """Return the service that looks at an account; InputError for a backend without one."""
    service = backends.load(backend).services.setup
    if service is None:
        raise InputError(f"The backend {backend} needs no setup. Received: {backend!r}. Known: {', '.join(PROPOSED)}.")
    return service


def _of_account(backend: str, root: str | None, flat_settings: dict[str, object]) -> Sequence[Row]:
    service, problems = setup_of(backend), Problems()
    settings = gather(UNNAMED, flat_settings, Destination(backend=backend, root=root), os.environ, problems)
    with problems.closing(settings.sourced):
        job = table.job({**settings.job, "entry": "train.py"})
        target = table.target(backend, settings.values)
        root_url = settings.target.root
        explicit = settings.origins.get("root") == "argument"
        where = cloud_root(backend, target.bucket, None if root_url is None else str(root_url), explicit=explicit)
    # It asks who the caller is.
    rows = _apart(lambda: service.rows(job, target, where))
    if not wait([rows], _LIMIT_S).done:
        raise UnavailableError(
            f"There was no answer within {_LIMIT_S:g} s. Next: check the network, then podlift doctor again."
        )
    return rows.result()
