"""From a slot to its run: the plan of a firing, and starting it exactly once.

A keeper does it in a container: nothing here needs the folder or the packages of the machine that created the schedule.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from .. import launch
from ..clock import Clock
from ..errors import InputError, RunNotFoundError
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..job.values import changed
from ..planning import initial, references, remote, roots
from ..planning.secrets import missing_variables
from ..run import Run
from ..status import Status
from ..storage import data
from .records import ScheduleRecord, SlotRecord, run_id_of
from .templates import rendered


class Runs(Protocol):
    """Starts and follows runs for the state machine of a slot."""

    def submit(self, plan: Plan) -> None:
        """Start the run of a plan, or finish a submit that was interrupted; a run that was started stays as it is."""

    def status(self, url: str) -> Status:
        """Return the status of a run; RunNotFoundError if it was removed."""

    def state_of(self, url: str) -> tuple[Status, Plan]:
        """Return the status of a run without ever waiting for the run, and its plan since its last resume."""

    def cancel(self, url: str) -> None:
        """Request that a run saves and ends."""

    def resume(self, url: str) -> None:
        """Restart a run from its last checkpoint."""

    def close(self) -> None:
        """Stop waiting for runs, which continue."""


class LocalRuns:
    """Runs that continue without this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def submit(self, plan: Plan) -> None:
        if (stored := self._stored(plan)) is not None:
            return launch.finish(stored)
        try:
            launch.start(roots.located(plan, os.environ))
        except InputError:
            # Another server that took the slot over may have been faster.
            if self._stored(plan) is None:
                raise

    def _stored(self, plan: Plan) -> Plan | None:
        """Return the plan as it was submitted: the champion may have moved since."""
        try:
            return references.attached(plan.url, plan.url, os.environ)
        except RunNotFoundError:
            return None
        except InputError:
            # An interrupted submit leaves a folder without a plan.
            return plan if Path(plan.paths.plan).exists() else None

    def status(self, url: str) -> Status:
        return self._run(url).status()

    def state_of(self, url: str) -> tuple[Status, Plan]:
        run = self._run(url)
        return run.status(), run.plan

    def cancel(self, url: str) -> None:
        self._run(url).cancel()

    def resume(self, url: str) -> None:
        self._run(url).resume()

    def close(self) -> None:
        """Do nothing: it waits for no run."""

    def _run(self, url: str) -> Run:
        return Run(references.attached(url, url, os.environ), self._clock)


class KeptRuns(LocalRuns):
    """Runs that this process waits for: while it asks for their status, it submits their next jobs."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._following: dict[str, Generator[Status]] = {}

    def status(self, url: str) -> Status:
        # An error ends the generator: the next call starts another one.
        following = self._following.pop(url, None) or self._run(url).following()
        status = next(following)
        if status.state.terminal:
            following.close()
        else:
            self._following[url] = following
        return status

    def close(self) -> None:
        while self._following:
            self._following.popitem()[1].close()


def url_of(root: str, record: SlotRecord) -> str:
    return RootPaths(root).run(record.run).url


def plan_of(template: Plan, schedule: ScheduleRecord, slot: SlotRecord, previous_success: datetime | None) -> Plan:
    """Return the plan of one firing; InputError if an input or a variable is missing now."""
    times: Mapping[str, datetime | None] = {"slot": slot.moment, "previous_success": previous_success}
    args = rendered(template.job.args, times)
    inputs = rendered(schedule.spec.inputs, times)
    # Without a check: a keeper lacks the library for it.
    job = changed(template.job, args=args, inputs=inputs)
    missing = missing_variables(job, os.environ, here=template.capabilities.runs_here)
    if missing:
        raise InputError(missing)
    plan = replace(template, job=job, inputs=_located(template, inputs, schedule))
    plan = with_arguments(plan, args, run_id_of(schedule, slot.key, slot.moment))
    choice = plan.job.warm_start
    return plan if choice is None else replace(plan, initial=initial.chosen(choice, plan.model, plan.root))


def with_arguments(template: Plan, args: Any, run_id: str) -> Plan:
    """Return the plan of another run with these arguments of the program; its code is ready on this machine."""
    job = changed(template.job, args=args)
    is_call = bool(template.code.function) and isinstance(args, dict)
    code = replace(template.code, argv=[] if is_call else job.argv(), kwargs=args if isinstance(args, dict) else {})
    plan = replace(template, run_id=run_id, job=job, code=code)
    plan = launch.with_interpreter(replace(plan, local=roots.local_folder(plan.root, os.environ)))
    if plan.local:
        remote.fetch_code(plan)
    with suppress(FileNotFoundError):
        # A removal at the same time keeps recently used files.
        os.utime(plan.bundle)
    return plan


def _located(template: Plan, inputs: Mapping[str, str], record: ScheduleRecord) -> dict[str, str]:
    """Return the locations of the inputs. For runs elsewhere, only inputs that depend on the slot are looked up again."""
    here = template.capabilities.runs_here
    to_locate = {name: location for name, location in inputs.items() if here or location != record.spec.inputs[name]}
    located = data.resolve(to_locate, Path(record.spec.folder or "/"))[0] if to_locate else {}
    return {name: located.get(name) or template.inputs[name] for name in inputs}
