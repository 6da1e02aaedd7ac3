"""The view of a run as typed values: pure functions of its plan, its records and its status."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .. import tracebacks
from ..checkpoint.catalog import CheckpointInfo
from ..job import arguments, plan_text
from ..job.plan import Plan
from ..planning.diff import Change
from ..records.accounts import TaskAccount
from ..records.events import Event, error_of
from ..records.machine import MachineUse
from ..records.summaries import shape, step_s
from ..records.timeline import NOW, Moment
from ..status import Failure, Goodput, Progress, Registered, Status, at_risk_s, done_share, steps_left
from ..text import clipped, duration, money, rate, size
from .curves import Point

# Files of a bundle that a page lists.
_FILES = 300
_LONGEST = 300
_GOING = ("starting", "running", "training")
# Sections of a comparison that a user sets, and paths in them that are arguments or labels.
_SETTINGS = ("entry", "job", "target", "environment")
_ARGUMENTS = re.compile(r"(job\.args|entry\.(argv|kwargs))\b|target\.name$")
Rows = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """The state of a task and its use of the machine. The curves are the values of its samples."""

    name: str
    state: str
    step: int | None = None
    rate: str = ""
    input_wait: float | None = None  # the share of its steps' time, from 0 to 1; None if it is not measured
    use: list[Use] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Use:
    """The use of one resource by a task: the last value, or for an ended task its mean or peak, in words, and the curve."""

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
    note: str = ""  # how it ended, in words


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run. Parts that cannot be read are empty, and `problems` says why.

    Args:
        since: unix time at which it entered its state; 0 if unknown.
        sentence: its activity, or the cause of its end.
        why: the whole explanation.
        ref: how this shell refers to it.
        schedule: the schedule that has started it; "" for none.
        sweep: the sweep that it is a trial of; "" for none.
        arguments: of its program, by name.
        partial: metrics with a last value from an unfinished epoch.
        remarks: findings, and the outcome of the registration of its model.
        share: the part of the training that is done, from 0 to 1; None if unknown.
    """

    id: str
    url: str
    ref: str
    state: str = "UNREADABLE"
    reason: str = ""
    live: bool = False
    now: float = 0.0
    since: float = 0.0
    schedule: str = ""
    sweep: str = ""
    registered: Registered | None = None
    arguments: Rows = field(default_factory=list)
    remarks: Rows = field(default_factory=list)
    partial: frozenset[str] = frozenset()
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
    """Several runs beside each other. Each row has a name, and a value for each run.

    Args:
        arguments: of the programs; None where a run has none of that name.
        settings: of the job and its backend, where they differ.
        code: files and requirements that were added, removed or changed since the first run.
    """

    runs: list[str]
    arguments: list[tuple[str, list[str | None]]]
    metrics: list[tuple[str, list[float | None]]]
    settings: list[tuple[str, list[str]]] = field(default_factory=list)
    code: list[tuple[str, list[str]]] = field(default_factory=list)


def facts(status: Status, place: str, position: Rows, now: float) -> Rows:
    """Return the facts at the top of a page."""
    until = status.since if status.state.terminal else now
    rows = [("backend", place), ("attempts", str(status.attempts))]
    rows += [("duration", duration(until - status.created))] if status.created else []
    rows += position
    if status.saved_step is not None:
        risk_s = at_risk_s(status, now)
        risk = "" if risk_s is None else f", {duration(risk_s)} at risk"
        rows.append(("last checkpoint", f"step {status.saved_step}{risk}"))
    if status.spent_usd is not None:
        rows.append(("spent", f"{'at least ' if status.spent_at_least else ''}{money(status.spent_usd)}"))
    return rows


def remarks(status: Status) -> Rows:
    """Return the outcome of the registration of the model, and the findings."""
    rows = [("model", str(status.registered))] if status.registered else []
    return [*rows, *(("finding", text) for text in status.findings)]


def argument_rows(plan: Plan) -> Rows:
    """Return the arguments of the program by name; none if they may hold credentials."""
    if "args" in plan.job.code.allow_secret:
        return []
    return [(name, clipped(value, _LONGEST)) for name, value in arguments.named(plan.job.args).items()]


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


def activity(why: str, failure: Failure | None) -> list[str]:
    """Return the sentence of an explanation after the state: the activity, or the cause of the end unless it is the failure."""
    above, _, _ = why.partition("\n\n")
    lines = [line for line in above.splitlines() if line][1:2]
    return [line for line in lines if failure is None or line != failure.message]


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
    """Return the state of each task of the last attempt."""
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
        elif event.kind == "exited" and states[task] in _GOING:
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
                use=uses(use, ended=state not in _GOING) if use else [],
            )
        )
    return views


def _input_wait(account: TaskAccount) -> float | None:
    spent = account.step + account.input_wait
    return account.input_wait / spent if account.measures_input and spent > 0 else None


