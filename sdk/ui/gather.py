"""Reads a run into its view. A part that cannot be read leaves the others as they are, and is named."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from .. import ids
from ..checkpoint.catalog import CheckpointInfo
from ..clock import Clock
from ..errors import CorruptRunError, PodliftError
from ..job.plan import Plan
from ..planning import diff
from ..planning.diff import Change
from ..process import log_pages
from ..process.log_lines import LogLine
from ..process.log_pages import LogPage
from ..records.accounts import TaskAccount, recorded
from ..records.events import Event
from ..records.explain import next_command
from ..records.machine import MachineUse, machine_use
from ..records.metric_file import MetricRecord
from ..records.recorder import accounts, last_step, read_events
from ..records.timeline import Moment
from ..status import Goodput, Progress, Status
from ..text import clipped
from . import model
from .curves import curves
from .model import RunView, Tail, TaskView

_T = TypeVar("_T")
# Last lines of each task, and the number of tasks with lines on a page.
LINES, _TASKS = 100, 16
_LONGEST = 2_000
# Errors that a damaged file causes in unexpected places.
DAMAGE = (PodliftError, OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


class SeenRun(Protocol):
    """The part of `Run` that a page reads."""

    @property
    def id(self) -> str: ...
    @property
    def url(self) -> str: ...

    plan: Plan

    def status(self) -> Status: ...
    def why(self) -> str: ...
    def timeline(self) -> list[Moment]: ...
    def progress(self) -> Progress | None: ...
    def goodput(self, task: str | None = None) -> Goodput | None: ...
    def metric_records(self) -> list[MetricRecord]: ...
    def checkpoints(self, best: str | None = None) -> Sequence[CheckpointInfo]: ...
    def logs(self, task: str | None = None, attempt: int | None = None, follow: bool = False) -> Iterator[LogLine]: ...


class _Parts:
    """Reads the parts of a run, and keeps their problems."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, name: str, call: Callable[[], _T], default: _T) -> _T:
        try:
            return call()
        except DAMAGE as error:
            message = str(error) if isinstance(error, PodliftError) else repr(error)
            self.problems.append(f"Not shown: {name}. {clipped(message, _LONGEST)}")
            return default


def look(run: SeenRun, ref: str, clock: Clock, *, brief: bool = False) -> RunView:
    """Return the view of a run; with `brief`, for a cell of a notebook, without logs, checkpoints and files.

    Raises:
        CorruptRunError: its records are damaged, so that it has no status.
    """
    plan, parts, now = run.plan, _Parts(), clock.now()
    status = run.status()
    live = not status.state.terminal
    why = parts.read("the explanation", run.why, "")
    records = parts.read("the metrics", run.metric_records, list[MetricRecord]())
    position = parts.read("the progress", run.progress, None) if live else None
    moments = parts.read("the timeline", run.timeline, list[Moment]())
    saved: Sequence[CheckpointInfo] = () if brief else parts.read("the checkpoints", lambda: run.checkpoints(), ())
    events = parts.read("the tasks", lambda: read_events(plan.paths), list[Event]())
    spent = parts.read(
        "the pace of the tasks", lambda: _accounts(plan, events, status.attempts), dict[str, TaskAccount]()
    )
    where, share = list[tuple[str, str]](), None
    if position is not None:
        where, share = model.pace(position, records, spent.get(plan.tasks[0]), plan.job.limits.max_steps)
    command = next_command(status, ref, generated=bool(plan.code.generated))
    drawn = curves(records, status.created or now)
    return RunView(
        id=run.id,
        url=run.url,
        ref=ref,
        state=status.state.value,
        reason=status.reason.value,
        live=live,
        now=now,
        since=status.since,
        schedule=ids.schedule_of(run.id),
        registered=status.registered,
        arguments=model.argument_rows(plan),
        remarks=model.remarks(status),
        partial=frozenset(name for name, points in drawn.items() if points and points[-1].partial),
        sentence=model.activity(why, status.failure),
        why=why,
        failure=status.failure,
        facts=model.facts(status, plan.place, where, now),
        metrics=_last_values(records),
        curves=drawn,
        moments=moments,
        lanes=model.lanes(moments, saved, status, now),
        tasks=_tasks(parts, plan, events, status.attempts, spent),
        share=share,
        tails=[] if brief else parts.read("the logs", lambda: tails(run, status.attempts), list[Tail]()),
        checkpoints=saved,
        goodput=parts.read("the goodput", run.goodput, None),
        plan=model.plan_rows(plan),
        requirements=model.requirement_lines(plan),
        files=[] if brief else model.file_rows(plan),
        commands=[*command.split(" · "), f"podlift why {ref}"],
        problems=parts.problems,
    )


