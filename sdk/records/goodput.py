"""The use of a run's time: a pure function of its records and of the accounts of one task.

Inside a task, its own monotonic clock counts. Between the tasks, the times of the records do. The names and the meaning of the
parts follow Google's ml-goodput-measurement where they fit: docs/explanation/decisions/goodput.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from ..status import Goodput, State
from .accounts import PARTS, TaskAccount
from .events import TASK_RESTARTING, Event, continues

# The parts that a restarted attempt repeats before it trains.
_AGAIN = ("start", "compile")
# The time of the steps themselves; a share of it may be lost.
_OF_STEPS = ("step", "input_wait")
_ENDS = ("restarting", "attempt_ended")


Outcome = Literal["running", "failed", "over"]


@dataclass(frozen=True, kw_only=True)
class _Window:
    """One attempt: when it began and ended, and its outcome."""

    number: int
    begun: float
    ended: float
    outcome: Outcome


def add_up(
    events: Sequence[Event],
    accounts: Mapping[int, TaskAccount],
    *,
    task: str,
    now: float,
    supervised: bool,
    waits_for_machines: bool = False,
) -> Goodput | None:
    """Return the use of a run's time; None if its attempts have no accounts.

    Args:
        events: all records of the run.
        accounts: the accounts of the task, by attempt.
        task: the name of the task.
        now: unix time.
        supervised: False if no process can still add records.
        waits_for_machines: True if a cloud looks for machines in the time before an attempt.
    """
    ordered = sorted(events, key=lambda event: (event.time, event.attempt, event.source, event.sequence))
    windows = _windows(ordered, accounts, now, supervised=supervised)
    if not accounts or not windows:
        return None
    waiting = "idle" if waits_for_machines else "start"
    created = next((event.time for event in ordered if event.kind == "submitted"), ordered[0].time)
    spent = defaultdict[str, float](float, {waiting: max(windows[0].begun - created, 0.0)})
    steps_lost = _steps_lost(accounts)
    for index, window in enumerate(windows):
        restarted = any(
            e.kind == TASK_RESTARTING and e.attempt == window.number and e.data.get("task") == task for e in ordered
        )
        again = restarted or (index > 0 and windows[index - 1].outcome == "failed" and not _resumed(ordered, window))
        _attempt(spent, window, accounts.get(window.number), steps_lost.get(window.number, 0), again=again)
        following = windows[index + 1] if index + 1 < len(windows) else None
        _between(spent, window, following, now, ordered, waiting)
    measured = any(account.measures_input for account in accounts.values())
    parts = {f"{name}_s": round(seconds, 6) for name, seconds in spent.items() if name != "input_wait"}
    waited = round(spent["input_wait"], 6) if measured else None
    total = round(sum(spent.values()), 6)
    return Goodput(task=task, total_s=total, input_wait_s=waited, steps_lost=sum(steps_lost.values()), **parts)


def _windows(
    ordered: Sequence[Event], accounts: Mapping[int, TaskAccount], now: float, *, supervised: bool
) -> list[_Window]:
    windows: list[_Window] = []
    begins: dict[int, float] = {}
    for event in ordered:
        if event.attempt:
            begins.setdefault(event.attempt, event.time)
    numbers = sorted(begins)
    for number, following in zip_longest(numbers, numbers[1:]):
        begun, until = begins[number], math.inf if following is None else begins[following]
        ended, outcome = _end(ordered, number, begun, until)
        if outcome == "":
            account = accounts.get(number)
            last_time = max(event.time for event in ordered if event.attempt == number)
            # Its supervisor was killed, or the present one has not ended it yet.
            running = following is None and supervised
            ended = now if running else min(max(last_time, account.seen if account else last_time), until)
            outcome = "running" if running else "over" if following is None else "failed"
        windows.append(_Window(number=number, begun=begun, ended=max(ended, begun), outcome=outcome))
    return windows


def _end(ordered: Sequence[Event], number: int, begun: float, until: float) -> tuple[float, Outcome | Literal[""]]:
    for event in ordered:
        if event.attempt == number and event.kind in _ENDS:
            return event.time, "failed"
    for event in ordered:
        if event.kind == "final" and begun <= event.time <= until:
            failed = continues(event) or event.data.get("state") == State.FAILED.value
            return event.time, "failed" if failed else "over"
    return begun, ""


def _resumed(ordered: Sequence[Event], window: _Window) -> float | None:
    """Return when a user resumed the run with this attempt; None if it began for another reason."""
    # An attempt that was killed before its first record has taken a number, too.
    before = max((event.attempt for event in ordered if event.attempt < window.number), default=0)
    numbers = range(before, window.number)
    times = [event.time for event in ordered if event.kind == "resumed" and event.data.get("attempts") in numbers]
    return times[-1] if times else None


def _between(
    spent: defaultdict[str, float],
    window: _Window,
    following: _Window | None,
    now: float,
    ordered: Sequence[Event],
    waiting: str,
) -> None:
    """Count the time between two attempts, or after the last one."""
    if following is None:
        goes_on = window.outcome == "failed" and not any(e.kind == "final" and e.time >= window.ended for e in ordered)
        spent["lost_to_failures"] += max(now - window.ended, 0.0) if goes_on else 0.0
        return
    gap, resumed = max(following.begun - window.ended, 0.0), _resumed(ordered, following)
    if resumed is None:
        spent["lost_to_failures"] += gap
    else:
        ended = min(max(resumed - window.ended, 0.0), gap)
        spent["idle"] += ended
        spent[waiting] += gap - ended


def _steps_lost(accounts: Mapping[int, TaskAccount]) -> dict[int, int]:
    """Return how many steps of each attempt were done again: those after the step from which a later one continued."""
    repeated, restart_step = {}, math.inf
    for number in sorted(accounts, reverse=True):
        account = accounts[number]
        repeated[number] = int(max(account.reached - max(restart_step, account.base), 0))
        # An attempt without a step and without a restored one has no known start yet.
        if account.reached:
            restart_step = min(restart_step, account.base)
    return repeated


def _attempt(
    spent: defaultdict[str, float], window: _Window, account: TaskAccount | None, steps_lost: int, *, again: bool
) -> None:
    """Count the time of one attempt. `again`: it follows a failure; `steps_lost`: how many of its steps a later one repeats."""
    failed = window.outcome == "failed"
    if account is None:
        name = "lost_to_failures" if failed or again else "start" if window.outcome == "running" else "other"
        spent[name] += window.ended - window.begun
        return
    fruitless = failed and not account.steps
    repeated = {part for part in PARTS if fruitless or (again and part in _AGAIN)}
    share = min(steps_lost / account.steps, 1.0) if account.steps else 0.0
    # If the input cannot be measured after all, its time belongs to the steps again.
    names = {part: "step" if part == "input_wait" and not account.measures_input else part for part in PARTS}
    for part, seconds in account.parts.items():
        wasted = seconds if part in repeated else seconds * share if part in _OF_STEPS else 0.0
        spent["lost_to_failures"] += wasted
        spent[names[part]] += seconds - wasted
    spent["lost_to_failures" if again or fruitless else "start"] += max(account.begun - window.begun, 0.0)
    # The task's clock stands still while the machine sleeps, and the time of day does not.
    spent["idle"] += max(account.seen - account.begun - account.total_s, 0.0)
    now = names[account.part] if window.outcome == "running" and account.part not in repeated else "lost_to_failures"
    spent["other" if window.outcome == "over" else now] += max(window.ended - account.seen, 0.0)
