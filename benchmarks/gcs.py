"""Checkpoints in a bucket beside Google's transfer manager, on one emulator: throughput, and what a small one takes."""

from __future__ import annotations

import io
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from google.cloud.storage import transfer_manager

from sdk.checkpoint import opening, restore
from sdk.checkpoint.contents import OBJECT_BYTES, Array, Contents
from sdk.checkpoint.opening import OpenStore, TaskInfo
from sdk.checkpoint.saver import AsyncSaver
from sdk.clock import SystemClock
from sdk.job.policies import Checkpoints
from sdk.storage.registry import open_store
from sdk.storage.store import Store
from sdk.testing.gcs import GcsServer

TITLE = "Checkpoints in a bucket"
_LATENCY_S = 0.05
_SMALL_BYTES, _SMALL_SAVES = 4096, 9
_WAYS = (
    "save",
    "upload_many, threads",
    "upload_many, processes",
    "restore",
    "download_many, threads",
    "download_many, processes",
)


def run(count: int, *, size_mb: float = 1000) -> list[str]:
    """Return the section's lines.

    Args:
        count: rounds; each does everything once.
        size_mb: the state that is saved and restored.
    """
    data = memoryview(bytearray(random.randbytes(1 << 20) * int(size_mb)))
    rounds: list[dict[str, float]] = []
    with emulator() as gcs:
        seconds, requests = _small(gcs)
        for number in range(count):
            found = {}
            # Each way is the first one in some round.
            for turn in (number, number + 1, number + 2):
                found.update((_ours, _threads, _processes)[turn % 3](gcs, data))
            rounds.append(found)
    rates = {way: [size_mb / each[way] for each in rounds] for way in _WAYS}
    lines = [f"| {size_mb:.0f} MB | MB/s, median | podlift relative to it, by pair |", "|---|---|---|"]
    for ours, theirs in (("save", _WAYS[1:3]), ("restore", _WAYS[4:])):
        lines.append(f"| podlift, {ours} | {median(rates[ours]):.0f} | |")
        for way in theirs:
            ratio = median(a / b for a, b in zip(rates[ours], rates[way], strict=True))
            lines.append(f"| transfer manager, {way} | {median(rates[way]):.0f} | {ratio:.2f} |")
    told = ", ".join(f"{number} {name.removeprefix('objects.')}" for name, number in sorted(requests.items()))
    return [
        *lines,
        "",
        f"A checkpoint of {_SMALL_BYTES} bytes with a latency of {_LATENCY_S * 1000:.0f} ms per request is acknowledged after "
        f"{median(seconds):.2f} s (median of {len(seconds)}; slowest {max(seconds):.2f} s). Requests up to that point: {told}.",
        "",
        f"Rounds: {count}. The emulator runs on the same cores. podlift's figures are for whole checkpoints, verified in "
        "both directions, with lease and commit; the transfer manager moves objects of the same sizes with its default of 8 "
        "workers.",
    ]


@contextmanager
def emulator() -> Iterator[GcsServer]:
    """Serve an empty bucket called "bucket" that `open_store` finds."""
    with tempfile.TemporaryDirectory() as folder, GcsServer(Path(folder)) as gcs:
        os.environ["PODLIFT_EMULATOR"] = gcs.url
        try:
            gcs.client().create_bucket("bucket")
            yield gcs
        finally:
            del os.environ["PODLIFT_EMULATOR"]


def _saver(store: Store) -> AsyncSaver:
    clock = SystemClock()
    found = opening.open_first(store, 0, "benchmark", clock)
    info = TaskInfo(run_id="", attempt=0, task="chief-0", tasks=("chief-0",))
    policy = Checkpoints(keep_last=3, on_busy="block")
    return AsyncSaver(OpenStore(store=store, opening=found, info=info, policy=policy))


def _contents(data: memoryview) -> Contents:
    return Contents((Array("weights", "uint8", (len(data),), lambda: data),), {"rng": b"x" * 40})


def _small(gcs: GcsServer) -> tuple[list[float], Counter[str]]:
    """Return the seconds until each of some small checkpoints was acknowledged, and the requests of the last one."""
    saver, seconds = _saver(open_store("gs://bucket/small")), []
    gcs.faults({"kind": "latency", "seconds": _LATENCY_S})
    for step in range(1, _SMALL_SAVES + 1):
        gcs.forget_requests()
        started = time.perf_counter()
        ticket = saver.save(_contents(memoryview(random.randbytes(_SMALL_BYTES))), step=step)
        assert ticket is not None
        ticket.wait()
        seconds.append(time.perf_counter() - started)
        saver.wait()
        asked = [each["operation"] for each in gcs.requests().recent]
    saver.close()
    gcs.faults()
    # What comes behind the commit is no part of it: pins are looked at, and the oldest checkpoint goes.
    until = len(asked) - asked[::-1].index("objects.insert")
    return seconds, Counter(asked[:until])


def _ours(gcs: GcsServer, data: memoryview) -> dict[str, float]:
    store = open_store("gs://bucket/large")
    saver = _saver(store)
    started = time.perf_counter()
    ticket = saver.save(_contents(data), step=1)
    assert ticket is not None
    commit = ticket.wait()
    saved = time.perf_counter()
    checkpoint = restore.read(store, commit.key)
    restored = time.perf_counter()
    assert checkpoint.arrays["weights"].data == data
    saver.close()
    _clear(gcs)
    return {"save": saved - started, "restore": restored - saved}


def _threads(gcs: GcsServer, data: memoryview) -> dict[str, float]:
    blobs = [gcs.client().bucket("bucket").blob(f"tm/{number}") for number in range(-(-len(data) // OBJECT_BYTES))]
    options = {"worker_type": transfer_manager.THREAD, "raise_exception": True}
    pieces = [io.BytesIO(data[i * OBJECT_BYTES : (i + 1) * OBJECT_BYTES]) for i in range(len(blobs))]
    up_s = _timed(lambda: transfer_manager.upload_many(list(zip(pieces, blobs, strict=True)), **options))
    targets = [io.BytesIO() for _ in blobs]
    down_s = _timed(lambda: transfer_manager.download_many(list(zip(blobs, targets, strict=True)), **options))
    _clear(gcs)
    return {_WAYS[1]: up_s, _WAYS[4]: down_s}


def _processes(gcs: GcsServer, data: memoryview) -> dict[str, float]:
    bucket = gcs.client().bucket("bucket")
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{number:04d}" for number in range(-(-len(data) // OBJECT_BYTES))]
        for number, name in enumerate(names):
            Path(folder, name).write_bytes(data[number * OBJECT_BYTES : (number + 1) * OBJECT_BYTES])
        up_s = _timed(
            lambda: transfer_manager.upload_many_from_filenames(
                bucket, names, source_directory=folder, raise_exception=True
            )
        )
        down_s = _timed(
            lambda: transfer_manager.download_many_to_path(
                bucket, names, destination_directory=f"{folder}/back", raise_exception=True
            )
        )
    _clear(gcs)
    return {_WAYS[2]: up_s, _WAYS[5]: down_s}


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _clear(gcs: GcsServer) -> None:
    for blob in gcs.client().list_blobs("bucket"):
        blob.delete()
