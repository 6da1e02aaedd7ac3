"""Vertex AI on this machine: a plan, a submit, lists of jobs, and what the emulator takes for many of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median as middle
from typing import Any

import sdk
from sdk.testing.vertex import Cloud

from .measure import Cost, command, median, pairs

TITLE = "Vertex AI and its emulator"
_LISTED, _QUEUED, _CLIENTS = 200, 500, 50
_POLLED_S = 5.0
# Long enough for a machine that is busy; who waits longer has found a defect.
_LIMIT_S = 60.0
_IMAGE = "podlift/emulated"


def run(count: int) -> list[str]:
    """Return the section's lines."""
    with _project() as folder:
        planned = _planned(max(count, 7))
        with cloud_in(folder / "cloud") as cloud:
            submitted = _submitted(cloud, count)
            warm_s, uploads = _warm(cloud, max(count, 7))
        with cloud_in(folder / "listed") as cloud:
            listed_s = _listed(cloud, count)
        with cloud_in(folder / "queued") as cloud:
            memory_mb, answers = _polled(cloud)
        with cloud_in(folder / "started", hold=False) as cloud:
            started_s = _started(cloud, max(count, 15))
    bare, plan = planned
    rows = [
        ("`podlift plan --backend vertex`, a new process", "wall, s", middle(c.wall_s for c in plan), 0.4),
        ("the same, CPU of the process", "s", median(plan, "cpu_s"), None),
        ("bare Python, CPU", "s", median(bare, "cpu_s"), None),
        ("`podlift submit --backend vertex --detach`, a new process", "wall, s", median(submitted, "wall_s"), 0.6),
        ("the same, CPU of the process", "s", median(submitted, "cpu_s"), None),
        ("`sdk.submit` again in the same process, with all its requests", "s", warm_s, 0.15),
        (f"{_LISTED} jobs, listed by Google's client", "s", listed_s, 0.5),
        (f"peak memory for {_QUEUED} queued jobs and {_CLIENTS} polling clients", "MB", memory_mb, 150.0),
        ("from a create request to the first output of its program", "ms", started_s * 1000, None),
    ]
    lines = ["| | | median | target |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {unit} | {value:.3g} | {'-' if target is None else f'{target:g}'} |"
        for name, unit, value, target in rows
    ]
    load = os.getloadavg()[0]
    return [
        *lines,
        "",
        f"Medians of {len(plan)}, {len(submitted)}, {max(count, 7)}, {count} and {max(count, 15)}; the load average at "
        f"the end was {load:.1f}. The emulator runs on the same cores; except in the last row, its jobs are held in the queue. "
        f"Submitting the same code again uploads no bundle; its requests are {uploads}. Each of the {_CLIENTS} clients "
        f"alternately requests the list and one job, without pausing: {answers / _POLLED_S:.0f} answers a second.",
    ]


@contextmanager
def _project() -> Iterator[Path]:
    """Be in a project of one file, with a cache of its own."""
    here, before = Path.cwd(), {name: os.environ.get(name) for name in ("XDG_CACHE_HOME", "PODLIFT_EMULATOR")}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        project = Path(folder) / "project"
        project.mkdir()
        (project / "train.py").write_text("print(1)\n")
        os.chdir(project)
        try:
            yield Path(folder)
        finally:
            os.chdir(here)
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


@contextmanager
def cloud_in(folder: Path, *, hold: bool = True) -> Iterator[Cloud]:
    """Serve an empty cloud to which the SDK speaks; its jobs stay queued, or start at once."""
    with Cloud(folder, timings={"queue_s": 0.0, "provision_s": 0.0}) as cloud:
        cloud.make_bucket()
        cloud.faults(*([{"api": "vertex", "kind": "hold"}] if hold else []))
        os.environ["PODLIFT_EMULATOR"] = cloud.url
        try:
            yield cloud
        finally:
            del os.environ["PODLIFT_EMULATOR"]


