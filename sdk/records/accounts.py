"""Time accounts of tasks: each task counts its own in its progress file, and its supervisor keeps it in a record."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from ..job.wire import decode
from ..status import Progress
from .events import Event

Part = Literal["start", "compile", "input_wait", "step", "checkpoint", "evaluation", "other"]
PARTS: tuple[Part, ...] = get_args(Part)
# After the numbers of PROGRESS: a version, 0 for none; the unix time of the beginning and of the last count; the part that
# the task is in, as its index; steps that this process has done; 1 if it can measure its input; nanoseconds of each part.
ACCOUNT = struct.Struct(f"<QddQQQ{len(PARTS)}Q")
ACCOUNT_VERSION = 1
# The kind of the records of a supervisor or agent with the accounts of the tasks of an attempt that has ended.
ACCOUNTED = "accounted"


@dataclass(frozen=True, kw_only=True)
class TaskAccount:
    """The time of one process of a task, in seconds by a clock that neither jumps nor counts while the machine sleeps."""

    begun: float  # unix time
    seen: float  # unix time of the last count
    part: Part  # the activity of the task then
    steps: int  # training steps that this process has done
    reached: int  # training steps of the run, including earlier attempts
    measures_input: bool
    start: float = 0.0
    compile: float = 0.0
    input_wait: float = 0.0
    step: float = 0.0
    checkpoint: float = 0.0
    evaluation: float = 0.0
    other: float = 0.0

    @property
    def parts(self) -> dict[Part, float]:
        return {part: getattr(self, part) for part in PARTS}

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())

    @property
    def base(self) -> int:
        """The step from which this process began."""
        return max(self.reached - self.steps, 0)


def unpacked(data: bytes, reached: int) -> TaskAccount | None:
    """Return the account in a progress file, after the bytes of PROGRESS; None if there is none."""
    if len(data) < ACCOUNT.size:
        return None
    version, begun, seen, at, steps, measures, *spent = ACCOUNT.unpack_from(data)
    if version != ACCOUNT_VERSION or at >= len(PARTS):
        return None
    parts: dict[str, object] = {part: ns / 1e9 for part, ns in zip(PARTS, spent, strict=True)}
    fields: dict[str, object] = {"begun": begun, "seen": seen, "part": PARTS[at], "steps": steps, "reached": reached}
    return account_of({**fields, "measures_input": bool(measures), **parts})


def account_of(data: object) -> TaskAccount | None:
    """Return the account in a record; None if it is not one."""
    with suppress(TypeError):
        account = decode(TaskAccount, data)
        numbers = (account.begun, account.seen, *account.parts.values())
        if all(math.isfinite(number) and number >= 0 for number in numbers) and account.steps >= 0 <= account.reached:
            return account
    return None


@dataclass(frozen=True, kw_only=True)
class LiveAccount:
    """The account of a task in the latest attempt, as of now."""

    attempt: int
    account: TaskAccount


def in_heartbeat(beat: Mapping[str, object]) -> tuple[Progress | None, LiveAccount | None]:
    """Return the fields of a heartbeat about the first task, without damaged ones."""
    progress = live = None
    with suppress(TypeError):
        progress = decode(Progress, beat.get("progress"))
    with suppress(TypeError):
        live = decode(LiveAccount, beat.get("account"))
    return progress, live if live and account_of(asdict(live.account)) else None


def recorded(events: Sequence[Event], task: str) -> dict[int, TaskAccount]:
    """Return the accounts of a task in the records, by attempt."""
    by_attempt = {}
    for event in sorted(events, key=lambda event: (event.attempt, event.time, event.sequence)):
        tasks = event.data.get("tasks") if event.kind == ACCOUNTED else None
        if isinstance(tasks, dict) and (account := account_of(tasks.get(task))) is not None:
            by_attempt[event.attempt] = account
    return by_attempt
