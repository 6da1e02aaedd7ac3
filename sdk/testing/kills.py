"""Kills a writer of checkpoints again and again, and looks each time at what it has left.

Usage: `python -m sdk.testing.kills FOLDER --count 50`
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial

from ..checkpoint import catalog, names, restore
from ..errors import PodliftError
from ..storage.posix_store import PosixStore
from ..storage.store import Store
from . import writer
from .faults import FaultyStore, StoreFault, kill_at

# Long enough for some saves, and short enough to hit the opening too.
_LONGEST_S = 0.25
_FIRST = names.CheckpointId(0, 0, 0)
_Calm = Callable[[], AbstractContextManager[object]]
# In words, what stands before the store, and what is called at a moment of a write.
_Named = tuple[str, Callable[[Store], Store], Callable[[str], None] | None]


@dataclass
class KillReport:
    """What was seen.

    Attributes:
        kills: how many processes were killed.
        acks: how many checkpoints were acknowledged in all.
        violations: a sentence for each promise that was broken.
    """

    kills: int = 0
    acks: int = 0
    violations: list[str] = field(default_factory=list)


def kill_many(
    folder: str,
    count: int,
    *,
    seed: int = 0,
    longest_s: float = _LONGEST_S,
    store: Callable[[], Store] | None = None,
    calm: _Calm = nullcontext,
) -> KillReport:
    """Kill a writer `count` times at random moments, each the successor of the one before.

    Args:
        folder: gets the acknowledgements, and the store if it is none of another place.
        count: how often.
        seed: of the moments.
        longest_s: the longest life of a writer.
        store: opens the store.
        calm: entered while it is looked at what a kill has left.
    """
    chance = random.Random(seed)  # noqa: S311
    report = KillReport()
    for attempt in range(count):
        life_s = chance.uniform(0, longest_s)
        run_killed(folder, attempt, lambda inner: inner, after_s=life_s, store=store)
        report.kills += 1
        with calm():
            found = look(folder, store)
        report.violations += [f"kill {attempt}, after {life_s:.3f} s: {wrong}" for wrong in found]
    report.acks = _count(f"{folder}/acks")
    return report


def run_killed(
    folder: str,
    attempt: int,
    through: Callable[[Store], Store],
    *,
    after_s: float | None = None,
    at: Callable[[str], None] | None = None,
    steps: int = 1_000_000,
    store: Callable[[], Store] | None = None,
) -> bool:
    """Write in a process of its own; return whether it was killed.

    The process is forked: the caller must have no other threads.

    Args:
        folder: holds the store and the acknowledgements.
        attempt: the attempt's number.
        through: puts faults in front of the store.
        after_s: kill it after that many seconds; None leaves that to the faults.
        at: as of PosixStore.
        steps: how many steps it writes unless it is killed.
        store: opens the store.
    """
    opened = store or (lambda: PosixStore(f"{folder}/store", at=at))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(f"{folder}/log", "a") as log:
                writer.write(
                    through(opened()),
                    attempt,
                    f"{folder}/acks",
                    steps=steps,
                    log=lambda line: print(line, file=log, flush=True),
                )
            code = 0
        finally:
            os._exit(code)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def look(folder: str, store: Callable[[], Store] | None = None) -> list[str]:
    """Return which promises are broken: what is restored is wholly one step, not older than the last acknowledged one."""
    opened = store() if store else PosixStore(f"{folder}/store")
    while True:
        before = list(opened.list(names.COMMITS))
        wrong = _look(opened, f"{folder}/acks")
        # A request of the writer may still be on its way when it is dead: then what was seen is no state of the store.
        if not wrong or list(opened.list(names.COMMITS)) == before:
            return wrong


def _look(store: Store, acks: str) -> list[str]:
    wrong: list[str] = []
    promised = writer.promised(acks)
    acked = max(promised, default=None)
    try:
        # A kill leaves nothing damaged: that anything is skipped is a violation too.
        found = restore.newest(store, wrong.append, quarantine=False)
        entries = catalog.list_checkpoints(store)
    except PodliftError as error:
        return [*wrong, str(error)]
    if found is None:
        return [*wrong, f"nothing is restored, and {acked} was acknowledged"] if acked else wrong
    if difference := writer.difference(found):
        wrong.append(difference)
    if acked and found.manifest.checkpoint_id < acked:
        wrong.append(f"{found.manifest.checkpoint_id} is restored, and {acked} was acknowledged")
    # A create that lands twice, the second time behind its own removal, is left as a commit without data: an old one.
    keys = {names.commit(checkpoint_id) for checkpoint_id in promised}
    for entry in entries:
        try:
            restore.verify(store, entry.key)
        except PodliftError as error:
            if isinstance(store, PosixStore) or entry.key in keys or entry.key > names.commit(acked or _FIRST):
                wrong.append(str(error))
    return wrong


def _behind(fault: StoreFault | None, store: Store) -> Store:
    return FaultyStore(store, fault) if fault else store


def _count(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


def _kill_named(folder: str, named: list[_Named], store: Callable[[], Store] | None, calm: _Calm) -> KillReport:
    report = KillReport()
    for attempt, (words, through, at) in enumerate(named):
        if not run_killed(folder, attempt, through, at=at, steps=6, store=store):
            report.violations.append(f"{words}: no process was killed")
        report.kills += 1
        with calm():
            report.violations += [f"{words}: {wrong}" for wrong in look(folder, store)]
    report.acks = _count(f"{folder}/acks")
    return report


def main() -> None:
    """Kill at random moments, or once at a named one, and print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m sdk.testing.kills")
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["posix", "gcs"], default="posix")
    parser.add_argument("--faults", type=float, default=0.0, help="the share of requests that go wrong, of gcs")
    parser.add_argument("--fault", action="append", default=[], help='such as "kill before put_new commits/ 2"')
    parser.add_argument("--moment", action="append", default=[], help='such as "linked 7"')
    options = parser.parse_args()
    named: list[_Named] = [(words, partial(_behind, StoreFault.parse(words)), None) for words in options.fault]
    for words in options.moment:
        moment, _, nth = words.partition(" ")
        named.append((words, partial(_behind, None), kill_at(moment, int(nth))))
    with ExitStack() as stack:
        store: Callable[[], Store] | None = None
        calm: _Calm = nullcontext
        longest_s = _LONGEST_S
        if options.store == "gcs":
            from . import gcs_kills

            store, calm = stack.enter_context(
                gcs_kills.bucket(options.folder, seed=options.seed, faults=options.faults)
            )
            longest_s = gcs_kills.LONGEST_S
        if named:
            report = _kill_named(options.folder, named, store, calm)
        else:
            given = {"seed": options.seed, "longest_s": longest_s, "store": store, "calm": calm}
            report = kill_many(options.folder, options.count, **given)
    summary = f"{report.kills} kills, {report.acks} acknowledged saves, {len(report.violations)} violations"
    print(summary, *report.violations, sep="\n")  # noqa: T201
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
