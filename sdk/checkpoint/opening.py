"""How the tasks of an attempt agree on the checkpoint to restore and the epoch to write in, without a collective operation.

The first task takes the lease, chooses, and writes its choice once; the others wait for that object.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..clock import Clock
from ..errors import AlreadyExistsError, CorruptCheckpointError, FencedError, MissingError, StoreError
from ..logs import logger
from ..storage.store import Store
from . import names, restore
from .envelope import Fields, unwrap, wrap
from .lease import Lease, take
from .manifest import Manifest

_log = logger("checkpoint")

_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What the tasks of one attempt agreed on."""

    attempt: int
    epoch: int
    nonce: str  # of the lease
    commit: str | None = None  # the checkpoint to restore; None for a fresh start
    manifest: Manifest | None = None
    run_id: str = ""
    _kept: list[restore.Checkpoint] = field(default_factory=list, compare=False, repr=False)

    def lease(self) -> Lease:
        """The lease as it must be found before each commit."""
        return Lease(epoch=self.epoch, nonce=self.nonce)

    def read(self, store: Store) -> restore.Checkpoint | None:
        """Return the checkpoint to restore, verified; None for a fresh start. The first call may return the chosen copy."""
        if self.commit is None:
            return None
        return self._kept.pop() if self._kept else restore.read(store, self.commit, self.run_id)


def open_first(
    store: Store,
    attempt: int,
    holder: str,
    clock: Clock,
    *,
    run_id: str = "",
    saved: int | None = None,
) -> Opening:
    """Take the lease, choose the newest checkpoint that verifies completely, and publish the choice.

    Args:
        holder: names this task in error messages.
        run_id: the run; checkpoints of other runs are rejected. "" if the store belongs to no run.
        saved: a step that was saved according to the run's records: then a store without checkpoints is an error.
    """
    lease = take(store, holder, clock)
    found = restore.newest(store, run_id=run_id)
    if found is None and saved is not None:
        raise CorruptCheckpointError(gone(run_id, store.url, saved))
    manifest = found.manifest if found else None
    opening = Opening(
        attempt=attempt,
        epoch=lease.epoch,
        nonce=lease.nonce,
        commit=manifest.key if manifest else None,
        manifest=manifest,
        run_id=run_id,
        _kept=[found] if found else [],
    )
    _publish(store, opening)
    return opening


def gone(run_id: str, url: str, step: int) -> str:
    """Return the error for a run whose records know of a checkpoint and whose store has none."""
    return (
        f"The checkpoints of the run {run_id} are missing: according to its records step {step} was saved, but {url} has no "
        "checkpoint. The run would start again at step 0. Next: restore that folder from a copy; to start over on purpose, "
        "submit a new run."
    )


def join(store: Store, attempt: int, clock: Clock, wait_s: float, *, run_id: str = "") -> Opening:
    """Wait up to `wait_s` for the choice of the attempt's first task."""
    until = clock.monotonic() + wait_s
    while True:
        try:
            opening = replace(_parse(store.get(names.opening(attempt))), run_id=run_id)
            break
        except MissingError:
            if clock.monotonic() >= until:
                raise StoreError(
                    f"The first task did not choose a checkpoint within {wait_s:.0f} s: there is no "
                    f"{names.opening(attempt)} in {store.url}. Next: see the first task's log, and check that all tasks see "
                    "the same folder."
                ) from None
            clock.sleep(_POLL_S)
    if opening.attempt != attempt:
        raise CorruptCheckpointError(f"{names.opening(attempt)!r} of {store.url} belongs to attempt {opening.attempt}.")
    if opening.commit is None:
        return opening
    return replace(opening, manifest=restore.read_manifest(store, opening.commit, run_id))


def _parse(data: bytes | bytearray | memoryview) -> Opening:
    fields = Fields(unwrap("opening", data), "The opening")
    commit = fields.text_or_none("commit")
    if commit is not None and names.parse_commit(commit) is None:
        raise CorruptCheckpointError(f"The opening refers to {commit!r}, which is not the name of a checkpoint.")
    return Opening(
        attempt=fields.count("attempt"),
        epoch=fields.count("epoch", 1),
        nonce=fields.text("nonce", "[0-9a-f]+"),
        commit=commit,
    )


def _publish(store: Store, opening: Opening) -> None:
    key = names.opening(opening.attempt)
    body = {name: getattr(opening, name) for name in ("attempt", "epoch", "nonce", "commit")}
    try:
        store.put_new(key, [wrap("opening", body)])
    except StoreError as error:
        # The reply may have been lost: what exists now decides.
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
