"""Kills a writer of checkpoints again and again, and checks each time what can be restored.

Usage: `python tests/programs/checkpoint_kills.py FOLDER --count 50`
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import checkpoint_writer as writer
from store_faults import FaultyStore, StoreFault, kill_at

from sdk import logs
from sdk.checkpoint import catalog, names, restore
from sdk.errors import PodliftError
from sdk.storage.gcs.store import GcsStore
from sdk.storage.posix_store import PosixStore
from sdk.storage.retry import RetryPolicy
from sdk.storage.store import Store
from sdk.testing.gcs import GcsServer

# Long enough for some saves, and short enough to hit the opening too.
LONGEST_S, GCS_LONGEST_S = 0.25, 1.5
_FIRST = names.CheckpointId(0, 0, 0)
_Opener = Callable[[], Store]
_Calm = Callable[[], AbstractContextManager[object]]
# A description, what wraps the store, and the callback of a PosixStore.
_Named = tuple[str, Callable[[Store], Store], Callable[[str], None] | None]
_RETRY = RetryPolicy(connect_s=2, read_s=0.3, total_s=30, first_s=30, wait_s=0.03)
_INSPECTING = RetryPolicy(connect_s=10, read_s=30, total_s=60, first_s=60)
_SOME = list(range(1, 100_000, 10))
# Everything but damage after the acknowledgement, from which nothing could be restored.
_FAULTS: list[dict[str, Any]] = [
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
    # Ends the writer with a failed save: rare, so that some writers survive it.
    {"kind": "corrupt", "operation": "objects.insert", "object": "/data/", "at": "stored", "at_byte": 11, "nth": _SOME},
]


@dataclass
class KillReport:
    """The numbers of killed processes and acknowledged checkpoints, and a sentence for each broken promise."""

    kills: int = 0
    acks: int = 0
    violations: list[str] = field(default_factory=list)


def kill_many(
    folder: str,
    count: int,
    *,
    seed: int = 0,
    longest_s: float = LONGEST_S,
    store: _Opener | None = None,
    calm: _Calm = nullcontext,
) -> KillReport:
    """Kill `count` writers at random times, each the successor of the one before; `calm` is entered for each check."""
    chance = random.Random(seed)
    report = KillReport()
    for attempt in range(count):
        life_s = chance.uniform(0, longest_s)
        run_killed(folder, attempt, lambda inner: inner, after_s=life_s, store=store)
        report.kills += 1
        with calm():
            found = check(folder, store)
        report.violations += [f"kill {attempt}, after {life_s:.3f} s: {wrong}" for wrong in found]
    report.acks = _count(f"{folder}/acks")
    return report


def kill_many_on_gcs(folder: str, count: int, *, seed: int = 0, faults: float = 0.2) -> KillReport:
    """Kill writers to an emulated bucket, while this share of all requests fails."""
    with bucket(folder, seed=seed, faults=faults) as (store, calm):
        return kill_many(folder, count, seed=seed, longest_s=GCS_LONGEST_S, store=store, calm=calm)


def run_killed(
    folder: str,
    attempt: int,
    through: Callable[[Store], Store],
    *,
    after_s: float | None = None,
    at: Callable[[str], None] | None = None,
    steps: int = 1_000_000,
    store: _Opener | None = None,
) -> bool:
    """Write in a forked process, killed after `after_s` or by the faults of `through`; return whether it was killed."""
    opened = store or (lambda: PosixStore(f"{folder}/store", at=at))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(f"{folder}/log", "a") as log, logs.heard(lambda line: print(line, file=log, flush=True)):
                writer.write(through(opened()), attempt, f"{folder}/acks", steps=steps)
            code = 0
        finally:
            os._exit(code)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check(folder: str, store: _Opener | None = None) -> list[str]:
    """Return the broken promises: a restored state is that of one step, and not older than the last acknowledged one."""
    opened = store() if store else PosixStore(f"{folder}/store")
    while True:
        before = list(opened.list(names.COMMITS))
        wrong = _check(opened, f"{folder}/acks")
        # A request of the dead writer may still arrive: then the check has not seen one state of the store.
        if not wrong or list(opened.list(names.COMMITS)) == before:
            return wrong


def _check(store: Store, acks: str) -> list[str]:
    wrong: list[str] = []
    promised = writer.promised(acks)
    acked = max(promised, default=None)
    try:
        # A kill damages nothing: a skipped checkpoint is a violation too.
        with logs.heard(wrong.append):
            found = restore.newest(store, quarantine=False)
        entries = catalog.list_checkpoints(store)
    except PodliftError as error:
        return [*wrong, str(error)]
    if found is None:
        return [*wrong, f"nothing is restored, and {acked} was acknowledged"] if acked else wrong
    if difference := writer.difference(found):
        wrong.append(difference)
    if acked and found.manifest.checkpoint_id < acked:
        wrong.append(f"{found.manifest.checkpoint_id} is restored, and {acked} was acknowledged")
    # A create that takes effect twice, the second time after its own removal, leaves an old commit without data.
    keys = {names.commit(one) for one in promised}
    for entry in entries:
        try:
            restore.verify(store, entry.key)
        except PodliftError as error:
            if isinstance(store, PosixStore) or entry.key in keys or entry.key > names.commit(acked or _FIRST):
                wrong.append(str(error))
    return wrong


@contextmanager
def bucket(folder: str, *, seed: int = 0, faults: float = 0.0) -> Iterator[tuple[_Opener, _Calm]]:
    """Serve a bucket; yield what opens a store in it, and a context without faults."""
    # The writers are forks of this process, and live shorter than it takes to import a client.
    importlib.import_module("sdk.storage.gcs.auth")
    # A new seed for each writer: the same one would stop each of them at the same request.
    seeds = itertools.count(seed * 1_000_000)
    inspecting = False

    def store() -> Store:
        return GcsStore("bucket/store", retry=_INSPECTING if inspecting else _RETRY)

    @contextmanager
    def calm() -> Iterator[None]:
        nonlocal inspecting
        inspecting = True
        server.faults()
        yield
        inspecting = False
        server.faults(*_rules(faults, next(seeds)))

    with GcsServer(Path(folder) / "gcs") as server, _emulated(server.url):
        server.client().create_bucket("bucket")
        server.faults(*_rules(faults, next(seeds)))
        yield store, calm


def _rules(share: float, seed: int) -> list[dict[str, Any]]:
    each = 1 - (1 - share) ** (1 / len(_FAULTS))
    return [{**fault, "probability": each, "seed": seed} for fault in _FAULTS]


@contextmanager
def _emulated(url: str) -> Iterator[None]:
    before = os.environ.get("PODLIFT_EMULATOR")
    os.environ["PODLIFT_EMULATOR"] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ["PODLIFT_EMULATOR"]
        else:
            os.environ["PODLIFT_EMULATOR"] = before


def _through(fault: StoreFault | None, store: Store) -> Store:
    return FaultyStore(store, fault) if fault else store


def _count(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


def _kill_named(folder: str, named: list[_Named], store: _Opener | None, calm: _Calm) -> KillReport:
    report = KillReport()
    for attempt, (words, through, at) in enumerate(named):
        if not run_killed(folder, attempt, through, at=at, steps=6, store=store):
            report.violations.append(f"{words}: the writer was not killed")
        report.kills += 1
        with calm():
            report.violations += [f"{words}: {wrong}" for wrong in check(folder, store)]
    report.acks = _count(f"{folder}/acks")
    return report


def main() -> None:
    """Kill at random times, or once at each named point, and print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["posix", "gcs"], default="posix")
    parser.add_argument("--faults", type=float, default=0.0, help="share of failing requests, for gcs")
    parser.add_argument("--fault", action="append", default=[], help='such as "kill before put_new commits/ 2"')
    parser.add_argument("--moment", action="append", default=[], help='such as "linked 7"')
    options = parser.parse_args()
    named: list[_Named] = [(words, partial(_through, StoreFault.parse(words)), None) for words in options.fault]
    for words in options.moment:
        moment, _, nth = words.partition(" ")
        named.append((words, partial(_through, None), kill_at(moment, int(nth))))
    with ExitStack() as stack:
        store: _Opener | None = None
        calm: _Calm = nullcontext
        longest_s = LONGEST_S
        if options.store == "gcs":
            store, calm = stack.enter_context(bucket(options.folder, seed=options.seed, faults=options.faults))
            longest_s = GCS_LONGEST_S
        if named:
            report = _kill_named(options.folder, named, store, calm)
        else:
            given = {"seed": options.seed, "longest_s": longest_s, "store": store, "calm": calm}
            report = kill_many(options.folder, options.count, **given)
    summary = f"{report.kills} kills, {report.acks} acknowledged saves, {len(report.violations)} violations"
    print(summary, *report.violations, sep="\n")
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
