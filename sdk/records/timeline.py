"""The timeline of a run: the times and the events of its tasks, its attempts and the service that runs it. Pure.

Each moment comes from a record or from the service. Events that neither holds are left out and never estimated, such as the
restarts of a machine by the service before any task wrote a record.
"""

from __future__ import annotations

import math
import signal
import textwrap
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from ..job.wire import decode
from ..status import EXIT_CHECKPOINTED, Reason, Registered
from ..text import and_more, clipped, counted, duration
from .events import REGISTERED, TASK_RESTARTING, Event, continues, error_of, is_collateral, unsettled

WIDTH = 80
# The time of the present state.
NOW = math.inf
# The name of a preemption in the text of podlift and of a service.
TAKEN_AWAY = "taken away"
_NAMED = 6
_RUN, _MODEL = "run", "model"
# Sources of moments that stay when their attempt is left out.
_KEPT = ("client", "checkpoint", _RUN, _MODEL)
# The longest text of one moment, in characters: the root cause is shown in full above the timeline.
_LONGEST = 240
# Longer timelines lose their middle: attempts first, then single moments.
_FIRST_ATTEMPTS, _LAST_ATTEMPTS = 2, 3
_FIRST_MOMENTS, _LAST_MOMENTS = 15, 25


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Something that happened at a time.

    Args:
        time: Unix time in seconds; NOW, which is infinity, for the present state; None for moments left out.
        source: the actor, such as "client", "service", "attempt 2" or a task.
        text: the event.
        causes: its causes or its effects, one sentence each.
        attempt: the attempt that it belongs to; 0 if that follows from the time.
    """

    time: float | None
    source: str
    text: str
    causes: tuple[str, ...] = ()
    attempt: int = 0


def moments(events: Sequence[Event], service: Sequence[Moment], last: int, message: str = "") -> list[Moment]:
    """Return the moments of a run in the order of time, with the details of attempt `last` and without the cause `message`."""
    by_attempt: dict[int, list[Event]] = {}
    for event in events:
        by_attempt.setdefault(event.attempt, []).append(event)
    attempts = [_Attempt(by_attempt[number], number == last) for number in sorted(by_attempt) if number]
    verdict = max((event.time for event in by_attempt.get(0, ()) if event.kind == "final"), default=0.0)
    for attempt in attempts[-1:]:
        attempt.over = verdict >= attempt.time
    timeline = [moment for event in by_attempt.get(0, ()) for moment in _of_run(event, attempts)]
    starts = sorted((attempt.time, attempt.number) for attempt in attempts)
    numbers = [0, *(number for _, number in starts)]
    times = [time for time, _ in starts]
    timeline = [
        replace(moment, attempt=numbers[bisect_right(times, moment.time or 0.0)]) for moment in (*timeline, *service)
    ]
    timeline += [moment for attempt in attempts for moment in attempt.moments()]
    timeline = [
        replace(moment, causes=tuple(cause for cause in moment.causes if cause not in message)) for moment in timeline
    ]
    # The verdict on a run has the time at which its job ended.
    timeline.sort(key=lambda moment: (moment.time or 0.0, moment.source == _RUN))
    return _shortened(timeline, {attempt.number: attempt.reason for attempt in attempts})


def lines(moments: Sequence[Moment], zone: tzinfo | None) -> list[str]:
    """Return the moments as lines of at most 80 columns."""
    days = {_when(moment, zone, "%Y-%m-%d") for moment in moments if moment.time not in (None, NOW)}
    style = "%H:%M:%S" if len(days) < 2 else "%m-%d %H:%M:%S"
    when = [_when(moment, zone, style) for moment in moments]
    first, second = max(map(len, when), default=0), max((len(moment.source) for moment in moments), default=0)
    indent = 2 + first + 2 + second + 2
    wrapped_lines: list[str] = []
    for time, moment in zip(when, moments, strict=True):
        head = f"  {time:<{first}}  {moment.source:<{second}}  "
        wrapped_lines += _wrapped(moment.text, head, " " * indent)
        for cause in moment.causes:
            wrapped_lines += _wrapped(cause, " " * (indent + 2), " " * (indent + 4))
    return wrapped_lines


def ending(code: int) -> str:
    """Return how a process ended: "exit code 3", "SIGKILL"."""
    try:
        return f"exit code {code}" if code > 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class _Attempt:
    """The records of one attempt."""

    def __init__(self, events: Sequence[Event], detailed: bool) -> None:
        self.number = events[0].attempt
        self._events = unsettled(events)
        self._detailed = detailed
        self.over = False  # the run ended with it
        starts = self._of("attempt_started")
        self.time = (starts or list(events))[0].time
        self._end = next(iter((*self._of("stopping"), *self._of("restarting"))), None)
        self.reason = str(self._end.data.get("reason", "unknown")) if self._end else ""

    def moments(self) -> Iterator[Moment]:
        started = self._of("attempt_started")
        if started:
            step = next((int(event.data["step"]) for event in self._of("continued")), None)
            begins = f", continues at step {step}" if step else (", from the beginning" if self.number > 1 else "")
            yield self._moment(started[0].time, f"attempt {self.number}", f"started{'' if step is None else begins}")
        if self._detailed:
            yield from self._details()
        yield from map(self._restarted_alone, self._of(TASK_RESTARTING))
        yield from (
            self._moment(event.time, _MODEL, decode(Registered, event.data).line) for event in self._of(REGISTERED)
        )
        yield from self._failures()
        yield from self._ended()

    def shows(self, message: str) -> bool:
        """True if the moments of this attempt tell this failure, too."""
        return any(error_of(event) in message for event in self._of("failed") if not is_collateral(event))

    def _of(self, *kinds: str) -> list[Event]:
        return [event for event in self._events if event.kind in kinds]

    def _moment(self, time: float, source: str, text: str, *causes: str) -> Moment:
        return Moment(time=time, source=source, text=text, causes=causes, attempt=self.number)

    def _details(self) -> Iterator[Moment]:
        # Of tasks that reach the program together, some may arrive after the first one has failed.
        failed = min((event.time for event in self._of("failed")), default=math.inf)
        for kind, text in (("entry", "reached the program"), ("first_step", "first training step"), ("done", "done")):
            # A task that was restarted alone has several records.
            events = list({event.source: event for event in reversed(self._of(kind))}.values())[::-1]
            names = sorted(event.source for event in events)
            if names:
                source = names[0] if len(names) == 1 else f"{len(names)} tasks"
                yield self._moment(min(events[-1].time, failed), source, text)
        for event in self._of("saved"):
            yield self._moment(
                event.time, event.source, f"saved its first checkpoint, of step {event.data.get('step')}"
            )
        for event in self._of("hung"):
            silent = f"no task was active for {duration(float(event.data.get('silent_s', 0.0)))}"
            slowest = f"; the slowest one is {event.data['task']}" if event.data.get("task") else ""
            yield self._moment(event.time, f"attempt {self.number}", f"hangs: {silent}{slowest}")

    def _restarted_alone(self, event: Event) -> Moment:
        task = str(event.data.get("task"))
        text = failure_of(event).removeprefix(f"{task} ") or "saved its state and left (75)"
        return self._moment(event.time, task, text, str(event.data.get("why", "")))

    def _failures(self) -> Iterator[Moment]:
        """The independent failures; below the first one, the failures that followed from it."""
        real: dict[str, list[Event]] = {}
        consequences: list[tuple[float, str, str]] = []
        for event in self._of("failed"):
            if is_collateral(event):
                consequences.append((event.time, event.source, str(event.data.get("type"))))
            else:
                real.setdefault(error_of(event), []).append(event)
        silent = self._silent_exits()
        moments = [self._failed(error, events) for error, events in real.items()]
        own = [(time, task, text) for time, task, text, collateral in silent if not (real or collateral)]
        moments += [self._moment(time, task, f"ended: {text}") for time, task, text in own]
        consequences += [exit[:3] for exit in silent if exit[:3] not in own]
        if not moments and consequences:
            time, task, text = consequences.pop(0)
            moments = [self._moment(time, task, f"failed: {text}")]
        if consequences:
            named = and_more([f"{task} ({text})" for _, task, text in consequences], _NAMED)
            moments[0] = replace(moments[0], causes=(*moments[0].causes, f"as a consequence: {named}"))
        yield from moments

    def _failed(self, error: str, events: Sequence[Event]) -> Moment:
        others = [event.source for event in events[1:]]
        same = (f"the same in {and_more(others, _NAMED)}",) if others else ()
        return self._moment(events[0].time, events[0].source, f"failed: {error}", *same)

    def _silent_exits(self) -> list[tuple[float, str, str, bool]]:
        """Time, task, end and whether it is a consequence, of tasks that ended with neither a record nor podlift's doing."""
        stopped = min((event.time for event in self._of("stopping")), default=float("inf"))
        failed = {event.source for event in self._of("failed")}
        exits = []
        for event in self._of("exited"):
            code, task = event.data.get("code", 0), str(event.data.get("task"))
            if code and event.time <= stopped and task not in failed:
                text = "it saved its state and left (75)" if code == EXIT_CHECKPOINTED else ending(int(code))
                exits.append((event.time, task, text, bool(event.data.get("collateral"))))
        return exits

    def _ended(self) -> Iterator[Moment]:
        if self._end is not None and self._end.kind == "restarting" and self.over:
            # A container requested a restart, and the service ended the job instead.
            return
        if self._end is not None:
            restarting = next(iter(self._of("restarting")), None)
            message = failure_of(restarting)
            causes = [message] if message and not self.shows(message) else []
            causes += [str(restarting.data["why"])] if restarting and restarting.data.get("why") else []
            text = f"ended ({self.reason})"
            if self.reason == Reason.PREEMPTED.value:
                failure = restarting.data.get("failure") if restarting else None
                task = failure.get("task") if isinstance(failure, dict) else ""
                text = f"ended: {f'the machine of {task}' if task else 'a machine'} was {TAKEN_AWAY} ({self.reason})"
            yield self._moment(self._end.time, f"attempt {self.number}", text, *causes)
        elif not self._detailed and not self._of("exited", "failed"):
            # Its containers were killed.
            yield self._moment(self._events[-1].time, f"attempt {self.number}", "wrote its last record")