def _words(verb: str) -> list[str]:
    place = ["--vertex-project", "podlift", "--vertex-bucket", "podlift-runs", "--vertex-image", _IMAGE]
    return [sys.executable, "-m", "sdk", verb, "train.py", "--backend", "vertex", *place]


def _planned(count: int) -> list[list[Cost]]:
    return pairs(count, lambda: command([sys.executable, "-c", "pass"]), lambda: command(_words("plan")))


def _submitted(cloud: Cloud, count: int) -> list[Cost]:
    return pairs(count, lambda: command([*_words("submit"), "--detach"]))[0]


def _warm(cloud: Cloud, count: int) -> tuple[float, str]:
    """Return the seconds of a later submit in this process, and the requests of the last one."""
    submit: Callable[[], Any] = lambda: sdk.submit("train.py", backend=cloud.backend())  # noqa: E731
    submit()
    seconds = []
    for _ in range(count):
        cloud.forget_requests()
        seconds.append(_timed(submit))
    asked = cloud.requests().operations
    return middle(seconds), ", ".join(f"{number} {name}" for name, number in sorted(asked.items()))


def _listed(cloud: Cloud, count: int) -> float:
    client = cloud.jobs()
    for number in range(_LISTED):
        _create(cloud, client, f"job-{number}", ["true"])

    def read() -> None:
        assert len(list(client.list_custom_jobs(parent=cloud.parent, timeout=_LIMIT_S))) == _LISTED

    read()
    return middle(_timed(read) for _ in range(count))


def _polled(cloud: Cloud) -> tuple[float, int]:
    """Return the most memory that the emulator has had, in MB, and how often it has answered the clients."""
    first = cloud.jobs()
    names = [_create(cloud, first, f"job-{number}", ["true"]).name for number in range(_QUEUED)]
    until, answers = time.monotonic() + _POLLED_S, []

    def poll(number: int) -> None:
        client, answered = cloud.jobs(), 0
        while time.monotonic() < until:
            assert client.get_custom_job(name=names[number], timeout=_LIMIT_S).name == names[number]
            next(iter(client.list_custom_jobs(parent=cloud.parent, timeout=_LIMIT_S)))
            answered += 2
        answers.append(answered)

    threads = [threading.Thread(target=poll, args=(number,)) for number in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(answers) != _CLIENTS:
        raise RuntimeError(f"Of {_CLIENTS} clients {_CLIENTS - len(answers)} got no answer.")
    return _peak_mb(cloud), sum(answers)


def _peak_mb(cloud: Cloud) -> float:
    """Return the most memory that the server's process has had."""
    port = cloud.port
    shown = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    pids = [line.split()[0] for line in shown.splitlines() if f"sdk.emulator {cloud.folder}" in line]
    peaks = [re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text()) for pid in pids]
    found = [int(peak[1]) / 1024 for peak in peaks if peak]
    if not found:
        raise RuntimeError(f"The emulator at port {port} has no process.")
    return max(found)


def _started(cloud: Cloud, count: int) -> float:
    """Return the seconds from a create request to the start of the job's program, which prints the time."""
    client, seconds = cloud.jobs(), []
    for number in range(count + 1):
        asked = time.time()
        job = _create(cloud, client, f"job-{number}", ["date", "+%s.%N"])
        seconds.append(float(_first_line(cloud, job.name)) - asked)
    # The first one learns what this system permits.
    return middle(seconds[1:])


def _first_line(cloud: Cloud, job: str) -> str:
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        found = cloud.entries(job, "workerpool0-0")
        if found:
            return str(found[0]["textPayload"])
        # Asking often would take the time that is measured.
        time.sleep(0.2)
    raise RuntimeError(f"Nothing came of {job} in {_LIMIT_S:.0f} s.")


def _create(cloud: Cloud, client: Any, name: str, words: list[str]) -> Any:
    container = {"image_uri": _IMAGE, "command": words}
    pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1, "container_spec": container}
    job = {"display_name": name, "job_spec": {"worker_pool_specs": [pool]}}
    return client.create_custom_job(parent=cloud.parent, custom_job=job, timeout=_LIMIT_S)


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
