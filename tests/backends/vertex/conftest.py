"""Projects whose programs are submitted to the emulated cloud. Google's own type judges every request that is rendered."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock

import sdk
from sdk.backends.vertex import request
from sdk.job.plan import Plan
from sdk.job.policies import Vertex
from sdk.storage.posix_store import PosixStore
from sdk.testing.vertex import Cloud


@pytest.fixture(autouse=True)
def _google_reads_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    render = request.render

    def judged(plan: Plan, **more: Any) -> dict[str, Any]:
        from google.cloud.aiplatform_v1 import CustomJob

        body = render(plan, **more)
        # A patch is judged before the job is submitted.
        if not Vertex.of(plan.target).raw:
            CustomJob.from_json(json.dumps(body))
        return body

    monkeypatch.setattr(request, "render", judged)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project, which is empty and the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def start(podlift_vertex: Cloud, project: Path) -> Callable[..., sdk.Run]:
    """Submit a program's text, with fields of the Job and of the Vertex as keywords."""
    names = {field.name for field in fields(Vertex)}

    def submit(text: str = "print('here')", **more: Any) -> sdk.Run:
        (project / "program.py").write_text(text)
        target = {name: value for name, value in more.items() if name in names}
        job = sdk.Job("program.py", **{name: value for name, value in more.items() if name not in names})
        return sdk.submit(job, backend=podlift_vertex.backend(**target))

    return submit


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(str(tmp_path / "run"))
