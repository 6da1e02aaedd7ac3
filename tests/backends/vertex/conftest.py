"""Projects with programs that are submitted to the emulated cloud. Google's own type judges every request that is rendered."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock
from vertex_faults import HOLD

import sdk
from sdk.backends.vertex.job import request
from sdk.backends.vertex.options import Vertex
from sdk.cli.app import run as command
from sdk.job.plan import Plan
from sdk.storage.posix_store import PosixStore
from sdk.testing.vertex import Cloud


@pytest.fixture(autouse=True)
def _google_reads_every_request(monkeypatch) -> None:
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
def project(tmp_path, monkeypatch) -> Path:
    """The folder of a project, which is empty and the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def submitted(cloud: Cloud, folder: Path, text: str, **more: Any) -> sdk.Run:
    """Submit a program's text, with fields of the Job and of the Vertex as keywords."""
    names = {field.name for field in fields(Vertex)}
    (folder / "program.py").write_text(text)
    target = {name: value for name, value in more.items() if name in names}
    job = sdk.Job("program.py", **{name: value for name, value in more.items() if name not in names})
    return sdk.submit(job, backend=cloud.backend(**target))


@pytest.fixture
def cloud(podlift_vertex) -> Cloud:
    """The emulated cloud, which is empty but for the bucket for runs."""
    return podlift_vertex


@pytest.fixture
def start(cloud, project) -> Callable[..., sdk.Run]:
    """Submit to an empty cloud."""
    return lambda text="print('here')", **more: submitted(cloud, project, text, **more)


@pytest.fixture(scope="module")
def _held_run(podlift_vertex_server, tmp_path_factory) -> sdk.Run:
    cloud, folder = podlift_vertex_server, tmp_path_factory.mktemp("held")
    cloud.reset()
    cloud.make_bucket()
    cloud.faults(HOLD)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PODLIFT_EMULATOR", cloud.url)
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patched.chdir(folder)
        return submitted(cloud, folder, "print('here')")


@pytest.fixture
def held(podlift_vertex_server, _held_run, tmp_path, monkeypatch) -> tuple[Cloud, sdk.Run]:
    """A run with a waiting job, for all tests of a file: they leave it as it is, and none uses `cloud`."""
    podlift_vertex_server.faults(HOLD)
    podlift_vertex_server.forget_requests()
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_vertex_server.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return podlift_vertex_server, sdk.attach(_held_run.url)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path) -> PosixStore:
    return PosixStore(str(tmp_path / "run"))


@pytest.fixture
def told(capsys) -> Callable[..., str]:
    """Run a command, and return all that it prints: `told("init", "vertex", code=2)`."""

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert command(list(words)) == code
        return "".join(capsys.readouterr())

    return run
