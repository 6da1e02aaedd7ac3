"""How all tasks of an attempt agree on what to restore and in which epoch to write, with no collective operation.

The first task takes the lease, chooses, and writes the choice once; the others wait for that object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..clock import Clock
from ..errors import AlreadyExistsError, CorruptCheckpointError, FencedError, MissingError, StoreError
from ..storage.store import Store
from . import names, restore
from .envelope import unwrap, wrap
from .fields import Fields
from .lease import Lease, take
from .manifest import Manifest

_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What the tasks of one attempt have agreed on.

    Attributes:
        attempt: the attempt.
        epoch: all writes of the attempt carry it.
        nonce: of the lease.
        commit: key of the checkpoint to restore; None for a fresh start.
        manifest: of that checkpoint.
        run_id: the run whose store this is; "" where it has no run.
    """

    attempt: int
    epoch: int
    nonce: str
    commit: str | None = None
    manifest: Manifest | None = None
    run_id: str = ""
    _kept: list[restore.Checkpoint] = field(default_factory=list, compare=False, repr=False)

    def lease(self) -> Lease:
        """The lease as it must be found before each commit."""
        return Lease(epoch=self.epoch, nonce=self.nonce)

    def read(self, store: Store) -> restore.Checkpoint | None:
        """Return the checkpoint to restore, verified; None for a fresh start.

        The task that chose it has read it already: its first call returns that and forgets it.

        Args:
            store: the attempt's.

        Raises:
            CorruptCheckpointError, StoreError: as `restore.read`.
        """
        if self.commit is None:
            return None
        return self._kept.pop() if self._kept else restore.read(store, self.commit, self.run_id)


def open_first(
    store: Store,
    attempt: int,
    holder: str,
    clock: Clock,
    *,
    log: Callable[[str], None],
    run_id: str = "",
    saved: int | None = None,
) -> Opening:
    """Take the lease, choose the newest checkpoint that verifies wholly, and tell the other tasks.

    Args:
        store: the run's.
        attempt: the attempt's number.
        holder: names this task for people.
        clock: what time it is.
        log: takes sentences.
        run_id: the run: checkpoints of another one are refused; "" where the store has no run.
        saved: a step that the run's records say was saved; None where they say nothing.

    Raises:
        CorruptCheckpointError: there are checkpoints and none verifies, or there are none although some were saved.
        FencedError: another task has opened this attempt.
        StoreError: the store cannot be read or written.
    """
    lease = take(store, holder, clock)
    found = restore.newest(store, log, run_id=run_id)
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
    """Return what is said of a run whose records know of a checkpoint, and whose store has none."""
    return (
        f"The checkpoints of the run {run_id} are gone: its records say that step {step} was saved, and there is none in "
        f"{url}. It would begin again at step 0. Next: bring that folder back from a copy; to begin anew on purpose, submit "
        "it as a new run."
    )


def join(store: Store, attempt: int, clock: Clock, wait_s: float, *, run_id: str = "") -> Opening:
    """Wait for what the first task of the attempt has chosen.

    Args:
        store: the run's.
        attempt: the attempt's number.
        clock: what time it is.
        wait_s: how long the first task may take to read and verify a checkpoint.
        run_id: as of `open_first`.

    Raises:
        StoreError: nothing came in time.
        CorruptCheckpointError: what came is damaged.
    """
    until = clock.monotonic() + wait_s
    while True:
        try:
            opening = replace(_parse(store.get(names.opening(attempt))), run_id=run_id)
            break
        except MissingError:
            if clock.monotonic() >= until:
                raise StoreError(
                    f"The first task has not chosen a checkpoint within {wait_s:.0f} s: there is no "
                    f"{names.opening(attempt)} in {store.url}. Its log says what it waits for; do all tasks see "
                    "the same folder?"
                ) from None
            clock.sleep(_POLL_S)
    if opening.attempt != attempt:
        raise CorruptCheckpointError(f"{names.opening(attempt)!r} of {store.url} is of attempt {opening.attempt}.")
    if opening.commit is None:
        return opening
    return replace(opening, manifest=restore.read_manifest(store, opening.commit, run_id))


def _parse(data: bytes | bytearray | memoryview) -> Opening:
    fields = Fields(unwrap("opening", data), "The opening")
    commit = fields.text_or_none("commit")
    if commit is not None and names.place_of(commit) is None:
        raise CorruptCheckpointError(f"The opening names {commit!r}, which is no checkpoint's name.")
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
        # A reply that is lost says nothing: what is there now does.
        try:
            nonce = _parse(store.get(key)).nonce
        except MissingError:
            raise error from None
        if nonce != opening.nonce:
            if not isinstance(error, AlreadyExistsError):
                raise
            raise FencedError(
                f"Attempt {opening.attempt} of {store.url} was opened by another task already. Is the run started twice?"
            ) from None
