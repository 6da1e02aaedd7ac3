"""How the tasks of an attempt agree on the checkpoint to restore and the epoch to write in, without a collective operation.

The first task takes the lease, chooses, and writes its choice once; the others wait for that object. The holder of the lease
may write: taking it ends the right of the previous holder.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..clock import Clock, SystemClock
from ..errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptCheckpointError,
    CorruptObjectError,
    FencedError,
    MissingError,
    StoreError,
)
from ..job.policies import Checkpoints
from ..logs import logger
from ..storage.store import Buffer, Store
from . import names, restore
from .envelope import fields_of, foreign, unwrap, wrap
from .manifest import About, Manifest

_log = logger("checkpoint")

_POLL_S = 0.05
# Each lost race is won by another attempt.
_TRIES = 1000
_WRITTEN = ("attempt", "epoch", "nonce", "commit")  # the fields of an opening that are stored
_NONCE = re.compile("[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """The task that saves, and the facts that are known before its store is open."""

    run_id: str
    attempt: int
    task: str
    tasks: tuple[str, ...]  # that step together; the first one commits
    warm_start: str = ""  # a checkpoint of another run to start from, as `STORE#COMMIT`; "" for none
    saved_before: int | None = None  # a step that earlier attempts saved, according to the run's records

    @property
    def rank(self) -> int:
        return self.tasks.index(self.task)


@dataclass(frozen=True, kw_only=True)
class Env:
    """What surrounds a task."""

    clock: Clock = field(default_factory=SystemClock)
    about: Callable[[], About] = About
    # Called in the background with the step of this attempt's first acknowledged checkpoint.
    saved: Callable[[int], None] = lambda step: None
    # Called with the interval between saves that was chosen.
    paced: Callable[[float], None] = lambda every_s: None
    # Whether the tasks train without a connection: they have no step in common, and only the first one is saved.
    apart: Callable[[], bool] = lambda: False


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The agreement of the tasks of one attempt."""

    attempt: int
    epoch: int
    nonce: str  # of the lease
    commit: str | None  # the checkpoint to restore; None for a fresh start
    manifest: Manifest | None = None
    run_id: str = ""
    _verified: list[restore.Checkpoint] = field(default_factory=list, compare=False)

    def read(self, store: Store) -> restore.Checkpoint | None:
        """Return the checkpoint to restore, verified; None for a fresh start."""
        if self.commit is None:
            return None
        return self._verified.pop() if self._verified else restore.read(store, self.commit, self.run_id)


@dataclass(frozen=True, kw_only=True)
class OpenStore:
    """A store as one task of one attempt writes it."""

    store: Store
    opening: Opening
    info: TaskInfo
    policy: Checkpoints
    env: Env = field(default_factory=Env)
    about: About = field(default_factory=About)


def open_first(
    store: Store, attempt: int, holder: str, clock: Clock, *, run_id: str = "", saved: int | None = None
) -> Opening:
    """Take the lease, choose the newest checkpoint that verifies completely, and publish the choice.

    Checkpoints of another run than `run_id` are rejected, unless that is "". If `saved`, a step that was saved according to
    the run's records, is given, a store without checkpoints is an error.
    """
    lease = take(store, holder, clock)
    newest = restore.newest(store, run_id=run_id)
    if newest is None and saved is not None:
        raise CorruptCheckpointError(gone(run_id, store.url, saved))
    opening = Opening(attempt=attempt, epoch=lease.epoch, nonce=lease.nonce, commit=None, run_id=run_id)
    if newest is not None:
        opening = replace(opening, commit=newest.manifest.key, manifest=newest.manifest, _verified=[newest])
    _publish(store, opening)
    return opening


def gone(run_id: str, url: str, step: int) -> str:
    """Return the error for a run with a checkpoint in its records and none in its store."""
    return (
        f"The checkpoints of the run {run_id} are missing: according to its records step {step} was saved, but {url} has no "
        "checkpoint. The run would start again at step 0. Next: restore that folder from a copy; to start over on purpose, "
        "submit a new run."
    )


def join(store: Store, attempt: int, clock: Clock, wait_s: float, *, run_id: str = "") -> Opening:
    """Wait up to `wait_s` for the choice of the attempt's first task."""
    opening = replace(_parse(_published(store, names.opening(attempt), clock, wait_s)), run_id=run_id)
    if opening.attempt != attempt:
        raise CorruptCheckpointError(f"{names.opening(attempt)!r} of {store.url} belongs to attempt {opening.attempt}.")
    if opening.commit is None:
        return opening
    return replace(opening, manifest=restore.read_manifest(store, opening.commit, run_id))


