"""Kills a writer of checkpoints again and again, and checks each time the restorable state.

The writer loads no framework. Its state is a function of the step, so that a restored state can be compared completely.

Usage: `python tests/programs/checkpoint_kills.py FOLDER --count 50`
"""

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
from unittest import mock

from store_faults import FaultyStore, StoreFault, kill_at

from sdk import logs
from sdk.checkpoint import catalog, names, opening, restore
from sdk.checkpoint.commit import SaveLimits
from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.names import CheckpointId
from sdk.checkpoint.opening import OpenStore, TaskInfo
from sdk.checkpoint.restore import Checkpoint
from sdk.checkpoint.saver import AsyncSaver
from sdk.clock import SystemClock
from sdk.errors import PodliftError
from sdk.job.policies import Checkpoints
from sdk.storage.gcs.store import GcsStore
from sdk.storage.posix_store import PosixStore
from sdk.storage.retry import RetryPolicy
from sdk.storage.store import Store
from sdk.testing.gcs import GcsServer

SIZES = {"dense/kernel": 90_000, "dense/bias": 3, "empty": 0, "embedding": 250_000}
OBJECT_BYTES = 64 << 10
# Made once: the first policy of a process imports its validation, which takes a killed writer longer than some saves.
_POLICY = Checkpoints(keep_last=2, best="loss", on_busy="block")
# Long enough for some saves, and short enough to hit the opening too.
LONGEST_S, GCS_LONGEST_S = 0.25, 1.5
_FIRST = names.CheckpointId(0, 0, 0)
_Opener = Callable[[], Store]
_Calm = Callable[[], AbstractContextManager[object]]
_RETRY = RetryPolicy(connect_s=2, read_s=0.3, total_s=30, first_s=30, wait_s=0.03)
_INSPECTING = RetryPolicy(connect_s=10, read_s=30, total_s=60, first_s=60)
_SOME = list(range(1, 100_000, 10))
# Everything but damage after the acknowledgement, from which nothing could be restored.
_FAULTS: list[dict[str, Any]] = [
    *({"kind": "status_before", "status": status} for status in (503, 500, 408)),
    {"kind": "status_before", "status": 429, "retry_after_s": 0},
    {"kind": "drop_before"},
    *({"kind": "status_after", "status": status} for status in (503, 502)),
    {"kind": "drop_after"},
    {"kind": "drop_after", "operation": "objects.insert"},
    {"kind": "truncate"},
    *({"kind": "stall", "seconds": 0.4, "at": at} for at in ("before", "late", "after")),
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


def state(step: int) -> dict[str, bytes]:
    return {name: random.Random(f"{name}/{step}").randbytes(size) for name, size in SIZES.items()}


def contents(step: int) -> Contents:
    arrays = tuple(Array(name, "uint8", (len(d),), lambda d=d: memoryview(d)) for name, d in state(step).items())
    return Contents(arrays, {"rng": f"the generator's state at step {step}".encode()})


def difference(checkpoint: Checkpoint) -> str | None:
    """Return how a checkpoint differs from the state of its step, or None."""
    step = checkpoint.manifest.step
    wanted = state(step)
    found = {name: bytes(array.data) for name, array in checkpoint.arrays.items()}
    wrong = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if wrong or checkpoint.blobs != {0: contents(step).blobs} or checkpoint.manifest.position != {"step": step}:
        return f"the checkpoint of step {step} has other content: {', '.join(wrong) or 'blobs or position'}"
    return None


def write(store: Store, attempt: int, acks: str, *, steps: int = 1_000_000) -> None:
    """Restore, then save every step until killed; `acks` gets a durable line for each acknowledged checkpoint."""
    clock = SystemClock()
    opened = opening.open_first(store, attempt, f"writer {os.getpid()}", clock)
    start = opened.manifest.step if opened.manifest else 0
    info = TaskInfo(run_id="writer", attempt=attempt, task="chief-0", tasks=("chief-0",))
    open_store = OpenStore(store=store, opening=opened, info=info, policy=_POLICY)
    saver = AsyncSaver(open_store, SaveLimits(object_bytes=OBJECT_BYTES))
    handle = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for step in range(start + 1, start + steps + 1):
        ticket = saver.save(contents(step), step=step, position={"step": step}, metrics={"loss": loss(step)})
        if ticket is not None:
            commit = ticket.wait()
            os.write(handle, f"{commit.epoch} {commit.step} 0\n".encode())
            os.fsync(handle)
    saver.close()
    os.close(handle)


def acked(acks: str) -> list[CheckpointId]:
    """Return the acknowledged checkpoints; a line torn by the kill does not count."""
    try:
        with open(acks, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [CheckpointId(*map(int, line.split())) for line in lines]


def promised(acks: str) -> set[CheckpointId]:
    """Return the acknowledged checkpoints that must never be removed: the last one and the best one."""
    found = acked(acks)
    return {found[-1], min(found, key=lambda one: loss(one.step))} if found else set()


def loss(step: int) -> float:
    return random.Random(step).random()


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
    report.acks = len(acked(f"{folder}/acks"))
    return report


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
                write(through(opened()), attempt, f"{folder}/acks", steps=steps)
            code = 0
        finally:
            os._exit(code)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check(folder: str, store: _Opener | None = None) -> list[str]:
    """Return the broken promises: a restored state belongs to one step, and is not older than the last acknowledged one."""
    opened = store() if store else PosixStore(f"{folder}/store")
    while True:
        before = list(opened.list(names.COMMITS))
        wrong = _check(opened, f"{folder}/acks")
        # A request of the dead writer may still arrive: then the check has not seen one state of the store.
        if not wrong or list(opened.list(names.COMMITS)) == before:
            return wrong


def _check(store: Store, acks: str) -> list[str]:
    wrong: list[str] = []
    kept = promised(acks)
    last = max(kept, default=None)
    try:
        # A kill damages nothing: a skipped checkpoint is a violation too.
        with logs.heard(wrong.append):
            found = restore.newest(store, quarantine=False)
        entries = catalog.list_checkpoints(store)
    except PodliftError as error:
        return [*wrong, str(error)]
    if found is None:
        return [*wrong, f"nothing is restored, and {last} was acknowledged"] if last else wrong
    if other := difference(found):
        wrong.append(other)
    if last and found.manifest.checkpoint_id < last:
        wrong.append(f"{found.manifest.checkpoint_id} is restored, and {last} was acknowledged")
    # A create that takes effect twice, the second time after its own removal, leaves an old commit without data.
    keys = {names.commit(one) for one in kept}
    for entry in entries:
        try:
            restore.verify(store, entry.key)
        except PodliftError as error:
            if isinstance(store, PosixStore) or entry.key in keys or entry.key > names.commit(last or _FIRST):
                wrong.append(str(error))
    return wrong


@contextmanager
def bucket(folder: str, *, seed: int = 0, faults: float = 0.0) -> Iterator[tuple[_Opener, _Calm]]:
    """Serve a bucket; yield a function that opens a store in it, and a context without faults."""
    # The writers are forks of this process, and live shorter than it takes to import a client.
    importlib.import_module("sdk.storage.gcs.auth")
    # A new seed for each writer: the same one would stop each of them at the same request.
    seeds = itertools.count(seed * 1_000_000)
    inspecting = False

    def store(place: str = "store") -> Store:
        return GcsStore(f"bucket/{place}", retry=_INSPECTING if inspecting else _RETRY)

    @contextmanager
    def calm() -> Iterator[None]:
        nonlocal inspecting
        inspecting = True
        server.faults()
        yield
        inspecting = False
        server.faults(*_rules(faults, next(seeds)))

    with GcsServer(Path(folder) / "gcs") as server, mock.patch.dict(os.environ, PODLIFT_EMULATOR=server.url):
        server.client().create_bucket("bucket")
        server.faults(*_rules(faults, next(seeds)))
        yield store, calm


def _rules(share: float, seed: int) -> list[dict[str, Any]]:
    each = 1 - (1 - share) ** (1 / len(_FAULTS))
    return [{**fault, "probability": each, "seed": seed} for fault in _FAULTS]


def kill_chain(folder: str, words: list[str], store: _Opener | None = None, calm: _Calm = nullcontext) -> KillReport:
    """Kill a writer at each named point, each the successor of the one before; "linked 7" is a moment of a write."""
    os.makedirs(folder)
    report = KillReport()
    for attempt, point in enumerate(words):
        moment, _, nth = point.partition(" ")
        at = kill_at(moment, int(nth)) if nth.isdecimal() else None
        fault = [] if at else [StoreFault.parse(point)]
        if not run_killed(folder, attempt, lambda inner: FaultyStore(inner, *fault), at=at, steps=6, store=store):  # noqa: B023
            report.violations.append(f"{point}: the writer was not killed")
        report.kills += 1
        with calm():
            report.violations += [f"{point}: {wrong}" for wrong in check(folder, store)]
    report.acks = len(acked(f"{folder}/acks"))
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["posix", "gcs"], default="posix")
    parser.add_argument("--faults", type=float, default=0.0, help="share of failing requests, for gcs")
    parser.add_argument("--chain", action="append", nargs="+", help='"kill before put_new commits/ 2" "linked 7"')
    options = parser.parse_args()
    with ExitStack() as stack:
        store: Callable[..., Store] | None = None
        calm: _Calm = nullcontext
        if options.store == "gcs":
            store, calm = stack.enter_context(bucket(options.folder, seed=options.seed, faults=options.faults))
        if options.chain:
            reports = [
                kill_chain(f"{options.folder}/{number}", words, partial(store, str(number)) if store else None, calm)
                for number, words in enumerate(options.chain)
            ]
        else:
            about = {"seed": options.seed, "longest_s": GCS_LONGEST_S if store else LONGEST_S, "store": store}
            reports = [kill_many(options.folder, options.count, calm=calm, **about)]
    for report in reports:
        summary = f"{report.kills} kills, {report.acks} acknowledged saves, {len(report.violations)} violations"
        print(summary, *report.violations, sep="\n")
    sys.exit(any(report.violations for report in reports))


if __name__ == "__main__":
    main()
