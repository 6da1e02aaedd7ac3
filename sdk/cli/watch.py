"""Watches a run in the foreground: progress, Ctrl-C, and the result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Protocol, cast

from .. import logs
from ..clock import Clock, SystemClock
from ..errors import PodliftError, UnavailableError
from ..records.recorder import position as position_of
from ..records.timeline import TAKEN_AWAY
from ..run import Run
from ..status import EXIT_CANCELLED, EXIT_INFRASTRUCTURE, Reason, State, Status
from ..text import counted, duration, emulator_at
from .output import EXIT_DETACHED, answer, numbers, relayed, say
from .pace import AttemptHeadings, MetricRecord, TrainingPace, Update, caught_up, place

_POLL_S = 0.2
# How long a first Ctrl-C waits for a second one, which cancels.
_SECOND_S = 2.0
# How often the progress gets a new line, if it cannot be overwritten.
LINE_S = 30.0
# Tasks that have a line each.
_TASKS = 16


class Shows(Protocol):
    def show(self, run: Run, update: Update) -> None:
        """Show the news of a run."""

    def say(self, text: str) -> None:
        """Show a line."""


def follow(run: Run, ref: str, *, quiet: bool = False, each_task: bool = False) -> int:
    """Show a run until it ends or the user stops watching, and return the exit code; `quiet` keeps stdout free for --json."""
    try:
        with _shows() as shows, logs.heard(lambda text: shows.say(f"podlift: {text}"), "backends"):
            status = _watch(run, shows, run.plan.tasks[:_TASKS] if each_task else ())
    except KeyboardInterrupt:
        return _interrupted(run, ref)
    return conclude(run, status, ref, quiet=quiet)


def waited(run: Run, timeout_s: float | None) -> Status:
    """Wait for the end of a run, and show only what podlift says about it; WaitTimeoutError if it is still going."""
    with relayed("backends"):
        return run.wait(timeout_s)


def conclude(run: Run, status: Status, ref: str, *, quiet: bool = False) -> int:
    """Print how a run ended, where it is and the next commands; return its exit code."""
    if status.state is State.SUCCEEDED:
        try:
            if metrics := run.last_metrics():
                (say if quiet else answer)(numbers(metrics, between="\n"))
        except UnavailableError as error:
            say(f"Its metrics cannot be read: {error}")
        where = f", on the {emulator_at(run.plan.emulator)}" if run.plan.emulator else ""
        say(
            f"{run.id} is done after {duration(status.timings.get('finished', 0.0))}. Its directory is {run.url}{where}"
        )
        if status.registered is not None:
            say(f"Its model: {status.registered}")
        for text in status.findings:
            say(f"Finding: {text}")
        say(f"Next: podlift status {ref} · podlift logs {ref} · podlift list · podlift ui --open")
    else:
        try:
            say(run.why())
        except UnavailableError as error:
            # How it has ended is known all the same.
            say(f"{run.id} is {status.state.value} ({status.reason.value}). Why cannot be read: {error}")
    return EXIT_INFRASTRUCTURE if status.exit_code is None else status.exit_code


def _watch(run: Run, shows: Shows, tasks: Sequence[str]) -> Status:
    count, pace = 0, TrainingPace(SystemClock(), run.plan.job.limits.max_steps)
    paces = {task: TrainingPace(SystemClock()) for task in tasks}
    findings = set[str]()
    with closing(run.following()) as statuses:
        for status in statuses:
            records, progress = list[MetricRecord](), None
            with run.patient():
                records = cast("list[MetricRecord]", run.metric_records())
                progress = None if status.state.terminal or status.reason is Reason.EVALUATING else run.progress()
            lines = [] if status.state.terminal else task_lines(run, paces)
            position = pace(caught_up(progress, records, status.attempts), status.attempts)
            machine_loss = _machine_loss(run, records, count)
            update = Update(
                status=status,
                records=records[count:],
                position=position,
                share=pace.share,
                machine_loss=machine_loss,
                tasks=lines,
            )
            shows.show(run, update)
            # The last ones are part of the end.
            for text in () if status.state.terminal else (text for text in status.findings if text not in findings):
                shows.say(f"Finding: {text}")
                findings.add(text)
            count = max(count, len(records))
            if not status.state.terminal:
                time.sleep(_POLL_S)
    return status


def _machine_loss(run: Run, records: Sequence[MetricRecord], count: int) -> str:
    """Return a sentence about the machine that ended the attempt before the new records, "" if none did."""
    # During an outage there are fewer records than before.
    if len(records) <= count or records[-1]["attempt"] == (records[count - 1]["attempt"] if count else 1):
        return ""
    with suppress(PodliftError):
        last = [moment for moment in run.timeline() if moment.attempt == records[-1]["attempt"] - 1]
        causes = [moment.text.removeprefix("ended: ") for moment in last if TAKEN_AWAY in moment.text]
        return "".join(f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in causes[-1:])
    return ""


def task_lines(run: Run, paces: Mapping[str, TrainingPace]) -> list[str]:
    """Return a line for each task: its step and rate, which the first one waits for if it is the slowest."""
    longest = max(map(len, paces), default=0)
    positions = {task: pace(position_of(run.plan.paths, task)) for task, pace in paces.items()}
    lines = [f"{task:<{longest}}  {position or 'no step yet'}" for task, position in positions.items()]
    hidden = len(run.plan.tasks) - len(paces) if paces else 0
    return [*lines, f"and {counted(hidden, 'more task')}"] if hidden else lines


def _interrupted(run: Run, ref: str) -> int:
    try:
        say(f"\nStopped watching. Another Ctrl-C within {_SECOND_S:.0f} s cancels the run.")
        time.sleep(_SECOND_S)
    except KeyboardInterrupt:
        say("Cancelling.")
        run.cancel()
        waited(run, None)
        return EXIT_CANCELLED
    say(f"The run continues. Next: podlift wait {ref} · podlift logs {ref} -f · podlift cancel {ref}")
    return EXIT_DETACHED


@contextmanager
def _shows() -> Iterator[Shows]:
    from .live import drawing  # rich takes longer to import than a plan takes to make

    with drawing() as shows:
        yield shows or Plain(SystemClock())


class Plain:
    """Prints a line for each change, and the position now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: str | None = None
        self._position, self._last_time = "", clock.monotonic()
        self._heads = AttemptHeadings()

    def say(self, text: str) -> None:
        say(text)

    def show(self, run: Run, update: Update) -> None:
        status, position = update.status, update.position
        now = f"{status.state.value} ({status.reason.value})"
        if now != self._last:
            say(f"{run.id} {now}")
            self._last = now
        for record in update.records:
            if head := self._heads.before(record, status, update.machine_loss):
                say(f"{run.id} {head}")
            say(f"{run.id} {place(record)} {numbers(record['metrics'])}")
        if position not in ("", self._position) and self._clock.monotonic() - self._last_time >= LINE_S:
            self._position, self._last_time = position, self._clock.monotonic()
            say(f"{run.id} {position}")
