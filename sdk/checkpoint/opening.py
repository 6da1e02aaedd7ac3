"""How all tasks of an attempt agree on what to restore and in which epoch to write, with no collective operation.

The first task takes the lease, chooses, and writes the choice once; the others wait for that object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ..clock import Clock
from ..errors import AlreadyExistsError, CheckpointError, CorruptCheckpointError, FencedError, MissingError, StoreError
from ..storage.store import Store, open_store
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
        source: URL of the store that holds it, where that is another one.
        manifest: of that checkpoint.
    """

    attempt: int
    epoch: int
    nonce: str
    commit: str | None = None
    source: str | None = None
    manifest: Manifest | None = None
    _kept: list[restore.Checkpoint] = field(default_factory=list, compare=False, repr=False)

    def lease(self) -> Lease:
        """The lease as it must be found before each commit."""
        return Lease(epoch=self.epoch, nonce=self.nonce)

    def read(self, store: Store, *, resume_from: Store | None = None) -> restore.Checkpoint | None:
        """Return the checkpoint to restore, verified; None for a fresh start.

        The task that chose it has read it already: its first call returns that and forgets it.

        Args:
            store: the attempt's.
            resume_from: the store that `source` names, if it is open already.

        Raises:
            CorruptCheckpointError, StoreError: as `restore.read`.
        """
        if self.commit is None:
            return None
        if self._kept:
            return self._kept.pop()
        return restore.read(_holder(store, self.source, resume_from), self.commit)


def open_first(
    store: Store,
    attempt: int,
    holder: str,
    clock: Clock,
    *,
    resume_from: Store | None = None,
    log: Callable[[str], None],
    on_corrupt: Literal["raise", "fresh"] = "raise",
) -> Opening:
    """Take the lease, choose the newest checkpoint that verifies wholly, and tell the other tasks.

    Args:
        store: the run's.
        attempt: the attempt's number.
        holder: names this task for people.
        clock: what time it is.
        resume_from: another run's store, used as long as the run has no checkpoint of its own.
        log: takes sentences.
        on_corrupt: what to do when there are checkpoints and none verifies.

    Raises:
        CorruptCheckpointError: there are checkpoints and none verifies.
        FencedError: another task has opened this attempt.
        StoreError: the store cannot be read or written.
    """
    lease = take(store, holder, clock)
    found = restore.newest(store, log, on_corrupt)
    source = None
    if found is None and resume_from is not None:
        found = restore.newest(resume_from, log, quarantine=False)
        if found is None:
            raise CheckpointError(f"There is no checkpoint to resume from in {resume_from.url}.")
        source = resume_from.url
    body = {
        "attempt": attempt,
        "epoch": lease.epoch,
        "nonce": lease.nonce,
        "commit": found.manifest.key if found else None,
        "source": source,
    }
    _publish(store, attempt, body)
    return Opening(
        attempt=attempt,
        epoch=lease.epoch,
        nonce=lease.nonce,
        commit=found.manifest.key if found else None,
        source=source,
        manifest=found.manifest if found else None,
        _kept=[found] if found else [],
    )


def join(
    store: Store,
    attempt: int,
    clock: Clock,
    sleep: Callable[[float], None],
    wait_s: float,
    *,
    resume_from: Store | None = None,
) -> Opening:
    """Wait for what the first task of the attempt has chosen.

    Args:
        store: the run's.
        attempt: the attempt's number.
        clock: what time it is.
        sleep: sleeps some seconds.
        wait_s: how long the first task may take to read and verify a checkpoint.
        resume_from: as in `open_first`, if it is open already.

    Raises:
        StoreError: nothing came in time.
        CorruptCheckpointError: what came is damaged.
    """
    until = clock.monotonic() + wait_s
    while True:
        try:
            opening = _parse(store.get(names.opening(attempt)))
            break
        except MissingError:
            if clock.monotonic() >= until:
                raise StoreError(
                    f"The first task has not chosen a checkpoint within {wait_s:.0f} s: there is no "
                    f"{names.opening(attempt)} in {store.url}. Its log says what it waits for; do all tasks see "
                    "the same folder?"
                ) from None
            sleep(_POLL_S)
    if opening.attempt != attempt:
        raise CorruptCheckpointError(f"{names.opening(attempt)!r} of {store.url} is of attempt {opening.attempt}.")
    if opening.commit is None:
        return opening
    manifest = restore.read_manifest(_holder(store, opening.source, resume_from), opening.commit)
    return Opening(**{**opening.__dict__, "manifest": manifest})


def _holder(store: Store, source: str | None, resume_from: Store | None) -> Store:
    if source is None:
        return store
    return resume_from or open_store(source)


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
        source=fields.text_or_none("source"),
    )


def _publish(store: Store, attempt: int, body: dict[str, object]) -> None:
    key = names.opening(attempt)
    try:
        store.put_new(key, [wrap("opening", body)])
    except StoreError as error:
        # A reply that is lost says nothing: what is there now does.
        try:
            nonce = _parse(store.get(key)).nonce
        except MissingError:
            raise error from None
        if nonce != body["nonce"]:
            if not isinstance(error, AlreadyExistsError):
                raise
            raise FencedError(
                f"Attempt {attempt} of {store.url} was opened by another task already. Is the run started twice?"
            ) from None
