"""Executing plans and resuming ended runs."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from . import backends
from .checkpoint import catalog, opening
from .clock import Clock, SystemClock
from .errors import AlreadyExistsError, InputError, PodliftError, StoreError
from .job.layout import RunPaths
from .job.plan import PackedFile, Plan
from .job.policies import Limits
from .job.values import changed
from .logs import logger
from .packaging import bundle
from .packaging.bundle import ChangedError
from .planning import initial, remote
from .planning.roots import located
from .planning.secrets import missing_variables
from .records import spending
from .records.events import Event, resume_count, saved_step, source_of
from .records.recorder import Recorder
from .status import Reason, State, Status
from .storage import posix
from .storage.registry import open_store
from .text import and_more

_log = logger("launch")

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class CodeDifference:
    """The paths of files that were added, changed or removed in the code of a run."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [("changed", self.changed), ("added", self.added), ("removed", self.removed)]
        words = [f"{word} {and_more(names, _SHOWN)}" for word, names in parts if names]
        return "; ".join(words) or "the code is the same"


def submit(plan: Plan, *, starts: bool = True) -> Plan:
    """Start a plan that was just made, and return it as started: files that changed meanwhile are packed once more.

    Without `starts`, the run is stored with all that its tasks read, and another tool starts it by its manifest.
    """
    try:
        return start(plan, starts=starts)
    except ChangedError:
        # Only packaging needs this: the container of a keeper starts plans without it.
        from .planning.pack import packaged

        with _starting():
            plan = packaged(plan)
        return start(plan, starts=starts)


def execute(plan: Plan, *, starts: bool = True) -> Plan:
    """Start a plan from a file or an earlier call, and return it as this machine sees it.

    InputError if the files of its code have changed.
    """
    with _starting():
        plan = located(plan, os.environ)
        if problems := initial.problems(plan):
            raise InputError(problems)
    return start(plan, starts=starts)


@contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PodliftError(f"The run could not be started: {error}.") from error


@_starting()
def start(plan: Plan, *, starts: bool = True) -> Plan:
    """Store exactly this plan and its code, start it, and return it. Nothing about the run is decided here."""
    backend = backends.load(plan.backend)
    request = backend.render(plan)
    if starts:
        backend.check(request)
    bundle.write(bundle.of(plan), Path(plan.code.project), Path(plan.bundle))
    if plan.warm_start:
        _pin_start(plan)
    # The plan makes the folder a run, and a run without a records folder counts as damaged: create that first.
    durable = set(posix.make_folders(plan.paths.events))
    try:
        posix.put_new(plan.paths.plan, plan.to_json().encode())
        posix.sync_names(plan.paths.events, plan.paths.root, durable)
        if plan.local:
            remote.publish(plan)
    except (FileExistsError, AlreadyExistsError):
        raise InputError(f"This plan was submitted before. Next: podlift status {plan.run_id}.") from None
    Recorder(plan.paths, "client", 0, SystemClock()).record("submitted")
    if starts:
        backend.start(request)
    return plan


def _pin_start(plan: Plan) -> None:
    """Pin the checkpoint of another run with which this one starts: that run may remove it before this one begins."""
    url, _, key = plan.warm_start.rpartition("#")
    try:
        catalog.pin(open_store(url), key, f"start-{plan.run_id[-34:]}")
    except InputError:
        raise
    except (PodliftError, OSError) as error:
        _log.info(
            f"The checkpoint {key!r} of {url} could not be pinned, and its run may remove it before this one has begun. {error}"
        )


def finish(plan: Plan) -> None:
    """Start a run whose submit was interrupted after its plan was written; one that was started stays as it is."""
    with suppress(FileExistsError):
        Recorder(plan.paths, "client", 0, SystemClock()).record("submitted")
    backend = backends.load(plan.backend)
    backend.start(backend.render(plan))


def resume(
    plan: Plan, events: Sequence[Event], status: Status, code: str, clock: Clock, limits: Limits | None = None
) -> tuple[Plan, CodeDifference]:
    """Restart a run, perhaps with other limits, and return its plan and the difference of its code.

    Raises:
        InputError: it cannot be resumed.
    """
    if code not in ("same", "current"):
        raise InputError(f"code must be 'same' or 'current'. Received: {code!r}.")
    other = limits is not None and limits != plan.job.limits
    if other:
        plan = replace(plan, job=changed(plan.job, limits=limits))
    problems = _not_resumable(plan, status) or _without_checkpoints(plan, events) or _too_expensive(plan, events)
    if not problems and code == "same":
        problems = _without_code(plan)
    problems += missing_variables(plan.job, os.environ, here=plan.capabilities.runs_here)
    if problems:
        raise InputError(problems)
    plan, data, difference = _continued(plan, events, code, revised=other)
    data |= {"attempts": status.attempts, "cancel_requests": len(posix.list_names(plan.paths.control))}
    backend = backends.load(plan.backend)
    request = backend.render(plan)
    backend.check(request)
    recorder = Recorder(plan.paths, source_of("client", resume_count(events) + 1), 0, clock)
    try:
        recorder.record("resumed", **data)
    except FileExistsError:
        raise _too_late(plan) from None
    if plan.local:
        _adopt(plan, resume_count(events) + 1)
    backend.start(request)
    return plan, difference