def _published(store: Store, key: str, clock: Clock, wait_s: float) -> Buffer:
    until = clock.monotonic() + wait_s
    while True:
        try:
            return store.get(key)
        except MissingError:
            if clock.monotonic() >= until:
                raise StoreError(
                    f"The first task did not choose a checkpoint within {wait_s:.0f} s: there is no {key} in {store.url}. "
                    "Next: see the first task's log, and check that all tasks see the same folder."
                ) from None
            clock.sleep(_POLL_S)


def _parse(data: Buffer) -> Opening:
    body = unwrap("opening", data)
    opening = fields_of({name: body[name] for name in _WRITTEN if name in body}, "opening", Opening)
    if opening.epoch < 1:
        raise foreign("opening", f"'epoch' is {opening.epoch}, and the first one is 1")
    if not _NONCE.fullmatch(opening.nonce):
        raise foreign("opening", f"'nonce' is {opening.nonce!r:.100}, not hexadecimal")
    if opening.commit is not None and names.parse_commit(opening.commit) is None:
        raise CorruptCheckpointError(
            f"The opening refers to {opening.commit!r:.100}, which is not the name of a checkpoint."
        )
    return opening


def _publish(store: Store, opening: Opening) -> None:
    key = names.opening(opening.attempt)
    body = {name: getattr(opening, name) for name in _WRITTEN}
    try:
        store.put_new(key, [wrap("opening", body)])
    except StoreError as error:
        # The reply may have been lost: the existing object decides.
        try:
            nonce = _parse(store.get(key)).nonce
        except MissingError:
            raise error from None
        if nonce != opening.nonce:
            if not isinstance(error, AlreadyExistsError):
                raise
            raise FencedError(
                f"Attempt {opening.attempt} of {store.url} was already opened by another task. Was the run started twice?"
            ) from None


# --- The lease ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to write in one epoch; each taking begins a new one. Nothing depends on the clock of `taken_at`."""

    epoch: int
    nonce: str
    holder: str
    taken_at: float


def decode_lease(data: Buffer) -> Lease:
    """Return the lease in these bytes, or raise CorruptCheckpointError."""
    lease = fields_of(unwrap("lease", data), "lease", Lease)
    if lease.epoch < 1:
        raise foreign("lease", f"'epoch' is {lease.epoch}, and the first one is 1")
    return lease


def take(store: Store, holder: str, clock: Clock) -> Lease:
    """Take the lease from its present holder, if it has one."""
    nonce = secrets.token_hex(8)
    for _ in range(_TRIES):
        generation, epoch = _current(store)
        lease = Lease(epoch=epoch + 1, nonce=nonce, holder=holder, taken_at=clock.now())
        try:
            store.swap(names.LEASE, [wrap("lease", lease.__dict__)], expected=generation)
            return lease
        except (ConflictError, MissingError):
            # Another attempt took it, or our own request was repeated after its reply was lost.
            if _holds(store, lease):
                return lease
        except StoreError:
            if _holds(store, lease):
                return lease
            raise
    raise StoreError(
        f"The lease of {store.url} was lost to other attempts {_TRIES} times. How many processes write there?"
    )


def check_lease(store: Store, lease: Lease | Opening) -> None:
    """Return if the lease is still ours; FencedError if another attempt has taken it, or it is missing."""
    try:
        current = decode_lease(store.get(names.LEASE))
    except MissingError:
        raise FencedError(f"The lease of {store.url} was removed. This attempt stops writing.") from None
    if current.nonce != lease.nonce:
        raise FencedError(
            f"Another attempt, {current.holder!r}, has taken over the checkpoints of {store.url} (epoch {current.epoch}; ours "
            f"was {lease.epoch}). This attempt stops writing."
        )


def _holds(store: Store, lease: Lease) -> bool:
    try:
        return decode_lease(store.get(names.LEASE)).nonce == lease.nonce
    except (StoreError, CorruptCheckpointError):
        return False


def _current(store: Store) -> tuple[str | None, int]:
    """Return the generation of the lease, and the newest epoch ever begun."""
    generation: str | None = None
    epoch = 0
    try:
        generation = store.stat(names.LEASE).generation
        epoch = decode_lease(store.get(names.LEASE, generation=generation)).epoch
    except MissingError:
        generation = None
    except ConflictError:
        return _current(store)
    except (CorruptObjectError, CorruptCheckpointError) as error:
        _log.info(f"The lease of {store.url} cannot be read; the next epoch follows the checkpoints' epochs. {error}")
    # A lease may also come from an older copy of the folder. Checkpoints of a lower epoch would count as older.
    return generation, max(epoch, _newest_epoch(store))


def _newest_epoch(store: Store) -> int:
    commits = (
        checkpoint_id.epoch for stat in store.list(names.COMMITS) if (checkpoint_id := names.parse_commit(stat.key))
    )
    data = (parts[1] for stat in store.list(names.DATA) if (parts := names.parse_data_key(stat.key)))
    return max([0, *commits, *data])
