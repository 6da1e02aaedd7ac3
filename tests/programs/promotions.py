"""Promotes versions in separate processes: `ROOT race EXPECT` with 8 at once, `ROOT kill OP WHEN VERSION` with one.

EXPECT is the champion that each racer expects.
"""

import json
import os
import signal
import sys

from store_faults import FaultyStore, StoreFault

from sdk.errors import InputError
from sdk.job.layout import RootPaths
from sdk.model_registry.models import Model
from sdk.storage.posix_store import PosixStore
from sdk.storage.registry import open_store
from sdk.storage.store import Store

RACERS = 8


def race(root: str, expect: str) -> None:
    """Print which versions have won."""
    start, go = os.pipe()
    read, write = os.pipe()
    children = []
    for version in range(2, RACERS + 2):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(start, 1)  # returns when all have been started
            os.write(write, f"{version} {int(_promoted(root, version, int(expect)))}\n".encode())
            os._exit(0)
        children.append(child)
    os.close(go)
    os.close(write)
    with os.fdopen(read) as answers:
        said = dict(line.split() for line in answers)
    for child in children:
        os.waitpid(child, 0)
    assert len(said) == RACERS, said
    print(json.dumps(sorted(int(version) for version, won in said.items() if won == "1")))


def _promoted(root: str, version: int, expect: int) -> bool:
    try:
        Model(root, "digits").promote(version, expect=expect)
    except InputError as error:
        assert "is not the expected one" in str(error), error
        return False
    return True


def kill(root: str, op: str, when: str, version: int) -> None:
    """Promote, and kill this process at a step: before or after an operation of the store, or at a moment of a write."""

    def at(moment: str) -> None:
        if moment == when:
            os.kill(os.getpid(), signal.SIGKILL)

    where = RootPaths(root).models
    store: Store = PosixStore(where, at=at) if op == "moment" else open_store(where)
    if op != "moment":
        store = FaultyStore(store, StoreFault(op, "champion", "kill", when))
    Model(root, "digits", store=store).promote(version)


if __name__ == "__main__":
    root, what, *words = sys.argv[1:]
    if what == "race":
        race(root, *words)
    else:
        kill(root, words[0], words[1], int(words[2]))