def failure_of(event: Event | None) -> str:
    """Return the failure's message in the record of a restart or of a verdict, or ""."""
    failure = event.data.get("failure") if event is not None else None
    return str(failure.get("message", "")) if isinstance(failure, dict) else ""


def _of_run(event: Event, attempts: Sequence[_Attempt]) -> Iterator[Moment]:
    """The moment of a record about the whole run, if it is worth a line."""
    if event.kind == "submitted":
        yield Moment(time=event.time, source="client", text="submitted the run")
    elif event.kind == "resumed":
        code = event.data.get("code") or {}
        other = f" with other code: {code['difference']}" if code else ""
        yield Moment(time=event.time, source="client", text=f"resumed the run{other}")
    elif event.kind == "started" and not event.attempt:
        process = str(event.data.get("supervisor", "")).split(":")[1:2]
        yield Moment(
            time=event.time, source="supervisor", text=f"started{f' as process {process[0]}' if process else ''}"
        )
    elif event.kind == "preparing":
        yield Moment(time=event.time, source="supervisor", text="builds the virtual environment")
    elif event.kind == "final":
        message = failure_of(event)
        causes = [message] if message and not any(attempt.shows(message) for attempt in attempts) else []
        text = f"{event.data.get('state')} ({event.data.get('reason')})"
        if continues(event):
            text = f"job {event.data['number']} ended ({event.data.get('reason')})"
            causes.append(str(event.data.get("why") or ""))
        yield Moment(time=event.time, source=_RUN, text=text, causes=tuple(filter(None, causes)))


