"""Kills a writer of checkpoints in a bucket again and again, while a share of all its requests goes wrong."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ..storage.gcs.store import GcsStore
from ..storage.retry import RetryPolicy
from ..storage.store import Store
from .gcs import GcsServer
from .kills import KillReport, kill_many

Opened = Callable[[], Store]
Calm = Callable[[], AbstractContextManager[None]]

LONGEST_S = 1.5
_PATIENCE = RetryPolicy(connect_s=2, read_s=0.3, total_s=30, first_s=30, wait_s=0.03)
_LOOKING = RetryPolicy(connect_s=10, read_s=30, total_s=60, first_s=60)
_SOME = list(range(1, 100_000, 10))
# Everything but bytes that change after they were acknowledged: those cannot be restored.
_KINDS: list[dict[str, Any]] = [
    {"kind": "status_before", "status": 503},
    {"kind": "status_before", "status": 500},
    {"kind": "status_before", "status": 408},
    {"kind": "status_before", "status": 429, "retry_after_s": 0},
    {"kind": "drop_before"},
    {"kind": "status_after", "status": 503},
    {"kind": "status_after", "status": 502},
    {"kind": "drop_after"},
    {"kind": "drop_after", "operation": "objects.insert"},
    {"kind": "truncate"},
    {"kind": "stall", "seconds": 0.4, "at": "before"},
    {"kind": "stall", "seconds": 0.4, "at": "late"},
    {"kind": "stall", "seconds": 0.4, "at": "after"},
    {"kind": "drip", "bytes_per_s": 1 << 20},
    {"kind": "latency", "seconds": 0.05},
    {"kind": "corrupt", "operation": "objects.download", "at_byte": 11},
    {"kind": "corrupt", "operation": "objects.insert", "at": "wire", "at_byte": 11},
    # The save fails for good, and so does its writer: seldom enough to let others live.
    {"kind": "corrupt", "operation": "objects.insert", "object": "/data/", "at": "stored", "at_byte": 11, "nth": _SOME},
]


def kill_many_on_gcs(folder: str, count: int, *, seed: int = 0, faults: float = 0.2) -> KillReport:
    """Kill a writer `count` times at random moments; it writes to an emulator of its own.

    Args:
        folder: gets the emulator's data and the acknowledgements.
        count: how often.
        seed: of the moments and of the faults.
        faults: the share of the requests that go wrong.
    """
    with bucket(folder, seed=seed, faults=faults) as (store, calm):
        return kill_many(folder, count, seed=seed, longest_s=LONGEST_S, store=store, calm=calm)


@contextmanager
def bucket(folder: str, *, seed: int = 0, faults: float = 0.0) -> Iterator[tuple[Opened, Calm]]:
    """Serve a bucket; yield what opens a store in it, and what keeps faults away from the look at it.

    Args:
        folder: gets the emulator's data.
        seed: of the faults.
        faults: the share of the requests that go wrong.
    """
    # The writers are forks of this process, which live shorter than it takes to load a client.
    importlib.import_module("..storage.gcs.auth", __package__)
    # Others for each writer: the same ones would stop each of them in the same place.
    seeds = itertools.count(seed * 1_000_000)
    looking = False

    def store() -> Store:
        return GcsStore("bucket/store", retry=_LOOKING if looking else _PATIENCE)

    @contextmanager
    def calm() -> Iterator[None]:
        nonlocal looking
        looking = True
        server.faults()
        yield
        looking = False
        server.faults(*_rules(faults, next(seeds)))

    with GcsServer(Path(folder) / "gcs") as server, _emulator(server.url):
        server.client().create_bucket("bucket")
        server.faults(*_rules(faults, next(seeds)))
        yield store, calm


def _rules(share: float, seed: int) -> list[dict[str, Any]]:
    each = 1 - (1 - share) ** (1 / len(_KINDS))
    return [{**kind, "probability": each, "seed": seed} for kind in _KINDS]


@contextmanager
def _emulator(url: str) -> Iterator[None]:
    before = os.environ.get("PODLIFT_EMULATOR")
    os.environ["PODLIFT_EMULATOR"] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ["PODLIFT_EMULATOR"]
        else:
            os.environ["PODLIFT_EMULATOR"] = before