def _last_values(records: Sequence[MetricRecord]) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {}
    for record in records:
        metrics.update(record["metrics"])
    return dict(sorted(metrics.items()))


def _tasks(
    parts: _Parts, plan: Plan, events: Sequence[Event], attempt: int, spent: Mapping[str, TaskAccount]
) -> list[TaskView]:
    steps = {task: last_step(plan.paths, attempt, task) for task in plan.tasks if attempt}
    machines = parts.read("the machines", lambda: _machines(plan, attempt), dict[str, MachineUse]())
    return model.task_views(plan, events, attempt, steps, spent, machines)


def _accounts(plan: Plan, events: Sequence[Event], attempt: int) -> dict[str, TaskAccount]:
    """Return the account of each task's time in an attempt, from its file or from the record of its end."""
    of_files = accounts(plan.paths, attempt, plan.tasks) if attempt else {}
    ended = {task: recorded(events, task).get(attempt) for task in plan.tasks}
    return {**of_files, **{task: account for task, account in ended.items() if account is not None}}


def _machines(plan: Plan, attempt: int) -> dict[str, MachineUse]:
    used = {task: machine_use(plan.paths, task, attempt) for task in plan.tasks} if attempt else {}
    return {task: use for task, use in used.items() if use is not None}


def tails(run: SeenRun, attempt: int, lines: int = LINES, *, task: str = "", before: int | None = None) -> list[Tail]:
    """Return lines of each task of an attempt, the last ones or those before a place, without reading a whole file."""
    tail_list = []
    for name in [task] if task else run.plan.tasks[:_TASKS] if attempt else ():
        path = run.plan.paths.log(attempt, name)
        if os.path.isfile(path):
            tail_list.append(_tail(name, attempt, log_pages.before(path, lines, before)))
        else:
            last_lines = deque((line.text for line in run.logs(task=name, attempt=attempt)), maxlen=lines)
            tail_list.append(Tail(task=name, attempt=attempt, text=_text(last_lines)))
    return [tail for tail in tail_list if tail.text or tail.begin is not None]


def newer(run: SeenRun, attempt: int, task: str, offset: int, lines: int = LINES) -> Tail:
    """Return the lines of a task after a place in its log."""
    run.logs(task=task, attempt=attempt)  # brings new lines of a run in a bucket
    return _tail(task, attempt, log_pages.after(run.plan.paths.log(attempt, task), lines, offset))


def searched(run: SeenRun, attempt: int, word: str, most: int, task: str = "") -> list[Tail]:
    """Return the last lines of each task that have a word."""
    matching = []
    for name in [task] if task else run.plan.tasks:
        path = run.plan.paths.log(attempt, name)
        if os.path.isfile(path):
            page = log_pages.matching(path, word, most)
            note = f"The last {most} lines that have it." if page.skipped else ""
            matching.append(Tail(task=name, attempt=attempt, text=_text(page.lines), note=note))
        else:
            lines = (line.text for line in run.logs(task=name, attempt=attempt) if word.lower() in line.text.lower())
            matching.append(Tail(task=name, attempt=attempt, text=_text(deque(lines, maxlen=most))))
    return [tail for tail in matching if tail.text]


def _tail(task: str, attempt: int, page: LogPage) -> Tail:
    note = "Lines before these are left out: the log grew fast, or began anew." if page.skipped else ""
    return Tail(task=task, attempt=attempt, text=_text(page.lines), begin=page.begin, end=page.end, note=note)


def _text(lines: Iterable[str]) -> str:
    return "\n".join(clipped(line, _LONGEST) for line in lines)


def differences(plans: Mapping[str, Plan]) -> dict[str, list[Change]]:
    """Return the differences of the plan of each further run to the plan of the first one, without the request."""
    (_, first), *others = plans.items()
    return {name: diff.compare(first, plan, (None, None)) for name, plan in others}


def unreadable(ref: str, url: str, error: Exception) -> RunView:
    """Return the view of a run that cannot be read, with the reason."""
    message = str(error) if isinstance(error, PodliftError) else repr(error)
    kind = "damaged" if isinstance(error, CorruptRunError) else "not readable"
    return RunView(id=ref, url=url, ref=ref, sentence=[f"The run is {kind}."], problems=[message])