def _continued(
    plan: Plan, events: Sequence[Event], code: str, *, revised: bool
) -> tuple[Plan, dict[str, object], CodeDifference]:
    """Return the plan with which a run continues, what its record says about it, and the difference of its code."""
    if code == "current":
        plan, difference = _current(plan)
        about = {"digest": plan.code.digest, "difference": str(difference)}
        return plan, {"plan": _revised(plan, events), "code": about}, difference
    before, plan = plan, with_interpreter(plan)
    revised = revised or plan is not before
    return plan, {"plan": _revised(plan, events)} if revised else {}, CodeDifference()


def with_interpreter(plan: Plan) -> Plan:
    """Return the plan with the Python of this process if the plan's own one has moved, or is not for this user."""
    if not plan.capabilities.runs_here or os.access(plan.facts.executable, os.X_OK):
        return plan
    return replace(plan, facts=replace(plan.facts, executable=sys.executable))


def _revised(plan: Plan, events: Sequence[Event]) -> str:
    """Write the plan with which a run continues, and return its name."""
    name = f"{resume_count(events) + 1:04d}-{uuid.uuid4().hex[:8]}"
    posix.put_new(plan.paths.revision(name), plan.to_json().encode())
    return name


def _not_resumable(plan: Plan, status: Status) -> list[str]:
    run = plan.run_id
    if not plan.capabilities.supervised_here and status.reason is Reason.SUBMITTED:
        return [
            f"The job of the run {run} is not created yet: the submitting process is still working on it. Next: podlift wait "
            f"{run}, or if that process was killed, podlift cancel {run} and then podlift resume {run}."
        ]
    if not status.state.terminal:
        return [f"The run {run} is {status.state.value}: there is nothing to resume. Next: podlift wait {run}."]
    if status.state is State.SUCCEEDED:
        return [f"The run {run} has succeeded: there is nothing to resume. Next: submit it again."]
    return []


def _without_code(plan: Plan) -> list[str]:
    if plan.local:
        remote.fetch_code(plan)
    bundle_exists = Path(plan.bundle).exists()
    try:
        # A missing or damaged bundle is made again if the project still has the same files.
        bundle.write(bundle.of(plan), Path(plan.code.project), Path(plan.bundle))
    except (InputError, OSError):
        what = "is damaged" if bundle_exists else "was removed"
        return [
            f"The code of the run {plan.run_id} is gone: {plan.bundle!r} {what}, and the project has changed since. Next: "
            f"submit it again, or podlift resume {plan.run_id} --code current."
        ]
    return []


def _without_checkpoints(plan: Plan, events: Sequence[Event]) -> list[str]:
    step, paths = saved_step(events, warm=bool(plan.warm_start)), RunPaths(plan.url)
    if step is None:
        return initial.problems(plan)
    # If the store is not reachable now, the first task checks it.
    with suppress(StoreError):
        if catalog.is_empty(paths):
            return [opening.gone(plan.run_id, paths.store, step)]
    return []


def _too_expensive(plan: Plan, events: Sequence[Event]) -> list[str]:
    """Return why the limit on the cost of a run does not allow another job, which gets the whole time limit again."""
    used = spending.total(event.data for event in events if event.kind == "final") or spending.Spent()
    if not plan.prices:
        return []
    # Its jobs may come to any of its places; each timeout is shorter by the time of the jobs before.
    price = max(
        plan.prices,
        key=lambda quote: (quote.own is None and not plan.job.limits.allow_unknown_price, quote.at_least),
    )
    limits, keeper = plan.job.limits, plan.keeper.price if plan.keeper else None
    job = spending.next_job(limits, used, price, price.region, counted_s=0.0, keeper=keeper)
    if job.refused is None:
        return []
    options = spending.remedies(limits, used, price, job, keeper=keeper)
    again = "submit it again with limit_allow_unknown_price=True"
    return [f"{job.why} Next: {f'podlift resume {plan.run_id} {options}' if options else again}."]


def _too_late(plan: Plan) -> InputError:
    return InputError(f"The run {plan.run_id} was resumed by another process. Next: podlift status {plan.run_id}.")


def _adopt(plan: Plan, resumes: int) -> None:
    """Claim the resume in the bucket, which grants it to one machine only."""
    record = plan.paths.event(0, source_of("client", resumes), 1, "resumed")
    try:
        if remote.adopt(plan, resumes, os.path.basename(record)):
            return
    except BaseException:
        os.unlink(record)
        raise
    os.unlink(record)
    raise _too_late(plan)


def _current(plan: Plan) -> tuple[Plan, CodeDifference]:
    """Package the project's current code, and return the plan with it and the difference."""
    from .planning.pack import packaged
    from .planning.prepare import planned_again

    if plan.code.generated:
        written = ", ".join(plan.code.generated)
        raise InputError(
            f"The current code of the run {plan.run_id} is unknown: it came from a notebook or a function in memory "
            f"({written}). Next: submit it again with checkpoint_resume_from={plan.run_id!r}."
        )
    current_plan = packaged(planned_again(plan, os.environ))
    return current_plan, _difference(plan.code.files, current_plan.code.files)


def _difference(before: Sequence[PackedFile], now: Sequence[PackedFile]) -> CodeDifference:
    old, new = ({file.path: (file.sha256, file.executable) for file in files} for files in (before, now))
    return CodeDifference(
        added=tuple(sorted(new.keys() - old.keys())),
        changed=tuple(sorted(path for path in new.keys() & old.keys() if new[path] != old[path])),
        removed=tuple(sorted(old.keys() - new.keys())),
    )
