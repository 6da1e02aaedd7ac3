"""Explains a run in words: its state and when that began, the cause, the next event, and the next command.

One pure function over the records, used by `run.why()`, the errors of `run.result()` and `podlift why`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from .. import tracebacks
from ..checks import keras2
from ..job.layout import RunPaths
from ..status import Reason, State, Status, continuation
from ..text import and_more, counted, duration, harmless
from . import timeline
from .events import TASK_RESTARTING, Event, error_of, first_failure, is_collateral, since_resumed, unsettled
from .spending import Spent
from .timeline import Moment, failure_of

_NAMED = 6
# Tracebacks of tasks that failed for another reason than the first one.
_OTHERS = 2

# The meaning of each reason for the user, in addition to the failure's own message.
MEANINGS: dict[Reason, str] = {
    Reason.SUBMITTED: "",
    Reason.QUEUED: "Its job is waiting for quota that other jobs of the project are using, or for machines.",
    Reason.PROVISIONING: "Its machines are being provisioned and its image is being pulled, which takes a few minutes.",
    Reason.PREPARING: "Its virtual environment is being built from its requirements.",
    Reason.TRAINING: "",
    Reason.RESTARTING: "It is about to be restarted.",
    Reason.STOPPING: "Its tasks are being stopped.",
    Reason.EVALUATING: "The training has succeeded; its model is being registered and evaluated.",
    Reason.DONE: "",
    Reason.USER_ERROR: "This is an error in the program. A restart would end the same way.",
    Reason.IMPORT_ERROR: (
        "A module could not be imported. Add it to the requirements, or move its file into the packaged project."
    ),
    Reason.WRONG_ENTRY: (
        "The program was never reached. Its entry names something that does not exist or that accepts other arguments."
    ),
    Reason.KILLED: "The process was ended from outside Python, so there is no traceback.",
    Reason.OUT_OF_MEMORY: "Use a smaller batch, fewer tasks per machine, or more memory.",
    Reason.TIMEOUT: "Its tasks were stopped at the time limit: timeout (--timeout).",
    Reason.HUNG: "No task was active for that long. The end of each task's log shows its last activity.",
    Reason.ACCELERATOR_IDLE: (
        "It paid for GPUs that it did not use. The program may not see them, wait for its input, or be done with its training. "
        "The goodput in podlift status shows the wait for input, and podlift status -v the use of the machines."
    ),
    Reason.PREEMPTED: "The machine was preempted.",
    Reason.CANCELLED: "It was cancelled on request.",
    Reason.CHECKPOINTED: "The program saved its state and asked to be restarted.",
    Reason.INTERNAL: "This is not an error in the program. The service that runs it failed.",
    Reason.INFRASTRUCTURE: "This is not an error in the program. The infrastructure that it runs on failed.",
    Reason.SUPERVISOR_LOST: "Its tasks ended with it. Everything they had written by then is kept.",
    Reason.JOB_LOST: "Everything that its tasks had written by then is kept.",
    Reason.QUOTA: "It was never started, or could not continue: the quota of the project is too small.",
    Reason.STOCKOUT: "This is not an error in the program. No machine was available for it.",
    Reason.PERMISSION: "It will end the same way until that permission is granted.",
    Reason.IMAGE: "Its containers were never started.",
    Reason.REFUSED: "The same request would be rejected again.",
    Reason.BUDGET: "Another job was not made, because it could exceed the limit on the cost: max_cost_usd (--max-cost-usd).",
}


# Reasons for which a service refuses to start a run.
_NO_MACHINE = (Reason.QUOTA, Reason.STOCKOUT, Reason.IMAGE)
_REJECTIONS = (*_NO_MACHINE, Reason.PERMISSION, Reason.REFUSED)


@dataclass(frozen=True)
class RunContext:
    """Facts about the run that its records do not hold."""

    ref: str  # how this shell refers to the run
    paths: RunPaths
    tasks: Sequence[str]
    now: float  # unix time in seconds
    zone: tzinfo | None = None  # time zone of printed times; None for this machine's zone
    cloud: bool = False  # a cloud runs it and keeps its logs; there is no supervisor
    generated: bool = False  # its code came from a notebook or a function in memory, so there is no current code
    service: Sequence[Moment] = ()  # actions of the service that runs it, oldest first
    step: int | None = None  # the last training step that was reported


def explain(events: Sequence[Event], status: Status, context: RunContext) -> str:
    story = _Story(events, status, context)
    if status.state is State.PENDING:
        lines = story.pending()
    elif status.state is State.RUNNING:
        lines = story.running()
    elif status.state is State.LOST:
        lines = story.lost()
    else:
        lines = story.ended()
    above = [line for line in [story.head(), *lines] if line]
    findings = [f"Finding: {text}" for text in status.findings]
    findings += [f"Model: {status.registered.line}"] if status.registered else []
    below = [line for line in [*findings, story.spent(), story.vendor(), f"Next: {story.next_command()}"] if line]
    return harmless("\n".join([*above, "", *story.timeline(), "", *below]))


def moments(events: Sequence[Event], status: Status, context: RunContext) -> list[Moment]:
    """Return the timeline of an explanation."""
    return _Story(events, status, context).moments()


def next_command(status: Status, ref: str, *, generated: bool = False) -> str:
    """Return the command to type next. `generated`: there is no current code, as of a notebook."""
    if status.state is State.SUCCEEDED:
        return f"podlift get {ref}"
    if status.state is State.PENDING or status.reason is Reason.STOPPING:
        return f"podlift wait {ref}"
    if status.state is State.RUNNING:
        return f"podlift logs {ref} -f"
    task = f" --task {shlex.quote(status.failure.task)}" if status.failure and status.failure.task else ""
    # Without a container there are no logs.
    refused = status.reason in (_NO_MACHINE if status.vendor else _REJECTIONS)
    logs = "" if refused and not status.attempts else f"podlift logs {ref}{task}"
    resume = f"podlift resume {ref}"
    if status.user_fault and status.reason not in (Reason.TIMEOUT, Reason.BUDGET):
        # An error in the program has to be fixed first.
        resume = "" if generated else f"{resume} --code current"
    return " · ".join(command for command in (logs, resume) if command)


class _Story:
    """The sections of an explanation. Each method returns lines."""

    def __init__(self, events: Sequence[Event], status: Status, context: RunContext) -> None:
        self._status = status
        self._context = context
        self._all = sorted(events, key=lambda event: (event.time, event.attempt, event.source, event.sequence))
        current, self._resumed = since_resumed(self._all)
        self._before = int(self._resumed.data["attempts"]) if self._resumed else 0
        # Records from before the first attempt belong to every attempt.
        attempts = {0, status.attempts} if status.attempts > self._before else {0}
        self._events = unsettled([event for event in current if event.attempt in attempts])

    def head(self) -> str:
        status, run = self._status, f"Run {self._context.paths.run_id}"
        state, since = f"{status.state.value} ({status.reason.value})", self._clock(status.since)
        attempt = f", in attempt {status.attempts}" if status.attempts > 1 else ""
        if not status.state.terminal:
            return f"{run} has been {state} for {duration(self._context.now - status.since)}, since {since}{attempt}."
        took = f", {duration(status.since - status.created)} after it was submitted" if status.created else ""
        ended = "was last seen" if status.state is State.LOST else "ended"
        return f"{run} is {state}. It {ended} at {since}{took}{attempt}."

    def spent(self) -> str:
        used = Spent.of(self._status)
        return (
            ""
            if used.usd is None
            else f"Spent{'' if self._status.state.terminal else ' so far'}: {used}, without boot disks."
        )

    def vendor(self) -> str:
        status = self._status
        if not status.vendor:
            return ""
        if status.state.terminal and not status.failure:
            return status.console and f"Its job: {status.console}"
        who = status.service or "the service"
        report = f"{who[:1].upper()}{who[1:]} reports {status.vendor}"
        return f"{report}: {status.console}" if status.console else f"{report}."

    def pending(self) -> Iterator[str]:
        if self._context.cloud:
            submitted = (
                "Its job has not been created yet; the submitting process is still working. If that process was "
                "killed, podlift cancel ends the run at once and podlift resume then starts it. After 10 minutes it counts "
                "as lost."
            )
            preparing = "Its containers have started and are fetching the code and its requirements."
            in_cloud = {Reason.SUBMITTED: submitted, Reason.PREPARING: preparing}
            yield self._waiting() or in_cloud.get(self._status.reason) or MEANINGS[self._status.reason]
        elif self._status.reason is Reason.PREPARING:
            yield MEANINGS[Reason.PREPARING]
            yield f"Output of uv: {self._context.paths.environment_log}"
        elif self._has("launched"):
            yield "Its supervisor was launched but has not reported yet."
        else:
            verb = "resumed" if self._resumed else "submitted"
            yield f"Its supervisor has not been launched yet. The process that {verb} the run does that."

    def running(self) -> Iterator[str]:
        reason, latest = self._status.reason, self._last
        if reason is Reason.RESTARTING:
            event = latest("restarting") or self._resumed
            yield str((event and event.data.get("why")) or MEANINGS[reason])
            yield failure_of(event)
            yield self._waiting()
        elif reason is Reason.STOPPING:
            event = latest("stopping")
            cause = Reason(event.data["reason"]) if event and "reason" in event.data else None
            yield f"{MEANINGS[reason]} Reason: {cause.value}." if cause else MEANINGS[reason]
            running = self._still_running()
            yield f"Waiting for {and_more(running, _NAMED)} to exit." if running else "Collecting its outputs."
            yield from self._cause()
        else:
            yield from self._activity()
            yield from self._restarted_alone()
        yield self._saved()

    def _launched(self) -> Event | None:
        """Return the record of the latest supervisor: its own, which names its process, even if the client's is later."""
        records = [record for kind in ("launched", "started") if (record := self._last(kind)) is not None]
        return max(records, key=lambda record: (int(record.source.partition("-")[2] or 0), record.kind), default=None)

    def lost(self) -> Iterator[str]:
        failure, launched = self._status.failure, self._launched()
        yield failure.message if failure else ""
        if self._context.cloud:
            yield from self._cause()
            yield self._saved()
            yield self._further()
            return
        if launched is None:
            yield "Its supervisor was never started. The process that should have started it ended too early."
            return
        pid = launched.data["supervisor"].split(":")[1]
        yield f"It was process {pid}. It was killed, or the machine was stopped. {MEANINGS[Reason.SUPERVISOR_LOST]}"
        yield from self._cause()
        yield self._saved()
        yield self._further()
        yield f"Its own log: {self._context.paths.supervisor_log}"

    def ended(self) -> Iterator[str]:
        failure, reason = self._status.failure, self._status.reason
        if failure is not None:
            yield failure.message
        yield MEANINGS[reason]
        if failure is not None:
            yield keras2.explanation(f"{failure.message}\n{failure.traceback}")
            if failure.traceback and "Traceback (most recent call last)" not in failure.traceback:
                yield "The last lines of its log:"
            yield tracebacks.shorten(tracebacks.fold(failure.traceback))
            yield f"Full log: {failure.log}" if failure.log else ""
            yield from self._others(failure.task)
        yield self._saved()
        yield self._further()

    def timeline(self) -> list[str]:
        """One line for each event of the run, its attempts and the service that runs it."""
        moments = self.moments()
        return ["Timeline:", *timeline.lines(moments, self._context.zone)] if moments else []

    def moments(self) -> list[Moment]:
        status, context = self._status, self._context
        moments = list(context.service)
        if status.saved_step is not None and status.saved_at is not None:
            moments.append(
                Moment(
                    time=status.saved_at,
                    source="checkpoint",
                    text=f"saved step {status.saved_step}, the last checkpoint",
                )
            )
        message = status.failure.message if status.failure else ""
        # The explanation has named the present wait above.
        moments = [replace(moment, causes=()) if moment.time == timeline.NOW else moment for moment in moments]
        return timeline.moments(self._all, moments, status.attempts, message)

    def next_command(self) -> str:
        return next_command(self._status, self._context.ref, generated=self._context.generated)

    def _waiting(self) -> str:
        """The present wait of the run according to the service, or ""."""
        causes = [" ".join(moment.causes) for moment in self._context.service if moment.time == timeline.NOW]
        return next(filter(None, causes), "")

    def _saved(self) -> str:
        """The last training step, and the last saved one."""
        status, step = self._status, self._context.step
        if status.state is State.SUCCEEDED or (step is None and status.saved_step is None):
            return ""
        ended = status.state.terminal
        last = [] if step is None else [f"{'Last' if ended else 'Current'} step: {step}."]
        if status.saved_step is not None and status.saved_at is not None:
            ago = duration((status.since if ended else self._context.now) - status.saved_at)
            last.append(f"Last checkpoint: step {status.saved_step}, {ago} {'before the end' if ended else 'ago'}.")
        elif not ended:
            last.append("No checkpoint was saved yet.")
        return " ".join(last)

    def _activity(self) -> Iterator[str]:
        """The present activity of the tasks, or the reason for their wait."""
        tasks, entered = list(self._context.tasks), self._sources("entry")
        hung = self._last("hung")
        if hung is not None:
            yield f"It hangs: no task has been active for {duration(float(hung.data.get('silent_s', 0.0)))}."
            yield f"The slowest task is {hung.data['task']}." if hung.data.get("task") else ""
        cause = list(self._cause())
        done = sorted(self._sources("done") | self._exited())
        if cause:
            yield from cause
        elif not self._has("attempt_started"):
            awaited = "its tasks to find each other" if self._context.cloud else "ports and for its tasks to start"
            yield f"Waiting for {awaited}."
        elif set(tasks) - entered - self._exited():
            yield f"Waiting for {and_more([t for t in tasks if t not in entered], _NAMED)} to reach the program."
        elif done:
            others = [task for task in tasks if task not in done]
            yield (
                f"Done: {and_more(done, _NAMED)}. Waiting for {and_more(others, _NAMED)}."
                if others
                else "Every task is done."
            )
        elif self._has("first_step"):
            yield f"It has been training since {self._clock(self._first_time('first_step'))}."
            yield self._continued()
        else:
            yield "The program is running in every task. No training step has been reported yet (only `fit` reports steps)."

    def _restarted_alone(self) -> Iterator[str]:
        last = {str(event.data.get("task")): event for event in self._events if event.kind == TASK_RESTARTING}
        for task, event in last.items():
            often = counted(self._status.restarted_alone.get(task, 0), "time")
            about = f"{task} was restarted alone {often}, last at {self._clock(event.time)}."
            yield " ".join(filter(None, [about, failure_of(event), str(event.data.get("why", ""))]))

    def _cause(self) -> Iterator[str]:
        """The first failure so far, for a run without a verdict."""
        event = first_failure(self._events, self._status.attempts)
        if event is not None:
            yield f"{event.source} failed: {error_of(event)}"
            yield tracebacks.shorten(tracebacks.fold(str(event.data.get("traceback", ""))))
            path = self._context.paths.log(event.attempt, event.source)
            yield "" if self._context.cloud else f"Full log: {path}"
            yield from self._others(event.source)

    def _continued(self) -> str:
        status = self._status
        if status.continued_step is None:
            return ""
        sentence = continuation(status.attempts, status.continued_step)
        return f"{sentence[:1].upper()}{sentence[1:]}."

    def _further(self) -> str:
        """Where another attempt would begin, if the run has trained."""
        status = self._status
        if status.state is State.SUCCEEDED or (status.saved_step is None and "first_step" not in status.timings):
            return ""
        begins = continuation(status.attempts + 1, status.saved_step)
        return f"If it is resumed, {begins}."

    def _others(self, cause: str) -> Iterator[str]:
        """The tasks that failed for another reason than the first one, with their tracebacks."""
        failed = [event for event in self._events if event.kind == "failed" and not is_collateral(event)]
        root = next((error_of(event) for event in failed if event.source == cause), "")
        others = [event for event in failed if event.source != cause]
        named = [f"{event.source} ({'the same' if error_of(event) == root else error_of(event)})" for event in others]
        yield f"Also failed: {and_more(named, _NAMED)}." if named else ""
        different = {error_of(event): event for event in reversed(others) if error_of(event) != root}
        for event in [*reversed(different.values())][:_OTHERS]:
            yield f"{event.source}:"
            yield tracebacks.shorten(tracebacks.fold(str(event.data.get("traceback", ""))))

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

    def _still_running(self) -> list[str]:
        exited = self._exited()
        return [task for task in self._context.tasks if task not in exited]

    def _clock(self, time: float) -> str:
        return datetime.fromtimestamp(time, self._context.zone).strftime("%Y-%m-%d %H:%M:%S")
