"""A run with GPUs that are idle for too long ends, if that is asked for: here, in the plan, and in containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvml import one_gpu
from support import LIMIT_S, FakeClock, input_error

import sdk
from sdk.backends.local.backend import LocalBackend
from sdk.cli import app
from sdk.process import machine
from sdk.process.machine import UNREADABLE, IdleWatch
from sdk.records.machine import GpuUse
from sdk.records.recorder import read_events

pytestmark = pytest.mark.process

VERTEX = sdk.Vertex(project="my-project", bucket="mine")
REAL: dict[str, Any] = {"accelerator": "t4", "backend": sdk.Local(gpus="real"), "limit_idle_accelerator": 1}


class Watched:
    """A watch of GPUs by their number, each with its use; None for one that cannot be read."""

    def __init__(self, uses: dict[str, float | None], limit_s: float | None = 60.0) -> None:
        self.uses, self.clock, self.findings = uses, FakeClock(), list[str]()
        self.tasks: list[str | None] = ["0", "1"]
        recorder: Any = SimpleNamespace(record=lambda kind, text: self.findings.append(text))
        gpus: Any = SimpleNamespace(read=self._read)
        self.watch = IdleWatch(limit_s, gpus, recorder, self.clock)  # type: ignore[arg-type]

    def _read(self, visible: str | None) -> list[GpuUse]:
        uses = [self.uses[name] for name in (visible or ",".join(self.uses)).split(",")]
        return [GpuUse(use=use, memory_bytes=0, memory_limit_bytes=1) for use in uses if use is not None]

    def idle_after(self, seconds: float, step_s: float = 1.0) -> bool:
        for _ in range(int(seconds / step_s)):
            self.clock.sleep(step_s)
            idle = self.watch.is_idle(lambda: self.tasks)
        return idle


def test_gpus_that_are_not_used_are_idle_after_the_limit_and_not_before() -> None:
    watched = Watched({"0": 0.0, "1": 0.01})
    assert not watched.idle_after(59)
    assert watched.idle_after(6)
    assert "no GPU of the run was used for 1m (limit_idle_accelerator)" in watched.watch.failure.message


def test_one_gpu_that_is_used_now_and_then_is_enough() -> None:
    watched = Watched({"0": 0.0, "1": 0.02})
    assert not watched.idle_after(300)
    watched.uses["1"] = 0.0
    assert not watched.idle_after(50)
    watched.uses["0"] = 1.0
    assert not watched.idle_after(6)
    watched.uses["0"] = 0.0
    assert not watched.idle_after(50)
    assert watched.idle_after(20)


def test_nothing_ends_without_a_limit_or_without_tasks_that_train() -> None:
    assert not Watched({"0": 0.0, "1": 0.0}, None).idle_after(10_000, 10)
    watched = Watched({"0": 0.0, "1": 0.0})
    watched.tasks = []
    assert not watched.idle_after(1_000, 5) and watched.findings == []
    assert machine.watched(["chief-0", "worker-1", "ps-0", "evaluator-0"]) == ["chief-0", "worker-1"]


def test_gpus_that_cannot_be_read_end_nothing_and_are_reported_once() -> None:
    watched = Watched({"0": None, "1": None})
    assert not watched.idle_after(1_000, 5)
    assert watched.findings == [UNREADABLE]


def test_time_in_which_the_supervisor_was_suspended_does_not_count() -> None:
    watched = Watched({"0": 0.0, "1": 0.0})
    assert not watched.idle_after(3_600, 3_600)
    assert not watched.idle_after(40)


@pytest.mark.parametrize(
    ("settings", "received"),
    [
        ({}, "backend='local' with accelerator='cpu'."),
        ({"accelerator": "t4"}, "backend='local' with accelerator='t4', with stand-ins for GPUs."),
        ({"accelerator": "v5e-1", "backend": VERTEX}, "backend='vertex' with accelerator='v5e-1'."),
        (
            {"backend": "ray", "root": "gs://mine/podlift", "ray_address": "http://127.0.0.1:1"},
            "backend='ray' with accelerator='cpu'.",
        ),
    ],
)
def test_a_plan_without_gpus_to_watch_is_refused_with_the_next_step(write, settings, received: str) -> None:
    write("train.py", "print(1)")
    with input_error(f"Received: {received} Nearest: limit_idle_accelerator=None."):
        sdk.plan("train.py", limit_idle_accelerator="30m", **settings)


def test_a_plan_shows_the_limit(write) -> None:
    write("train.py", "print(1)")
    target = sdk.Vertex(project="my-project", bucket="mine", image="us-docker.pkg.dev/a/b/c:1")
    plan = sdk.plan("train.py", limit_idle_accelerator="30m", accelerator="t4", backend=target)
    assert "the run ends once no GPU was used for 30 min (limit_idle_accelerator)" in str(plan)
    assert "idle limit" not in str(sdk.plan("train.py", accelerator="t4", backend=target))


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], Path]:
    """Give this machine a GPU with that use; the returned file holds the use."""

    def begin(use: int) -> Path:
        variables, file = one_gpu(tmp_path / "nvml", use)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        probe = LocalBackend.probe
        monkeypatch.setattr(LocalBackend, "probe", lambda *given, **named: replace(probe(*given, **named), gpus=1))
        return file

    return begin


@pytest.mark.cold
def test_a_local_run_with_an_idle_gpu_ends_with_its_own_reason_and_without_restart(write, with_gpu, capsys) -> None:
    with_gpu(0)
    write("train.py", "import time\ntime.sleep(600)")
    run = sdk.submit("train.py", **REAL, retry_infrastructure=3)
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason, status.attempts) == (sdk.State.FAILED, sdk.Reason.ACCELERATOR_IDLE, 1)
    assert status.exit_code == 1
    why = run.why()
    assert "no GPU of the run was used for 1s (limit_idle_accelerator)" in why and "GPUs that it did not use" in why
    capsys.readouterr()
    assert app.run(["status", run.id]) == 0
    assert "FAILED (accelerator_idle)" in capsys.readouterr().out


@pytest.mark.cold
def test_a_local_run_with_a_busy_gpu_continues(write, with_gpu, tmp_path: Path) -> None:
    use = with_gpu(50)
    write("train.py", "import time\ntime.sleep(2.5)\n")
    run = sdk.submit("train.py", **REAL)
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    use.unlink()
    run = sdk.submit("train.py", **REAL)
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert UNREADABLE in [event.data["text"] for event in read_events(run.plan.paths, ("finding",))]
    assert UNREADABLE in run.status().findings
