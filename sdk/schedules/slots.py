"""The slots of a schedule: the instants at which a cron expression fires in a time zone. Pure.

The semantics are unix cron's, by cronsim: 0 and 7 are Sunday, a restricted day of the month and a restricted day of the
week are joined by OR. When clocks change, a skipped instant fires at the next valid one, and a doubled one once. An expression
with a wildcard hour or minute fires by elapsed time: hourly is 23 times on the short day and 25 times on the long one.
"""

from __future__ import annotations

import importlib.resources
import os
import re
import zoneinfo
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from ..errors import InputError, Problems

# A delivery this much before a slot belongs to it; cloud triggers may be early by a fraction of a second.
EARLY_S = 60.0
# cronsim is started this much earlier: started inside a repeated hour, it returns instants before its start.
_MARGIN = timedelta(hours=3)
# How far back the latest slot is searched: most expressions fire within the first of these.
_WINDOWS = tuple(timedelta(days=days) for days in (0.05, 1, 8, 32, 367, 1500, 4 * 1500))
_MACROS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_DAYS, _MONTHS = "SUN MON TUE WED THU FRI SAT", "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"
# Each of the five fields: its name, the accepted values, the accepted names.
_FIELDS = (
    ("minute", "0 to 59", ""),
    ("hour", "0 to 23", ""),
    ("day-of-month", "1 to 31", ""),
    ("month", "1 to 12 or JAN to DEC", _MONTHS),
    ("day-of-week", "0 to 7 (0 and 7 are Sunday) or SUN to SAT", _DAYS),
)


@dataclass(frozen=True)
class Cron:
    """A cron expression in a time zone; InputError with every mistake: `Cron("0 3 * * 1", "Europe/Berlin")`."""

    expression: str
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        problems = Problems()
        with problems.collect():
            check_expression(self.expression)
        with problems.collect():
            zone(self.time_zone)
        problems.raise_if_any()

    @property
    def zone(self) -> zoneinfo.ZoneInfo:
        return zone(self.time_zone)

    @property
    def is_fixed(self) -> bool:
        """True if hour and minute are named, so that a clock change can skip or repeat an instant."""
        minute, hour = self.expression.split()[-5:-3]
        return not minute.startswith("*") and not hour.startswith("*")

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the slots after an instant, in order."""
        last = _utc(instant)
        start = (last - _MARGIN).astimezone(self.zone)
        for slot in _simulated(self.expression, start):
            moment = _utc(slot)
            if moment > last:
                last = moment
                yield slot

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the slots from `start` on and before `end`."""
        first, last = _utc(start), _utc(end)
        for slot in self.after(first - timedelta(seconds=1)):
            if _utc(slot) >= last:
                return
            if _utc(slot) >= first:
                yield slot

    def next(self, count: int, after: datetime) -> list[datetime]:
        """Return the next slots after an instant."""
        return list(islice(self.after(after), count))

    def latest(self, instant: datetime) -> datetime | None:
        """Return the last slot at or before an instant; None if there is none within sixteen years."""
        after = _utc(instant) + timedelta(microseconds=1)
        for window in _WINDOWS:
            last = deque(self.between(after - window, after), maxlen=1)
            if last:
                return last[0]
        return None

    def nearest(self, instant: datetime) -> datetime | None:
        """Return the slot that a delivery at an instant belongs to.

        It is the next slot if that is at most a minute and less than half a period ahead, else the latest one.
        """
        latest, coming = self.latest(instant), next(self.after(instant), None)
        if coming is None:
            return latest
        ahead_s = (_utc(coming) - _utc(instant)).total_seconds()
        period_s = ahead_s * 4 if latest is None else (_utc(coming) - _utc(latest)).total_seconds()
        return coming if ahead_s <= EARLY_S and ahead_s < period_s / 2 else latest


def _utc(slot: datetime) -> datetime:
    # Datetimes of one zone are subtracted as wall clocks, which is wrong by an hour across a clock change.
    return slot.astimezone(timezone.utc)


