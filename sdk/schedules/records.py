"""The records of schedules: the schedule itself, its plan, and one record for each slot.

Below `<root>/schedules`, in a Store. The name of a slot's record is its instant: creating it takes the slot, so that any
number of servers start one run. Records of slots do not end in .json: `podlift remove` keeps everything that the JSON files of
a root name, so it keeps the bundles of schedules, but not every run that ever fired.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone

from .. import ids
from ..backends.deliveries import Delivery
from ..errors import ConflictError, InputError, MissingError
from ..job.layout import RootPaths
from ..process.heartbeats import Heartbeat, last_heartbeat
from ..records.named import NamedRecords
from ..status import Registered
from ..storage.fingerprints import DataState
from ..storage.parallel import in_parallel
from ..storage.store import Stat, create, current, unchanged
from .slots import Cron

VERSION = 1
# The run's name is that of the schedule with the slot, and has at most ids.MAX_NAME characters.
MAX_NAME = ids.MAX_NAME - len("-20261123t030000")
HEARTBEAT = "heartbeat.json"
# A folder for each hour: a server lists the hours since its last listing.
_HOUR = "%Y-%m-%dT%H"
_KEY = f"{_HOUR}/%M%SZ"
# States of a slot without an ended run. All other states come from its run.
TAKEN, WAITING, RUNNING, SKIPPED = "TAKEN", "WAITING", "RUNNING", "SKIPPED"
# The state of a slot with a damaged record.
UNREADABLE = "UNREADABLE"
OPEN = (TAKEN, WAITING, RUNNING)
# The clocks of two machines may differ by this, and one clock may be set by it.
TOLERANCE_S = 30.0
# The first word of the reason of a slot that no process started.
MISSED = "missed"
# The reason for the pause of a schedule during its removal.
REMOVED = "being removed"


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """The user's specification of a schedule, without the job."""

    name: str
    cron: str
    time_zone: str = "UTC"
    overlap: str = "skip"
    missed: str = "skip"
    when: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    notify_skips: int = 3
    pause_after_failures: int = 3
    # Firings that could break it are skipped. The limit of each firing is part of the job.
    max_cost_usd_per_month: float | None = None
    trigger: str = "auto"  # the service of its backend, or "serve": podlift schedule serve
    location: str = ""  # where its trigger is kept, "" for the choice of the service
    # As the user gave them: they may hold templates, and paths are relative to the folder.
    inputs: dict[str, str] = field(default_factory=dict)
    folder: str = ""

    @property
    def slots(self) -> Cron:
        return Cron(self.cron, self.time_zone)


@dataclass(frozen=True, kw_only=True)
class FormerTrigger:
    """A former trigger of a schedule, which is removed once the schedule has another one."""

    backend: str
    name: str


@dataclass(frozen=True, kw_only=True)
class ScheduleRecord:
    """A schedule as it is stored. It names the bundle, which `podlift remove` therefore keeps."""

    id: str  # distinguishes successive schedules of one name
    spec: ScheduleSpec
    bundle: str  # digest of the code
    plan: str  # key of the plan
    created: float
    since: float  # slots after this unix time belong to it
    paused: str = ""  # why it is paused, "" if it is not
    pause_ended: float = 0.0  # failures before this unix time do not count
    backend: str = "local"  # its service starts the runs
    trigger: str = ""  # full name of its trigger at that service, "" if `podlift schedule serve` starts it
    digest: str = ""  # of the request to the service
    former: tuple[FormerTrigger, ...] = ()
    version: int = VERSION


@dataclass(frozen=True, kw_only=True)
class SlotRecord:
    """The record of one slot."""

    key: str = ""
    slot: str  # ISO 8601 with the offset of the schedule's zone
    state: str
    reason: str = ""
    cause: str = "schedule"  # schedule, manual or catch_up
    run: str = ""  # id of the run
    holder: str = ""  # the server that works on it
    expires: float = 0.0  # unix time after which another server may take it over
    taken: float = 0.0
    started: float | None = None
    ended: float | None = None
    keeper: str = ""  # name of the job that serves it, "" for a server of this machine
    # The cost of its run; until the run ends, its maximum cost; None where nothing is billed.
    cost_usd: float | None = None
    notes: tuple[str, ...] = ()  # about its deliveries
    resumes: int = 0
    data: dict[str, DataState] = field(default_factory=dict)
    registered: Registered | None = None  # the registration of the model of its run
    # Keys of older records that a server needs, however far back: the newest one that was open, and the last success.
    earlier: str = ""
    success: str = ""

    @property
    def moment(self) -> datetime:
        return datetime.fromisoformat(self.slot)

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    def is_early(self, now: float) -> bool:
        """True if it was recorded as skipped with a later time than now: the clock was ahead, and the slot is in the future."""
        return self.state == SKIPPED and self.taken > now + TOLERANCE_S


