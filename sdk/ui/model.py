"""What a page shows of a run, as typed values: pure functions of its plan, its records and its status."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .. import tracebacks
from ..checkpoint.catalog import CheckpointInfo
from ..job import plan_text
from ..job.plan import Plan
from ..records.accounts import TaskAccount
from ..records.events import Event, error_of
from ..records.machine import MachineUse
from ..records.summaries import shape, step_s
from ..records.timeline import NOW, Moment
from ..status import Failure, Goodput, Progress, State, Status, done_share, steps_left
from ..text import clipped, duration, money, rate, size
from .curves import Point

# Files of a bundle that a page lists.
_FILES = 300
Rows = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """What a task has come to, and what it uses. The curves are the values of its samples."""

    name: str
    state: str
    step: int | None = None
    rate: str = ""
    input_wait: float | None = None  # the share of its steps' time, from 0 to 1; None if it is not measured
    use: list[Use] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a task uses of one resource: the last value in words, and the curve."""

    name: str
    last: str
    curve: str


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The last lines of a task."""

    task: str
    attempt: int
    text: str
    begin: int | None = None  # where in the file they begin; None if there is no file, or lines were searched
    end: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A part of a line, in thousandths of its length."""

    begin: float
    length: float
    title: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Lane:
    name: str
    bars: list[Bar]


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run. Parts that cannot be read are empty, and `problems` says why.

    Args:
        sentence: its state, and what it is doing or why it ended, in one sentence each.
        why: the whole explanation.
        ref: how this shell refers to it.
        share: the part of the training that is done, from 0 to 1; None if unknown.
    """

    id: str
    url: str
    ref: str
    state: str = "UNREADABLE"
    reason: str = ""
    live: bool = False
    now: float = 0.0
    sentence: list[str] = field(default_factory=list)
    why: str = ""
    failure: Failure | None = None
    facts: Rows = field(default_factory=list)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    moments: Sequence[Moment] = ()
    lanes: list[Lane] = field(default_factory=list)
    tasks: list[TaskView] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    checkpoints: Sequence[CheckpointInfo] = ()
    goodput: Goodput | None = None
    share: float | None = None
    plan: Rows = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    files: Rows = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RunsCompared:
    """Several runs beside each other: their last metrics, and the differences of their plans to the first one's."""

    runs: list[str]
    metrics: list[tuple[str, list[float | None]]]
    differences: list[tuple[str, list[str]]]


def facts(status: Status, place: str, position: Rows, now: float) -> Rows:
    """Return what the top of a page lists."""
    until = status.since if status.state.terminal else now
    rows = [("backend", place), ("attempts", str(status.attempts))]
    rows += [("duration", duration(until - status.created))] if status.created else []
    rows += position
    if status.saved_step is not None and status.saved_at is not None:
        risk = "" if status.state is State.SUCCEEDED else f", {duration(max(until - status.saved_at, 0.0))} at risk"
        rows.append(("last checkpoint", f"step {status.saved_step}{risk}"))
    if status.spent_usd is not None:
        rows.append(("spent", f"{'at least ' if status.spent_at_least else ''}{money(status.spent_usd)}"))
    rows += [("model", str(status.registered))] if status.registered else []
    return [*rows, *(("finding", text) for text in status.findings)]


def pace(
    progress: Progress, records: Sequence[Mapping[str, object]], account: TaskAccount | None, max_steps: int | None
) -> tuple[Rows, float | None]:
    """Return where a training is, its rate and the time that is left; and the part that is done, from 0 to 1."""
    rows, left = [("progress", str(progress))], steps_left(progress, max_steps)
    each_s = step_s(records) or (account and _step_s(account))
    rows += [("rate", rate(1 / each_s))] if each_s else []
    rows += [("left", f"about {duration(math.ceil(left * each_s))}")] if each_s and left is not None else []
    return rows, None if left is None else done_share(progress, left)


def _step_s(account: TaskAccount) -> float | None:
    """Return the seconds of a step with its input; None before the first one."""
    spent = account.step + account.input_wait
    return spent / account.steps if account.steps and spent > 0 else None


def sentences(why: str) -> list[str]:
    """Return the first two sentences of an explanation: the state, and what it is doing or the root cause."""
    above, _, _ = why.partition("\n\n")
    return [line for line in above.splitlines() if line][:2]


def root_cause(failure: Failure | None) -> str:
    """Return the traceback of a failure with the frames of the user's own files."""
    return tracebacks.shorten(tracebacks.fold(failure.traceback)) if failure else ""


