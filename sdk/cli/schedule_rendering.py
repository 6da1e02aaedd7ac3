"""`--render`: a trigger of a schedule as text on stdout, and what is to be said about it."""

from __future__ import annotations

from datetime import datetime, timezone

from .. import __version__
from ..clock import SystemClock
from ..errors import InputError
from ..schedules import clock_changes, rendering
from ..schedules.crontab import this_machine
from ..schedules.records import ScheduleSpec
from ..schedules.rendering import Rendered
from ..spec.plan import Plan
from .output import answer, say


def rendered(form: str | None, spec: ScheduleSpec, plan: Plan, *, json_output: bool) -> Rendered | None:
    """Return the trigger in this form, None without one; InputError with every reason why it could not work."""
    if form is None:
        return None
    if json_output:
        raise InputError("--render prints a file, and --json an object: use one.")
    now = datetime.fromtimestamp(SystemClock().now(), timezone.utc)
    found = rendering.render(form, spec, plan, now=now, version=__version__, machine=this_machine())
    return Rendered(text=found.text, remarks=[*found.remarks, *clock_changes.warnings(spec.slots, now, form)])


def show(found: Rendered | None) -> None:
    if found is not None:
        answer(found.text.rstrip("\n"))
        for sentence in found.remarks:
            say(f"podlift: {sentence}")