def utc(time: float) -> datetime:
    """Return a unix time as a datetime."""
    return datetime.fromtimestamp(time, timezone.utc)


def key_of(slot: datetime) -> str:
    """Return the name of a slot's record: its instant in UTC, which sorts by time."""
    return slot.astimezone(timezone.utc).strftime(_KEY)


def instant_of(key: str) -> datetime:
    return datetime.strptime(key[: len("2026-11-23T03/0000Z")], _KEY).replace(tzinfo=timezone.utc)


def slot_of(schedule: ScheduleRecord, delivery: Delivery) -> tuple[str, datetime]:
    """Return the slot of a delivery and the name of its record: "" and the time of a delivery of every slot so far."""
    cron, created = schedule.spec.slots, utc(delivery.created)
    if delivery.every:
        return "", created
    slot = None if delivery.by_hand else cron.nearest(created)
    if delivery.slot is not None:
        slot = datetime.fromtimestamp(delivery.slot, cron.zone)
    if slot is not None:
        return key_of(slot), slot
    slot = created.astimezone(cron.zone).replace(microsecond=0)
    return f"{key_of(slot)}-manual-{delivery.id or secrets.token_hex(3)}", slot


def hour_of(moment: datetime) -> str:
    """Return the folder of the records of an hour."""
    return moment.astimezone(timezone.utc).strftime(_HOUR)


def run_id_of(record: ScheduleRecord, key: str, slot: datetime) -> str:
    """Return the id of the run of a slot: always the same one."""
    choices = ids.suffix_of(f"{record.spec.name} {record.id} {key}")
    return f"{record.spec.name}-{slot.strftime(ids.SLOT_FORMAT)}-{choices}"


