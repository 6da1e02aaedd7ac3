"""Lets many processes create one object, swap one and take a lease, all at once: `races.py URL COUNT [GENERATION]`.

GENERATION is the one that is swapped; without it, there is none yet. Prints the number, the won objects and the epoch of each.
"""

import json
import os
import sys

import sdk.storage.gcs.auth  # noqa: F401  imported before the forks
from sdk.checkpoint import opening
from sdk.clock import SystemClock
from sdk.errors import AlreadyExistsError, ConflictError
from sdk.storage.registry import open_store

URL, COUNT, GENERATION = sys.argv[1], int(sys.argv[2]), (*sys.argv[3:], None)[0]


def won(call):
    try:
        call()
    except (AlreadyExistsError, ConflictError):
        return False
    return True


def race(number):
    store, data = open_store(URL), [b"%d" % number]
    os.read(go, 1)
    created = won(lambda: store.put_new("commits/x", data))
    swapped = won(lambda: store.swap("lease", data, expected=GENERATION))
    return [number, created, swapped, opening.take(store, f"racer {number}", SystemClock()).epoch]


go, start = os.pipe()
for number in range(COUNT):
    if not os.fork():
        os.close(start)
        os.write(1, (json.dumps(race(number)) + "\n").encode())
        os._exit(0)
os.close(start)
for _ in range(COUNT):
    os.wait()
