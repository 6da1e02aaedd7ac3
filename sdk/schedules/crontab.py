"""A line of a crontab that fires a schedule at the hours of its own zone, whichever zone cron goes by."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from ..errors import InputError
from ..text import compact_duration
from .records import ScheduleSpec
from .slots import Cron, minutes_of, plain_fields

# cron's own limit, of a line without its five fields.
_LONGEST = 998
# How late cron may be: a line that fires at another hour than a slot's does nothing.
_LATE_S = 600.0
# A line for every hour delivers a slot once, also one that a clock change has moved to another minute.
_HOURLY_LATE_S = 3540.0
_YEAR, _STEP = timedelta(days=366), timedelta(hours=12)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a crontab depends on."""

    zone: tzinfo  # by which cron fires
    # Whether it reads CRON_TZ: Debian's does not, and would fire at the hours of its own zone.
    knows_zones: bool
    command: Sequence[str]  # the words that start podlift, with an absolute path
    path: str  # the folders of PATH
    home: Path


def this_machine() -> Machine:
    script = Path(sys.executable).with_name("podlift")
    return Machine(
        zone=_zone_of_cron(),
        # A program of cronie, which knows CRON_TZ.
        knows_zones=shutil.which("cronnext") is not None,
        command=[str(script)] if script.exists() else [sys.executable, "-m", "sdk"],
        path=os.pathsep.join(dict.fromkeys([str(script.parent), "/usr/local/bin", "/usr/bin", "/bin"])),
        home=Path.home(),
    )


def _zone_of_cron() -> tzinfo:
    # Not TZ, which cron does not read.
    try:
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return timezone.utc


def lines(
    spec: ScheduleSpec, root: str, variables: Sequence[str], machine: Machine, now: datetime, period_s: float
) -> str:
    """Return the lines of a crontab; InputError if cron cannot hold them."""
    state = machine.home / ".local" / "state" / "podlift"
    words = [*machine.command, "schedule", "fire", spec.name, "--root", root]
    remarks, fields, late_s = _fields(spec.slots, machine, now)
    words += ["--within", compact_duration(min(late_s, period_s / 2))]
    log = shlex.quote(str(state / f"{spec.name}.log"))
    command = f"PATH={shlex.quote(machine.path)} {shlex.join(words)} >> {log} 2>&1"
    about = [f"# podlift schedule {spec.name}: {' '.join(spec.cron.split())} in {spec.time_zone}"]
    if variables:
        file = machine.home / ".config" / "podlift" / f"{spec.name}.env"
        command = f"set -a; . {shlex.quote(str(file))}; set +a; {command}"
        about.append(
            f"# {', '.join(variables)}: from {file}, with lines NAME='VALUE' that only you may read (chmod 600)"
        )
    command = f"mkdir -p {shlex.quote(str(state))}; {command}"
    if "\n" in command:
        raise InputError(f"--render: a line of a crontab has no line breaks. Received: {root!r}. Next: another root.")
    # cron takes % for the end of a line.
    command = command.replace("%", r"\%")
    if len(command) > _LONGEST:
        raise InputError(f"--render: cron's commands have at most {_LONGEST} characters. Received: {len(command)}.")
    return "".join(f"{line}\n" for line in [*about, *remarks, f"{fields} {command}"])


def _fields(cron: Cron, machine: Machine, now: datetime) -> tuple[list[str], str, float]:
    """Return remarks and settings, the five fields, and how late a line may fire."""
    differences, fields = _differences(cron.zone, machine.zone, now), " ".join(plain_fields(cron.expression))
    if differences == {0}:
        return (
            ["# The zone of this machine has the same hours. In another one, render this line again."],
            fields,
            _LATE_S,
        )
    if machine.knows_zones:
        remark = "# CRON_TZ holds for every line below it: keep these two at the end of the crontab."
        return [remark, f"CRON_TZ={cron.time_zone}"], fields, _LATE_S
    found = sorted({(minute + shift) % 60 for minute in minutes_of(cron.expression) for shift in differences})
    remark = f"# This cron knows no time zones: the line does nothing at hours without a slot in {cron.time_zone}."
    return [remark], f"{'*' if len(found) == 60 else ','.join(map(str, found))} * * * *", _HOURLY_LATE_S


def _differences(one: tzinfo, other: tzinfo, now: datetime) -> set[int]:
    """Return by how many minutes two zones differ in the next year."""
    found, moment = set(), now
    while moment < now + _YEAR:
        offsets = [moment.astimezone(each).utcoffset() or timedelta() for each in (other, one)]
        found.add(round((offsets[0] - offsets[1]).total_seconds() / 60))
        moment += _STEP
    return found
