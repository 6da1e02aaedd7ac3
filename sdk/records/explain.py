"""What a person needs to know about a run, in words: how it is, since when, why, what it waits for, and what to type next.

One pure function over the records, for `run.why()`, for the errors of `run.result()` and for the command.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from .. import tracebacks
from ..spec.layout import RunPaths
from ..status import Reason, State, Status, continuation
from ..text import and_more, duration
from .events import Event, error_of, first_failure, is_collateral, since_resumed

_NAMED = 6

# What each reason means for whoever reads it, beside the failure's own message.
MEANINGS: dict[Reason, str] = {
    Reason.SUBMITTED: "",
    Reason.QUEUED: "Its job waits: for quota that others of the project use, or for machines.",
    Reason.PROVISIONING: "Its machines are being made, and the image is pulled: that takes some minutes.",
    Reason.PREPARING: "Its environment is being made of its requirements.",
    Reason.TRAINING: "",
    Reason.RESTARTING: "It is about to be started again.",
    Reason.STOPPING: "Its tasks are being stopped.",
    Reason.DONE: "",
    Reason.USER_ERROR: "This is an error of the program: another start would end the same way.",
    Reason.IMPORT_ERROR: (
        "A module could not be imported: name it in the requirements, or put its file where the project is packaged."
    ),
    Reason.WRONG_ENTRY: (
        "The program was never reached: its entry names something that is not there, or takes other arguments."
    ),
    Reason.KILLED: "The process was ended from outside of Python, so there is no traceback.",
    Reason.OUT_OF_MEMORY: "It takes a smaller batch, fewer tasks on one machine, or more memory.",
    Reason.TIMEOUT: "Its tasks were stopped at its time limit: timeout (--timeout).",
    Reason.HUNG: "No task has shown any life for that long: what each was doing is at the end of its log.",
    Reason.PREEMPTED: "Somebody wanted the machine back.",
    Reason.CANCELLED: "Somebody cancelled it.",
    Reason.CHECKPOINTED: "The program saved its state, and asks to be started again.",
    Reason.INFRASTRUCTURE: "This is no error of the program: what it runs on has failed.",
    Reason.SUPERVISOR_LOST: "Its tasks ended with it; what they have written until then is there.",
    Reason.QUOTA: "It was never started, or could not go on: the project may not use that much.",
    Reason.STOCKOUT: "This is no error of the program: there was no machine for it.",
    Reason.PERMISSION: "It would end the same way until somebody gives that permission.",
    Reason.IMAGE: "Its containers were never started.",
    Reason.REFUSED: "It would be refused again as it is.",
}


@dataclass(frozen=True)
class About:
    """What the records do not say.

    Args:
        ref: what this shell calls the run.
        paths: where it lies.
        tasks: names of its tasks.
        now: unix time in seconds.
        zone: for the times of day; None for the machine's own.
        cloud: True where no process of ours looks after it, and its logs are the cloud's.
        generated: True where its code was made from a notebook or a function in memory: there is no current code.
    """

    ref: str
    paths: RunPaths
    tasks: Sequence[str]
    now: float
    zone: tzinfo | None = None
    cloud: bool = False
    generated: bool = False


def explain(events: Sequence[Event], status: Status, about: About) -> str:
    """Return the explanation of a run.

    Args:
        events: its records.
        status: what `fold` made of them.
        about: what else there is to say.
    """
    story = _Story(events, status, about)
    if status.state is State.PENDING:
        said = story.pending()
    elif status.state is State.RUNNING:
        said = story.running()
    elif status.state is State.LOST:
        said = story.lost()
    else:
        said = story.ended()
    last = [*(f"Finding: {text}" for text in status.findings), story.vendor(), f"Next: {story.next_command()}"]
    return "\n".join(line for line in [story.head(), *said, *last] if line)


class _Story:
    """The parts of an explanation: each method returns lines."""

    def __init__(self, events: Sequence[Event], status: Status, about: About) -> None:
        self._status = status
        self._about = about
        self._all = sorted(events, key=lambda event: (event.time, event.attempt, event.source, event.sequence))
        current, self._resumed = since_resumed(self._all)
        self._before = int(self._resumed.data["attempts"]) if self._resumed else 0
        # What was before the first attempt belongs to every one of them.
        wanted = {0, status.attempts} if status.attempts > self._before else {0}
        self._events = [event for event in current if event.attempt in wanted]

    def head(self) -> str:
        status, now = self._status, self._about.now
        if status.state.terminal:
            word = "last seen" if status.state is State.LOST else "since"
            took = f", {duration(status.since - status.created)} after its submit" if status.created else ""
            when = f"{word} {self._clock(status.since)}{took}"
        else:
            when = f"for {duration(now - status.since)}, since {self._clock(status.since)}"
        again = f", in attempt {status.attempts}" if status.attempts > 1 else ""
        name = self._about.paths.run_id
        return f"The run {name} is {status.state.value} ({status.reason.value}) {when}{again}."

    def vendor(self) -> str:
        status = self._status
        return f"Vertex AI says {status.vendor}: {status.console}" if status.vendor else ""

    def pending(self) -> Iterator[str]:
        if self._about.cloud:
            asked = (
                "Its job was not created yet: the process that submitted it does that. If that one was killed, podlift cancel "
                "ends the run at once, and podlift resume starts it then; after 10 minutes it counts as lost."
            )
            preparing = "Its containers were started, and fetch what they need."
            own = {Reason.SUBMITTED: asked, Reason.PREPARING: preparing}
            yield own.get(self._status.reason) or MEANINGS[self._status.reason]
        elif self._status.reason is Reason.PREPARING:
            yield MEANINGS[Reason.PREPARING]
            yield f"What pip says: {self._about.paths.environment_log}"
        elif self._has("launched"):
            yield "Its supervisor was launched, and has not reported yet."
        else:
            verb = "resumed" if self._resumed else "submitted"
            yield f"Its supervisor was not launched yet: the process that {verb} it does that."
        yield from self._earlier()

    def running(self) -> Iterator[str]:
        reason, latest = self._status.reason, self._last
        if reason is Reason.RESTARTING:
            event = latest("restarting")
            yield str((event and event.data.get("why")) or MEANINGS[reason])
            yield _failure_of(event)
        elif reason is Reason.STOPPING:
            event = latest("stopping")
            cause = Reason(event.data["reason"]) if event and "reason" in event.data else None
            yield f"{MEANINGS[reason]} Why: {cause.value}." if cause else MEANINGS[reason]
            left = self._still_there()
            yield f"Waiting for the end of {and_more(left, _NAMED)}." if left else "Collecting what it leaves."
            yield from self._cause()
        else:
            yield from self._stage()
        yield from self._earlier()

    def lost(self) -> Iterator[str]:
        failure, launched = self._status.failure, self._last("started", "launched")
        yield failure.message if failure else ""
        if self._about.cloud:
            yield from self._cause()
            yield self._further()
            yield from self._earlier()
            return
        if launched is None:
            yield "Its supervisor was never started: the process that was to start it ended too early."
            yield from self._earlier()
            return
        pid = launched.data["supervisor"].split(":")[1]
        yield (f"It was process {pid}, and was killed, or the machine was stopped. {MEANINGS[Reason.SUPERVISOR_LOST]}")
        yield from self._cause()
        yield self._further()
        yield from self._earlier()
        yield f"What it said itself: {self._about.paths.supervisor_log}"

    def ended(self) -> Iterator[str]:
        failure, reason = self._status.failure, self._status.reason
        if failure is not None:
            yield failure.message
        yield MEANINGS[reason]
        if failure is not None:
            if failure.traceback and "Traceback (most recent call last)" not in failure.traceback and failure.log:
                yield "The last lines of its log:"
            yield tracebacks.shorten(tracebacks.fold(failure.traceback))
            yield f"Whole log: {failure.log}" if failure.log else ""
            yield from self._peers(failure.task)
        yield self._further()
        final = self._last("final")
        yield str(final.data.get("why") or "") if final else ""
        yield from self._earlier()

    def next_command(self) -> str:
        status, ref = self._status, self._about.ref
        if status.state is State.SUCCEEDED:
            return f"podlift get {ref}"
        if status.state is State.PENDING or status.reason is Reason.STOPPING:
            return f"podlift wait {ref}"
        if status.state is State.RUNNING:
            return f"podlift logs {ref} -f"
        task = f" --task {status.failure.task}" if status.failure and status.failure.task else ""
        if not status.user_fault or status.reason is Reason.TIMEOUT:
            return f"podlift logs {ref}{task} · podlift resume {ref}"
        # Where the program is to blame, it is mended first.
        return f"podlift logs {ref}{task}" + (
            "" if self._about.generated else f" · podlift resume {ref} --code current"
        )

    def _stage(self) -> Iterator[str]:
        """Say what the tasks are doing, or what is waited for."""
        tasks, entered = list(self._about.tasks), self._sources("entry")
        hung = self._last("hung")
        if hung is not None:
            yield f"It hangs: no task has shown any life for {duration(float(hung.data.get('silent_s', 0.0)))}."
            yield f"The slowest is {hung.data['task']}." if hung.data.get("task") else ""
        cause = list(self._cause())
        done = sorted(self._sources("done") | self._exited())
        if cause:
            yield from cause
        elif not self._has("attempt_started"):
            yield "Waiting for " + (
                "its tasks to find each other." if self._about.cloud else "ports, and for the tasks to be started."
            )
        elif set(tasks) - entered - self._exited():
            yield f"Waiting for {and_more([t for t in tasks if t not in entered], _NAMED)} to reach the program."
        elif done:
            left = [task for task in tasks if task not in done]
            yield (
                f"{and_more(done, _NAMED)} is done; waiting for {and_more(left, _NAMED)}."
                if left
                else "Every task is done."
            )
        elif self._has("first_step"):
            yield f"It trains, since {self._clock(self._first_time('first_step'))}."
            yield self._continued()
        else:
            yield "The program runs in every task; no training step was seen yet (only `fit` tells)."

    def _cause(self) -> Iterator[str]:
        """Say what has failed so far, where no verdict says it."""
        event = first_failure(self._events, self._status.attempts)
        if event is not None:
            yield f"{event.source} has failed: {error_of(event)}"
            yield tracebacks.shorten(tracebacks.fold(str(event.data.get("traceback", ""))))
            place = self._about.paths.log(event.attempt, event.source)
            yield "" if self._about.cloud else f"Whole log: {place}"
            yield from self._peers(event.source)

    def _continued(self) -> str:
        status = self._status
        if status.continued_step is None:
            return ""
        return f"{_capital(continuation(status.attempts, status.continued_step))}."

    def _further(self) -> str:
        """Say where another attempt would begin, of a run that has trained."""
        status = self._status
        if status.state is State.SUCCEEDED or (status.saved_step is None and "first_step" not in status.timings):
            return ""
        begins = continuation(status.attempts + 1, status.saved_step)
        return f"If it is resumed, {begins}."

    def _peers(self, cause: str) -> Iterator[str]:
        """Say what the other tasks died of, before they were stopped."""
        stopped = self._first_time("stopping")
        failed = {event.source: event for event in self._events if event.kind == "failed" and event.source != cause}
        echoes = [f"{task} ({error_of(event)})" for task, event in failed.items() if is_collateral(event)]
        others = [f"{task} ({error_of(event)})" for task, event in failed.items() if not is_collateral(event)]
        for event in self._events:
            if event.kind == "exited" and event.time <= stopped and event.data.get("code", 0) != 0:
                task = str(event.data.get("task"))
                if task not in {cause, *failed}:
                    echoes.append(f"{task} ({_ending(event.data['code'])})")
        yield f"Failed as well: {and_more(others, _NAMED)}." if others else ""
        yield f"Its peers after that: {and_more(echoes, _NAMED)}." if echoes else ""

    def _earlier(self) -> Iterator[str]:
        ends: dict[int, str] = {}
        resumes = [event for event in self._all if event.kind == "resumed"]
        for event in self._all:
            # A verdict on the whole run that was resumed later is one on its last attempt until then.
            later = [int(resume.data["attempts"]) for resume in resumes if resume.time >= event.time]
            number = later[0] if later and event.kind == "final" else event.attempt
            current = number > self._before and number == self._status.attempts
            if event.kind in ("stopping", "restarting", "final") and number and not current:
                reason = str(event.data.get("reason", "unknown"))
                ends[number] = _failure_of(event) or ends.get(number) or f"ended as {reason}"
        yield from (f"Before that, attempt {number}: {end}" for number, end in sorted(ends.items())[-_NAMED:])
        if self._resumed is not None:
            code = self._resumed.data.get("code") or {}
            other = f" with the code as it was then ({code['difference']})" if code else ""
            yield f"It was resumed at {self._clock(self._resumed.time)}{other}."

    def _has(self, kind: str) -> bool:
        return any(event.kind == kind for event in self._events)

    def _last(self, *kinds: str) -> Event | None:
        return next((event for event in reversed(self._events) if event.kind in kinds), None)

    def _first_time(self, kind: str) -> float:
        return next((event.time for event in self._events if event.kind == kind), float("inf"))

    def _sources(self, kind: str) -> set[str]:
        return {event.source for event in self._events if event.kind == kind}

    def _exited(self) -> set[str]:
        return {str(event.data.get("task")) for event in self._events if event.kind == "exited"}

    def _still_there(self) -> list[str]:
        exited = self._exited()
        return [task for task in self._about.tasks if task not in exited]

    def _clock(self, time: float) -> str:
        return datetime.fromtimestamp(time, self._about.zone).strftime("%Y-%m-%d %H:%M:%S")


def _failure_of(event: Event | None) -> str:
    """Return the message of the failure that a record of a restart holds."""
    failure = event.data.get("failure") if event is not None else None
    return str(failure.get("message", "")) if isinstance(failure, dict) else ""


def _ending(code: int) -> str:
    try:
        return f"exit code {code}" if code > 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
