"""Saves and restores while nothing trains, in the way that SAVING_WAY names, each beside a raw write of the same bytes."""

import json
import os
import time
import zlib
from pathlib import Path

import numpy as np
from saving_model import build, data, forget_peak, memory, size, variables
from saving_ways import WAYS

FOLDER = Path(os.environ["SAVING_FOLDER"])


def main():
    model = build(float(os.environ["SAVING_MB"]))
    model.fit(data(model, 1), verbose=0)
    (FOLDER / "saved").mkdir()
    way = WAYS[os.environ["SAVING_WAY"]](model, str(FOLDER / "saved"))
    rounds = int(os.environ["SAVING_ROUNDS"])
    # The first round warms up.
    saves = [pair(model, way, number) for number in range(1, rounds + 2)][1:]
    sums = [zlib.crc32(np.asarray(v.value)) for v in variables(model)]
    restores = [restored(way, sums) for _ in range(rounds)]
    (FOLDER / "found.json").write_text(json.dumps({"saves": saves, "restores": restores, "state": size(model)}))


def pair(model, way, number):
    """Return what a raw write and a save take, each of them first in every other pair."""
    if number % 2:
        return {"raw": raw(model), **saved(way, number)}
    return {**saved(way, number), "raw": raw(model)}


def raw(model):
    """Return the seconds of a write and a sync of the state's bytes."""
    views = [memoryview(np.asarray(v.value).reshape(-1).view(np.uint8)) for v in variables(model)]
    path, started = FOLDER / "raw", time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for view in views:
            while len(view):
                view = view[file.write(view) :]
        os.fsync(file.fileno())
    taken = time.perf_counter() - started
    path.unlink()
    return taken


def saved(way, number):
    """Save once; return the seconds until the call is back, until all has its name, and until it is synced."""
    forget_peak()
    before, cpu = memory("VmRSS"), time.process_time()
    started = time.perf_counter()
    way.save(number)
    stall = time.perf_counter() - started
    way.wait()
    named = time.perf_counter() - started
    cpu = time.process_time() - cpu
    # What podlift has named is synced; asking again costs it next to nothing.
    for folder, _, names in os.walk(FOLDER / "saved"):
        for name in ["", *names]:
            sync(os.path.join(folder, name))
    synced = time.perf_counter() - started
    return {"stall": stall, "named": named, "synced": synced, "cpu": cpu, "memory": memory("VmHWM") - before}


def sync(path):
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    os.fsync(handle)
    os.close(handle)


def restored(way, sums):
    """Restore over other values and return the seconds."""
    for variable in variables(way.model):
        variable.assign(np.zeros(variable.shape, variable.dtype))
    started = time.perf_counter()
    way.restore()
    taken = time.perf_counter() - started
    if [zlib.crc32(np.asarray(v.value)) for v in variables(way.model)] != sums:
        raise SystemExit(f"{way.__doc__} did not restore what was saved")
    return taken


if __name__ == "__main__":
    main()