class Book(NamedRecords[ScheduleRecord]):
    """The schedules of a root."""

    def __init__(self, root: str) -> None:
        super().__init__(root, RootPaths(root).schedules, ScheduleRecord, "schedule")
        self._listed: dict[str, Stat] = {}  # of the records of slots at their last listing

    def heartbeat(self) -> Heartbeat:
        """Return the last heartbeat of the root's servers."""
        return last_heartbeat(self.store, HEARTBEAT)

    def remove(self, record: ScheduleRecord) -> None:
        """Remove a schedule and its records; its runs stay. An interrupted removal leaves it paused, and can be repeated."""
        name = record.spec.name
        with suppress(InputError):
            self.change(name, paused=REMOVED)
        # The schedule comes last: as long as it is there, it is listed.
        prefixes = (f"slots/{name}/", f"keepers/{name}/", f"plans/{name}/", f"bookings/{name}/", f"specs/{name}.json")
        for key in [stat.key for prefix in prefixes for stat in self.store.list(prefix)]:
            try:
                self.store.delete(key)
            except MissingError:
                continue

    def put_files(self, files: Mapping[str, bytes]) -> None:
        """Store the files that firings read; their keys are named by digests."""
        for key, data in files.items():
            create(self.store, key, data)

    def absent(self, keys: Iterable[str]) -> list[str]:
        """Return the keys of files that are not stored."""
        absent = []
        for key in keys:
            try:
                self.store.stat(key)
            except MissingError:
                absent.append(key)
        return absent

    def add_place(self, backend: str, parent: str) -> None:
        """Remember the place of this root's triggers at a backend's service, to find triggers that have lost their schedule."""
        create(self.store, f"triggers/{backend}/{parent}", b"")

    def places(self) -> list[tuple[str, str]]:
        """Return the places that may hold triggers of this root, each as the backend and the place."""
        keys = [stat.key.split("/", 2) for stat in self.store.list("triggers/")]
        return [(backend, parent) for _, backend, parent in keys]

    def keys(self, record: ScheduleRecord, starts: Iterable[str] = ("",)) -> list[str]:
        """Return the names of the records of slots that begin with one of these, in order."""
        prefix = _slots(record)
        stats = [stat for start in starts for stat in self.store.list(prefix + start)]
        self._listed |= {stat.key: stat for stat in stats}
        return [stat.key.removeprefix(prefix) for stat in stats]

    def slots(self, record: ScheduleRecord, keys: Iterable[str]) -> list[SlotRecord]:
        """Return the records of slots by their names."""
        return in_parallel(lambda key: self.slot(record, key), keys)

    def of_month(self, record: ScheduleRecord, moment: datetime) -> list[SlotRecord]:
        """Return the records of slots of the month of a moment, in the zone of the schedule."""
        moment = moment.astimezone(record.spec.slots.zone)
        months = {each.astimezone(timezone.utc) for each in (moment, moment.replace(day=1, hour=0))}
        listed = self.keys(record, sorted({f"{each:%Y-%m-}" for each in months}))
        slots = in_parallel(lambda key: self.listed_slot(record, key), listed)
        return [slot for slot in slots if slot.slot[:7] == f"{moment:%Y-%m}"]

    def slot(self, record: ScheduleRecord, key: str) -> SlotRecord:
        where = _slots(record) + key
        return replace(self.decoded(SlotRecord, bytes(self.store.get(where)), where), key=key)

    def listed_slot(self, record: ScheduleRecord, key: str) -> SlotRecord:
        """Return the record of a slot as it was last listed; this process reads the same bytes once."""
        return unchanged(self.store, self._listed[_slots(record) + key], lambda: self.slot(record, key))

    def bookings(self, record: ScheduleRecord, month: str) -> tuple[dict[str, float], str | None]:
        """Return the bookings of a month, by the keys of their slots, and the generation of the bookings."""
        where = f"bookings/{record.spec.name}/{record.id}/{month}"
        try:
            data, generation = current(self.store, where)
        except MissingError:
            return {}, None
        return self._bookings(data, where), generation

    def _bookings(self, data: bytes, where: str) -> dict[str, float]:
        amounts = self.decoded(dict[str, float], data, where)
        # Every comparison with "not a number" is false: no budget would hold.
        if not all(math.isfinite(amount) and amount >= 0 for amount in amounts.values()):
            raise self.damaged(where, ValueError("an amount is not a number from 0"))
        return amounts

    def put_bookings(self, record: ScheduleRecord, month: str, data: dict[str, float], expected: str | None) -> bool:
        """Replace the bookings of a month; False if another process has."""
        try:
            self.store.swap(
                f"bookings/{record.spec.name}/{record.id}/{month}", [json.dumps(data).encode()], expected=expected
            )
        except ConflictError:
            return False
        return True

    def note(self, record: ScheduleRecord, key: str, text: str) -> None:
        """Add a note to the record of a slot, whatever other processes change at the same time."""
        while True:
            before = self.slot(record, key)
            after = replace(before, notes=(*before.notes, text))
            if text in before.notes or self.update(record, before, after):
                return

    def take(self, record: ScheduleRecord, slot: SlotRecord) -> bool:
        """Create the record of a slot; False if another process did."""
        return create(self.store, _slots(record) + slot.key, _encoded(slot))

    def update(self, record: ScheduleRecord, before: SlotRecord, after: SlotRecord) -> bool:
        """Replace the record of a slot unless another process has changed it."""
        where = _slots(record) + before.key
        try:
            generation = self.store.stat(where).generation
            stored = self.decoded(SlotRecord, bytes(self.store.get(where, generation=generation)), where)
            if replace(stored, key=before.key) != before:
                return False
            self.store.swap(where, [_encoded(after)], expected=generation)
        except (ConflictError, MissingError):
            return False
        return True


def _slots(record: ScheduleRecord) -> str:
    return f"slots/{record.spec.name}/{record.id}/"


def _encoded(slot: SlotRecord) -> bytes:
    return json.dumps({name: value for name, value in asdict(slot).items() if name != "key"}, sort_keys=True).encode()
