"""Many containers of one job, without TensorFlow: their requests to the bucket, and the time until they agree."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

import sdk
from sdk.testing.vertex import Cloud

from . import vertex

TITLE = "Many containers of a job"
_AGENTS = int(os.environ.get("AGENTS", "64"))
# Uploads are rarer after the first minute of a container.
_SETTLED_S, _QUIET_S, _LIMIT_S = 70.0, 60.0, 900.0
# US dollars for one request: objects that are created and lists; reads.
_WRITE_USD, _READ_USD = 5e-6, 0.4e-6
# In lockstep, as a synchronous strategy trains: a step ends once all tasks have taken it. Each task's row counts its steps.
_PROGRAM = """
import mmap, os, pathlib, struct, time
import sdk
ctx = sdk.context()
kind, _, number = ctx.task.partition("-")
row = 0 if kind == "chief" else int(number) + 1
path = pathlib.Path(os.environ["STEPS_FOLDER"], os.environ["PODLIFT_ATTEMPT"])
counts = mmap.mmap(os.open(path, os.O_RDWR), 0)
total = len(counts) // 8
step = 0
while not ctx.should_stop():
    time.sleep(0.5)
    step += 1
    struct.pack_into("d", counts, 8 * row, step)
    while min(struct.unpack(f"{total}d", counts[:])) < step:
        time.sleep(0.1)
pathlib.Path(os.environ["STEPS_FOLDER"], f"left-{ctx.task}").write_text(str(time.time()))
"""


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """One minute of a training that says nothing."""

    requests: Counter[str]
    cpu_s: float


def run(count: int) -> list[str]:
    """Return the section's lines; `count` is not used: one round takes minutes."""
    with tempfile.TemporaryDirectory() as folder, vertex.cloud_in(Path(folder) / "cloud", hold=False) as cloud:
        formed_s, quiet, replaced_s, agreed_s = _round(cloud, Path(folder))
    writes = quiet.requests["objects.insert"] + quiet.requests["objects.list"]
    reads = quiet.requests.total() - writes
    usd = (writes * _WRITE_USD + reads * _READ_USD) * 60 / _AGENTS
    rows = [
        ("from the submit to the first step of all, s", f"{formed_s:.0f}"),
        ("requests in a quiet minute", f"{quiet.requests.total()} ({reads} reads, {writes} writes and lists)"),
        ("USD an hour for each container", f"{usd:.4f}"),
        ("CPU seconds of the machine in that minute, with the emulator and the tasks", f"{quiet.cpu_s:.0f}"),
        ("a container is preempted, until all have taken a step with its replacement, s", f"{replaced_s:.1f}"),
        ("from a cancel request until all have left after the same step, s", f"{agreed_s:.1f}"),
    ]
    return [
        f"{_AGENTS} containers on the emulator, each with an agent and a task that takes steps of half a second and imports no "
        "TensorFlow; one round, on a machine that they share.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
    ]


def _round(cloud: Cloud, folder: Path) -> tuple[float, Quiet, float, float]:
    steps = folder / "steps"
    steps.mkdir()
    for attempt in range(1, 10):
        (steps / str(attempt)).write_bytes(bytes(8 * _AGENTS))
    (folder / "train.py").write_text(_PROGRAM)
    settings = {"code_project": str(folder), "retry_infrastructure": 5, "env": {"STEPS_FOLDER": str(steps)}}
    begun = time.monotonic()
    run = sdk.submit(str(folder / "train.py"), backend=cloud.backend(), workers=_AGENTS, **settings)
    try:
        _until(lambda: min(_counts(steps, 1)) >= 1)
        formed_s = time.monotonic() - begun
        time.sleep(_SETTLED_S)
        quiet = _quiet(cloud)
        killed = time.monotonic()
        cloud.preempt(
            str(next(iter(cloud.jobs().list_custom_jobs(parent=cloud.parent))).name), f"workerpool1-{_AGENTS // 2}"
        )
        _until(lambda: min(_counts(steps, 2)) >= 1)
        replaced_s = time.monotonic() - killed
        time.sleep(_QUIET_S)
        asked = time.time()
        run.cancel(_LIMIT_S)
        run.wait(_LIMIT_S)
        agreed_s = max(float(path.read_text()) for path in steps.glob("left-*")) - asked
        if len(set(_counts(steps, 2))) != 1:
            raise RuntimeError(f"the tasks left after different steps: {sorted(set(_counts(steps, 2)))}")
        return formed_s, quiet, replaced_s, agreed_s
    finally:
        run.cancel(0)
        run.wait(_LIMIT_S)


def _quiet(cloud: Cloud) -> Quiet:
    cloud.forget_requests()
    times = psutil.cpu_times()
    time.sleep(_QUIET_S)
    now = psutil.cpu_times()
    return Quiet(requests=Counter(cloud.requests().operations), cpu_s=now.user + now.system - times.user - times.system)


def _counts(folder: Path, attempt: int) -> list[float]:
    return list(memoryview((folder / str(attempt)).read_bytes()).cast("d"))


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("the steps never came")
        time.sleep(0.1)