def task_views(
    plan: Plan,
    events: Sequence[Event],
    attempt: int,
    steps: Mapping[str, int | None],
    accounts: Mapping[str, TaskAccount],
    machines: Mapping[str, MachineUse],
) -> list[TaskView]:
    """Return what each task of the last attempt has come to."""
    words = {"entry": "running", "first_step": "training", "done": "done"}
    states = dict.fromkeys(plan.tasks, "not started" if not attempt else "starting")
    for event in sorted(events, key=lambda event: (event.time, event.sequence)):
        task = event.source if event.source in states else str(event.data.get("task", ""))
        if event.attempt != attempt or task not in states:
            continue
        if event.kind == "failed":
            states[task] = f"failed: {clipped(error_of(event), 300)}"
        elif event.kind in words and not states[task].startswith("failed"):
            states[task] = words[event.kind]
        elif event.kind == "exited" and states[task] in ("starting", "running", "training"):
            states[task] = f"ended with exit code {event.data.get('code', 'unknown')}"
    views = []
    for task, state in states.items():
        account, use = accounts.get(task), machines.get(task)
        each_s = account and _step_s(account)
        views.append(
            TaskView(
                name=task,
                state=state,
                step=steps.get(task),
                rate=rate(1 / each_s) if each_s else "",
                input_wait=_input_wait(account) if account else None,
                use=uses(use) if use else [],
            )
        )
    return views


def _input_wait(account: TaskAccount) -> float | None:
    spent = account.step + account.input_wait
    return account.input_wait / spent if account.measures_input and spent > 0 else None


def uses(machine: MachineUse) -> list[Use]:
    """Return what a task uses of its machine, as far as its samples tell."""
    samples, last = machine.samples, machine.last
    limit = f" of {size(last.memory_limit_bytes)}" if last.memory_limit_bytes else ""
    resources = [
        ("CPU", f"{last.cpu_cores:.1f} cores", [sample.cpu_cores for sample in samples]),
        ("memory", f"{size(last.memory_bytes)}{limit}", [float(sample.memory_bytes) for sample in samples]),
    ]
    for number, gpu in enumerate(last.gpus):
        name = f"GPU {number}" if len(last.gpus) > 1 else "GPU"
        curve = [sample.gpus[number].use if number < len(sample.gpus) else 0.0 for sample in samples]
        resources.append((name, f"{gpu.use:.0%}, {size(gpu.memory_bytes)} of {size(gpu.memory_limit_bytes)}", curve))
    disk = [sample.disk_read_bytes_s + sample.disk_write_bytes_s for sample in samples]
    network = [sample.network_received_bytes_s + sample.network_sent_bytes_s for sample in samples]
    resources += [("disk", f"{size(int(disk[-1]))}/s", disk), ("network", f"{size(int(network[-1]))}/s", network)]
    return [Use(name=name, last=said, curve=shape(values)) for name, said, values in resources]


def requirement_lines(plan: Plan) -> list[str]:
    """Return what the tasks need installed, as pip reads it."""
    needed = plan.code.requirements
    source = [f"# {needed.source}"] if needed.source else []
    constraints = [f"# constraint: {line}" for line in needed.constraints]
    return [*source, *needed.options, *needed.lines, *constraints] if needed.lines else []


def lanes(moments: Sequence[Moment], checkpoints: Sequence[CheckpointInfo], status: Status, now: float) -> list[Lane]:
    """Return the attempts of a run on one time axis, with what happened in each and with its checkpoints."""
    timed = [(moment.time, moment) for moment in moments if moment.time is not None and moment.time != NOW]
    if not timed:
        return []
    begin, end = timed[0][0], max(timed[-1][0], status.since if status.state.terminal else now)
    scale = 1000 / ((end - begin) or 1.0)
    attempts = []
    numbers = sorted({moment.attempt for _, moment in timed})
    for number in numbers:
        own = [(time, moment) for time, moment in timed if moment.attempt == number]
        until = end if number == numbers[-1] else own[-1][0]
        name = f"attempt {number}" if number else "submit"
        last = status.state.value if number == numbers[-1] else "ended"
        span = Bar(
            begin=(own[0][0] - begin) * scale, length=max((until - own[0][0]) * scale, 2.0), title=name, kind=last
        )
        marks = [
            Bar(begin=(time - begin) * scale, length=0, title=f"{moment.source}: {moment.text}", kind=_kind(moment))
            for time, moment in own
        ]
        attempts.append(Lane(name=name, bars=[span, *marks]))
    saved = [
        Bar(begin=(checkpoint.created_at - begin) * scale, length=0, title=f"step {checkpoint.step}", kind="checkpoint")
        for checkpoint in checkpoints
        if checkpoint.created_at is not None and begin <= checkpoint.created_at <= end
    ]
    return [*attempts, *([Lane(name="checkpoints", bars=saved)] if saved else [])]


def _kind(moment: Moment) -> str:
    text = f"{moment.text} {' '.join(moment.causes)}"
    return "bad" if any(word in text for word in ("failed", "preempt", "killed", "SIGKILL", "lost")) else "event"


def plan_rows(plan: Plan) -> Rows:
    return plan_text.lines(plan)


def file_rows(plan: Plan) -> Rows:
    rows = [(file.path, size(file.size)) for file in plan.code.files[:_FILES]]
    more = len(plan.code.files) - len(rows)
    return [*rows, *([("and more", f"{more} files")] if more > 0 else [])]


def compared(views: Sequence[RunView], differences: Sequence[tuple[str, list[str]]]) -> RunsCompared | None:
    """Return several runs beside each other; None for a single one."""
    if len(views) < 2:
        return None
    names = sorted({name for view in views for name in view.metrics})
    metrics = [(name, [view.metrics.get(name) for view in views]) for name in names]
    return RunsCompared(runs=[view.id for view in views], metrics=metrics, differences=list(differences))
