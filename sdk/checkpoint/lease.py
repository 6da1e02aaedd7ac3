"""The lease of a store: who may write. Taking it ends the right of the previous holder."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from ..clock import Clock
from ..errors import (
    ConflictError,
    CorruptCheckpointError,
    CorruptObjectError,
    FencedError,
    MissingError,
    StoreError,
)
from ..storage.store import Store
from . import names
from .envelope import Fields, unwrap, wrap

# Each lost race is won by another attempt.
_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to write in one epoch; each taking begins a new one. Nothing depends on the clock of `taken_at`."""

    epoch: int
    nonce: str
    holder: str = ""
    taken_at: float = 0.0


def decode(data: bytes | bytearray | memoryview) -> Lease:
    """Return the lease in these bytes, or raise CorruptCheckpointError."""
    fields = Fields(unwrap("lease", data), "The lease")
    return Lease(
        epoch=fields.count("epoch", 1),
        nonce=fields.text("nonce"),
        holder=fields.text("holder"),
        taken_at=fields.number("taken_at"),
    )


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


def check(store: Store, lease: Lease) -> None:
    """Return if the lease is still ours; FencedError if another attempt has taken it, or it is missing."""
    try:
        found = decode(store.get(names.LEASE))
    except MissingError:
        raise FencedError(f"The lease of {store.url} was removed. This attempt stops writing.") from None
    if found.nonce != lease.nonce:
        raise FencedError(
            f"Another attempt, {found.holder!r}, has taken over the checkpoints of {store.url} (epoch {found.epoch}; ours "
            f"was {lease.epoch}). This attempt stops writing."
        )


def _holds(store: Store, lease: Lease) -> bool:
    try:
        return decode(store.get(names.LEASE)).nonce == lease.nonce
    except (StoreError, CorruptCheckpointError):
        return False


def _current(store: Store) -> tuple[str | None, int]:
    """Return the generation of the lease, and the newest epoch ever begun."""
    try:
        generation: str | None = store.stat(names.LEASE).generation
        return generation, decode(store.get(names.LEASE, generation=generation)).epoch
    except MissingError:
        return None, _newest_epoch(store)
    except ConflictError:
        return _current(store)
    except (CorruptObjectError, CorruptCheckpointError):
        # Without its epoch, starting at 1 again would make later checkpoints count as older.
        return generation, _newest_epoch(store)


def _newest_epoch(store: Store) -> int:
    commits = (
        checkpoint_id.epoch for stat in store.list(names.COMMITS) if (checkpoint_id := names.parse_commit(stat.key))
    )
    data = (found[1] for stat in store.list(names.DATA) if (found := names.parse_data_key(stat.key)))
    return max([0, *commits, *data])
