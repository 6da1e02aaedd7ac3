"""The checkpoints of a training as a process outside of it sees them, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ..errors import CorruptCheckpointError
from ..logs import logger
from ..storage.registry import open_store
from ..storage.store import exists
from . import names, restore
from .restore import Checkpoint

_log = logger("checkpoint")


class CheckpointFeed:
    """Yields each checkpoint of a run once it is committed, until the training is over.

    Args:
        url: where the run keeps its checkpoints; nothing may be there yet.
        run_id: of the run.
        after: the step of the last checkpoint that is known already; -1 for none.
        over: whether the training has ended, and so committed its last checkpoint.
        wait: called while there is no new checkpoint.
    """

    def __init__(
        self, url: str, run_id: str, *, after: int, over: Callable[[], bool], wait: Callable[[], None]
    ) -> None:
        self._url, self._run_id, self._after = url, run_id, after
        self._over, self._wait = over, wait
        self._handled_keys: set[str] = set()

    def __iter__(self) -> Iterator[Checkpoint]:
        while True:
            # Checked first: checkpoints committed by then are listed below.
            over = self._over()
            any_new = False
            for checkpoint in self._new():
                any_new = True
                yield checkpoint
            if over and not any_new:
                return
            if not any_new:
                self._wait()

    def _new(self) -> Iterator[Checkpoint]:
        if "://" not in self._url and not os.path.isdir(self._url):
            return
        store = open_store(self._url)
        for stat in restore.commits_of(store):
            checkpoint_id = names.parse_commit(stat.key)
            if checkpoint_id is None or stat.key in self._handled_keys:
                continue
            self._handled_keys.add(stat.key)
            # Two checkpoints of one step hold the same weights.
            if checkpoint_id.step <= self._after:
                continue
            try:
                checkpoint = restore.read(store, stat.key, self._run_id)
            except CorruptCheckpointError as error:
                gone = not exists(store, stat.key)
                why = "retention has removed it. Next: a larger checkpoint_keep_last" if gone else str(error)
                _log.info(f"the checkpoint of step {checkpoint_id.step} is not evaluated: {why}")
                continue
            self._after = checkpoint_id.step
            yield checkpoint