def _simulated(expression: str, start: datetime) -> Iterator[datetime]:
    """Return cronsim's iterator; ValueError if the expression is wrong."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise InputError("Schedules need the package cronsim. Next: pip install 'podlift[schedule]'.") from None
    try:
        instants: Iterator[datetime] = CronSim(expression, start)
    except (CronSimError, AssertionError) as error:
        raise ValueError(str(error)) from None
    return instants


def check_expression(expression: str) -> None:
    """Raise InputError if this is not a cron expression; the message names the field."""
    echo = f"Received: {expression!r}."
    words = expression.split()
    if expression.strip().lower() in _MACROS:
        raise InputError(f"cron: macros are not accepted. {echo} Did you mean {_MACROS[expression.strip().lower()]!r}?")
    if len(words) not in (5, 6):
        raise InputError(
            f"cron: expected five fields (minute, hour, day-of-month, month, day-of-week), found {len(words)}. {echo} Example: "
            "'0 3 * * 1' is Mondays at 03:00."
        )
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    problems = []
    for at, (name, accepted, names) in enumerate(_FIELDS, len(words) - 5):
        alone = ["*"] * len(words)
        alone[at] = words[at]
        try:
            _simulated(" ".join(alone), now)
        except InputError:
            raise
        except ValueError:
            hint = _hint(words[at], names)
            expected = f"Expected: {accepted}, *, lists, ranges or steps.{hint}"
            problems.append(f"cron: the {name} field is wrong: {words[at]!r}. {expected}")
    if problems:
        raise InputError([f"{problem} {echo}" for problem in problems])
    try:
        fires = next(_simulated(expression, now), None) is not None
    except ValueError:
        fires = False
    if not fires:
        raise InputError(f"cron: this never fires: none of its months has such a day. {echo}")


def _hint(field: str, names: str) -> str:
    for word in re.findall(r"[A-Za-z]+", field):
        near = get_close_matches(word.upper(), names.split(), n=1) or [
            name for name in names.split() if word.upper().startswith(name)
        ]
        if word.upper() not in names.split() and near:
            return f" Did you mean {near[0]!r}?"
    return ""


def check_portable(expression: str, service: str) -> None:
    """Raise InputError if an expression uses L, # or a field of seconds, which only cronsim accepts."""
    words = expression.split()
    problems = []
    if len(words) == 6:
        problems.append(f"six fields, but {service} has no seconds (use {' '.join(words[1:])!r})")
    for field in words[-3], words[-1]:
        if re.search(r"(?<![A-Za-z])\d*LW?(?![A-Za-z])", field.upper()):
            problems.append(f"{field!r}: {service} has no last day (L)")
        elif "#" in field:
            problems.append(f"{field!r}: {service} has no nth weekday (#)")
    if problems:
        raise InputError([f"cron: {problem}. Received: {expression!r}." for problem in problems])


def zone(name: str) -> zoneinfo.ZoneInfo:
    """Return a time zone by its name in the IANA database, or raise InputError with the nearest one."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass
    names = sorted(zoneinfo.available_timezones())
    if not names:
        raise InputError("time_zone: this system has no time zones. Next: pip install 'podlift[schedule]'.")
    raise InputError(f"time_zone: unknown time zone. Received: {name!r}. {_near_zone(name, names)}")


def zone_data(name: str) -> bytes:
    """Return the rules of a time zone, preferably from the package tzdata, which is the same on every machine."""
    try:
        return (importlib.resources.files("tzdata.zoneinfo") / name).read_bytes()
    except (ImportError, OSError):
        folders = [folder for folder in zoneinfo.TZPATH if os.path.isfile(os.path.join(folder, name))]
        return Path(folders[0], name).read_bytes() if folders else b""


def _near_zone(name: str, names: list[str]) -> str:
    word = re.sub(r"[\s_-]+", "_", name.strip()).lower()
    cities = {zone.lower().rpartition("/")[2]: zone for zone in reversed(names)}
    same = {zone.lower(): zone for zone in names}.get(word) or cities.get(word.rpartition("/")[2])
    if same:
        return f"Did you mean {same!r}?"
    near = get_close_matches(name, names, n=1)
    return (
        f"Did you mean {near[0]!r}?" if near else "Known: names such as 'Europe/Berlin', 'America/New_York' and 'UTC'."
    )
