"""10,000 runs in one root: a status, the newest 20, all of them; and what damage and old runs cost."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sdk
from sdk.clock import SystemClock
from sdk.job.layout import RootPaths, RunPaths
from sdk.job.plan import Plan
from sdk.records import summaries
from sdk.records.recorder import Recorder
from sdk.storage import posix

from . import measure
from .regressions import Section

TITLE = "Listing of 10,000 runs"
_RUNS = 10_000
_FRAMES = '  File "train.py", line 1, in train\n    step()\n' * 20
_FAILURE = {"task": "chief-0", "message": "chief-0 failed: ValueError: x", "traceback": _FRAMES, "log": "/somewhere"}


def run(count: int) -> Section:
    """Return the section."""
    with tempfile.TemporaryDirectory() as folder, _inside(f"{folder}/project"):
        root = RootPaths(f"{folder}/root")
        Path("train.py").write_text("print(1)")
        plan = sdk.plan("train.py", workers=2, root=root.root)
        for number in range(_RUNS):
            _ended(root.run(_id(number)), plan, failed=number % 5 == 0)
        rows = [
            ("status of an ended run", 20.0, _ms(count, sdk.attach(root.run(_id(1)).url).status)),
            ("attach and status", 20.0, _ms(count, lambda: sdk.attach(root.run(_id(1)).url).status())),
            ("`sdk.runs(limit=20)`", 300.0, _ms(count, lambda: _listed(root, 20))),
            ("`sdk.runs(limit=None)`", 300.0, _ms(count, lambda: _listed(root, None))),
            ("every summary read and parsed, nothing else", None, _ms(count, lambda: _parsed(root))),
        ]
        ratios = {"all runs, relative to reading and parsing their summaries": rows[-2][2] / rows[-1][2]}
        _lose_summaries(root)
        rows.append(("the same, no run has a summary", None, _ms(1, lambda: _listed(root, None))))
        _lose_plans(root)
        rows.append(("the same, every run damaged", None, _ms(1, lambda: _listed(root, None))))
        large = _large(RootPaths(f"{folder}/other").run("large-aaaaaa"), plan)
        rows.append(("status of an active run, 32 tasks, 10 attempts", 20.0, _ms(count, large)))
    lines = ["| | ms | target, ms |", "|---|---|---|"]
    lines += [
        f"| {name} | {taken:.1f} | {'-' if target is None else f'{target:.0f}'} |" for name, target, taken in rows
    ]
    setting = "Each run has 2 tasks and 13 records, every fifth run failed, and all files were in the page cache."
    return Section([*lines, "", f"Medians of {count}. {setting}"], ratios)


def _ms(count: int, work: Callable[[], object]) -> float:
    return measure.seconds(count, work) * 1000


def _listed(root: RootPaths, limit: int | None) -> None:
    assert len(sdk.runs(root=root.root, limit=limit)) == (limit or _RUNS)


def _parsed(root: RootPaths) -> None:
    assert all(json.loads(Path(root.run(_id(number)).summary).read_bytes()) for number in range(_RUNS))


def _id(number: int) -> str:
    return "digits-" + "".join(chr(ord("a") + number // 26**place % 26) for place in range(6))


def _ended(paths: RunPaths, plan: Plan, *, failed: bool) -> None:
    """Make the run directory as `submit`, the supervisor and two tasks leave it."""
    _write(paths.plan, json.loads(plan.to_json()) | {"run_id": paths.run_id})
    client, supervisor, attempt = (Recorder(paths, *who, SystemClock()) for who in _sources("supervisor"))
    client.record("submitted")
    Recorder(paths, "launcher", 0, SystemClock()).record("launched", supervisor="boot:1:1")
    supervisor.record("started", supervisor="boot:1:1")
    attempt.record("attempt_started", addresses={}, pids={})
    for task in plan.tasks:
        own = Recorder(paths, task, 1, SystemClock())
        own.record("entry")
        own.record("first_step")
        own.record("done")
        attempt.record("exited", task=task, code=0)
    attempt.record("stopping", state="SUCCEEDED", reason="done")
    verdict = ("FAILED", "user_error", _FAILURE) if failed else ("SUCCEEDED", "done", None)
    supervisor.record("final", **dict(zip(("state", "reason", "failure"), verdict, strict=True)))
    summaries.write(paths)


def _sources(name: str) -> list[tuple[str, int]]:
    return [("client", 0), (name, 0), (name, 1)]


def _large(paths: RunPaths, plan: Plan) -> Callable[[], object]:
    _write(paths.plan, json.loads(plan.to_json()) | {"run_id": paths.run_id})
    Recorder(paths, "client", 0, SystemClock()).record("submitted")
    for attempt in range(1, 11):
        supervisor = Recorder(paths, "supervisor", attempt, SystemClock())
        supervisor.record("attempt_started", addresses={}, pids={})
        for number in range(32):
            own = Recorder(paths, f"worker-{number}", attempt, SystemClock())
            own.record("entry")
            own.record("first_step")
            supervisor.record("exited", task=f"worker-{number}", code=1)
    return sdk.attach(paths.url).status


def _lose_summaries(root: RootPaths) -> None:
    for number in range(_RUNS):
        os.unlink(root.run(_id(number)).summary)


def _lose_plans(root: RootPaths) -> None:
    for number in range(_RUNS):
        os.unlink(root.run(_id(number)).plan)


def _write(path: str, data: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(data))


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Go to a new folder, and skip what only a power cut makes worth its time."""
    here, durable = Path.cwd(), posix.os.fsync
    Path(folder).mkdir()
    os.chdir(folder)
    posix.os.fsync = lambda handle: None
    try:
        yield
    finally:
        posix.os.fsync = durable
        os.chdir(here)
        shutil.rmtree(folder)