def _shortened(moments: list[Moment], reasons: dict[int, str]) -> list[Moment]:
    numbers = sorted(reasons)
    left_out = set(numbers[_FIRST_ATTEMPTS:-_LAST_ATTEMPTS])
    if len(left_out) > 1:
        ends = Counter(reasons[number] or "unknown" for number in left_out).most_common()
        text = f"{len(left_out)} attempts left out: {', '.join(f'{count} {reason}' for reason, count in ends)}"
        # Attempts with few records may have no moment, and then no place in the list.
        index = next((at for at, moment in enumerate(moments) if moment.attempt >= min(left_out)), len(moments))
        moments = [moment for moment in moments if moment.attempt not in left_out or moment.source in _KEPT]
        moments.insert(index, Moment(time=None, source="...", text=text))
    middle = len(moments) - _FIRST_MOMENTS - _LAST_MOMENTS
    if middle > 1:
        gap = Moment(time=None, source="...", text=f"{counted(middle, 'line')} left out")
        moments = [*moments[:_FIRST_MOMENTS], gap, *moments[-_LAST_MOMENTS:]]
    return moments


def _when(moment: Moment, zone: tzinfo | None, style: str) -> str:
    if moment.time is None:
        return ""
    return "now" if moment.time == NOW else datetime.fromtimestamp(moment.time, zone).strftime(style)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    words = clipped(" ".join(text.split()), _LONGEST)
    lines = textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return lines or [first.rstrip()]