def uses(machine: MachineUse, *, ended: bool) -> list[Use]:
    """Return the use of the machine by a task, now or over all samples of an ended task, and the curves."""
    samples, last = machine.samples, machine.last
    mean, peak, of = ("mean ", "peak ", machine.mean) if ended else ("", "", lambda curve: curve[-1])
    memory = size(machine.peak_memory_bytes if ended else last.memory_bytes)
    limit = f" of {size(last.memory_limit_bytes)}" if last.memory_limit_bytes else ""
    cores = [sample.cpu_cores for sample in samples]
    resources = [
        ("CPU", f"{mean}{of(cores):.1f} cores", cores),
        ("memory", f"{peak}{memory}{limit}", [float(sample.memory_bytes) for sample in samples]),
    ]
    for number, gpu in enumerate(last.gpus):
        name = f"GPU {number}" if len(last.gpus) > 1 else "GPU"
        curve = [sample.gpus[number].use if number < len(sample.gpus) else 0.0 for sample in samples]
        memory = f"{size(gpu.memory_bytes)} of {size(gpu.memory_limit_bytes)}"
        resources.append((name, f"{mean}{of(curve):.0%}, {memory}", curve))
    disk = [sample.disk_read_bytes_s + sample.disk_write_bytes_s for sample in samples]
    network = [sample.network_received_bytes_s + sample.network_sent_bytes_s for sample in samples]
    resources += [
        (name, f"{mean}{size(int(of(used)))}/s", used) for name, used in (("disk", disk), ("network", network))
    ]
    return [Use(name=name, last=last_use, curve=shape(values)) for name, last_use, values in resources]


def requirement_lines(plan: Plan) -> list[str]:
    """Return the requirements of the tasks, in the syntax of pip."""
    needed = plan.code.requirements
    source = [f"# {needed.source}"] if needed.source else []
    constraints = [f"# constraint: {line}" for line in needed.constraints]
    return [*source, *needed.options, *needed.lines, *constraints] if needed.lines else []


def lanes(moments: Sequence[Moment], checkpoints: Sequence[CheckpointInfo], status: Status, now: float) -> list[Lane]:
    """Return the attempts of a run on one time axis, with the moments of each and with the checkpoints."""
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
        attempts.append(Lane(name=name, bars=[span, *marks], note="" if number == numbers[-1] else _end(own[-1][1])))
    saved = [
        Bar(begin=(checkpoint.created_at - begin) * scale, length=0, title=f"step {checkpoint.step}", kind="checkpoint")
        for checkpoint in checkpoints
        if checkpoint.created_at is not None and begin <= checkpoint.created_at <= end
    ]
    return [*attempts, *([Lane(name="checkpoints", bars=saved)] if saved else [])]


def _end(last: Moment) -> str:
    """Return how an attempt ended that another one follows: "The machine of chief-0 was taken away (preempted)."."""
    text = last.text.removeprefix("ended: ")
    return f"{text[:1].upper()}{text[1:]}." if _kind(last) == "bad" else ""


def _kind(moment: Moment) -> str:
    text = f"{moment.text} {' '.join(moment.causes)}"
    return "bad" if any(word in text for word in ("failed", "preempt", "killed", "SIGKILL", "lost")) else "event"


def plan_rows(plan: Plan) -> Rows:
    return plan_text.lines(plan)


def file_rows(plan: Plan) -> Rows:
    rows = [(file.path, size(file.size)) for file in plan.code.files[:_FILES]]
    more = len(plan.code.files) - len(rows)
    return [*rows, *([("and more", f"{more} files")] if more > 0 else [])]


def compared(views: Sequence[RunView], changes: Mapping[str, Sequence[Change]]) -> RunsCompared | None:
    """Return several runs beside each other; None for a single one.

    Args:
        views: the runs.
        changes: the differences of the plans of further runs to the plan of the first one, by the run's id.
    """
    if len(views) < 2:
        return None
    names = list(dict.fromkeys(name for view in views for name, _ in view.arguments))
    metrics = sorted({name for view in views for name in view.metrics})
    arguments = [dict(view.arguments) for view in views]
    runs = [view.id for view in views]
    return RunsCompared(
        runs=runs,
        arguments=[(name, [each.get(name) for each in arguments]) for name in names],
        metrics=[(name, [view.metrics.get(name) for view in views]) for name in metrics],
        settings=_settings(runs, changes),
        code=_code(runs, changes),
    )


def _settings(runs: Sequence[str], changes: Mapping[str, Sequence[Change]]) -> list[tuple[str, list[str]]]:
    """Return the settings that differ. The arguments have rows already, and the request follows from the settings."""
    first, others = dict[str, str](), {run: dict[str, str]() for run in runs}
    for run, run_changes in changes.items():
        for change in run_changes:
            if change.section in _SETTINGS and not _ARGUMENTS.match(f"{change.section}.{change.path}"):
                first[change.path] = _value(change.before)
                others[run][change.path] = _value(change.after)
    return [(path, [others[run].get(path, value) for run in runs]) for path, value in first.items()]


def _code(runs: Sequence[str], changes: Mapping[str, Sequence[Change]]) -> list[tuple[str, list[str]]]:
    marks: dict[str, dict[str, str]] = {}
    for run, run_changes in changes.items():
        for change in run_changes:
            if change.section in ("code", "requirements"):
                marks.setdefault(change.path, {})[run] = change.kind
    return [(path, [kinds.get(run, "") for run in runs]) for path, kinds in list(marks.items())[:_FILES]]


def _value(value: object) -> str:
    if value is None:
        return "not set"
    return clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _LONGEST)
