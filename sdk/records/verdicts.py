"""What the records of a run say about how its last attempt ended, for those that write its verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .events import Event, first_failure, since_resumed, unsettled


def last_attempt(events: Sequence[Event]) -> tuple[int, list[Event]]:
    """Return the last attempt since the latest resume and its records, or 0 if there was none."""
    ordered = sorted(events, key=lambda event: (event.time, event.attempt, event.source, event.sequence))
    current, resumed = since_resumed(ordered)
    before = int(resumed.data["attempts"]) if resumed else 0
    attempt = max((event.attempt for event in current if event.attempt > before), default=0)
    return attempt, unsettled([event for event in current if attempt and event.attempt == attempt])


def attempt_ended(events: Sequence[Event]) -> Event | None:
    """Return the containers' own decision that no attempt follows the last one."""
    _, last = last_attempt(events)
    return next((event for event in last if event.kind == "attempt_ended"), None)


def failed_exits(events: Sequence[Event]) -> list[Event]:
    """Return the exits of an attempt's tasks with another code than 0."""
    return [event for event in events if event.kind == "exited" and event.data.get("code")]


def silent_exits(events: Sequence[Event]) -> list[Event]:
    """Return those of tasks without a failure record that are not a consequence of another's, earliest first."""
    explained = {event.source for event in events if event.kind == "failed"}
    exits = [
        event
        for event in failed_exits(events)
        if not event.data.get("collateral") and event.data.get("task") not in explained
    ]
    return sorted(exits, key=lambda event: event.time)


def done_at(events: Sequence[Event], task: str) -> float | None:
    """Return when a task was done in the last attempt, by its own clock; None if it was not."""
    _, last = last_attempt(events)
    return min((event.time for event in last if event.kind == "done" and event.source == task), default=None)


def recorded_failure(events: Sequence[Event]) -> Event | None:
    """Return the record that explains why the last attempt failed, if a task wrote one."""
    attempt, last = last_attempt(events)
    return first_failure(last, attempt)
