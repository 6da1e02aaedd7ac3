"""Runs and losses on a real cluster: a node, a job that another client stops, missing resources, missing tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import LONG_LIMIT_S, until

import sdk
from benchmarks.real_ray import RayCluster
from sdk.errors import InputError
from sdk.status import Reason, State
from sdk.testing.backend import BackendContract
from sdk.testing.gcs import GcsServer, podlift_gcs, podlift_gcs_server

from .conftest import DIGITS, MISSING, PYTHON

__all__ = ["podlift_gcs", "podlift_gcs_server"]
pytestmark = [
    pytest.mark.process,
    pytest.mark.full,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]
SLOW = {"epochs": 10, "slow_s": 0.1}
RESTARTS = {"retry_infrastructure": 3, "retry_preemptions": 3}


@pytest.fixture
def two_nodes() -> Iterator[RayCluster]:
    with closing(RayCluster(PYTHON, 1, 1)) as found:
        yield found


def slowly(target: sdk.Ray, folder: Path, **settings: object) -> sdk.Run:
    return sdk.submit(DIGITS, args=SLOW, workers=2, backend=target, root=folder / "shared", **settings)


def undisturbed(folder: Path) -> object:
    """Return the weights of the same training on this machine."""
    here = sdk.submit(DIGITS, args=SLOW, workers=2, root=folder / "own", local_cores="all")
    return here.result(LONG_LIMIT_S).value


def trains(run: sdk.Run, step: int) -> bool:
    progress = run.progress()
    return progress is not None and progress.step >= step


@pytest.mark.tensorflow
@pytest.mark.usefixtures("digits")
def test_a_node_that_is_killed_in_the_middle_costs_no_weight(two_nodes: RayCluster, tmp_path: Path) -> None:
    target = sdk.Ray(address=two_nodes.address, raw={"placement": {"strategy": "STRICT_SPREAD"}})
    there = slowly(target, tmp_path, checkpoint_every="10steps", **RESTARTS)
    until(lambda: trains(there, 20), lambda: there.status())
    two_nodes.tell("remove 1")
    two_nodes.tell("add 1")
    status = there.wait(LONG_LIMIT_S)
    assert status.state is State.SUCCEEDED, there.why()
    assert status.attempts == 2
    assert (status.continued_step or 0) >= 10
    assert there.result().value == undisturbed(tmp_path)
    assert "is started again" in there.why()


@pytest.mark.tensorflow
@pytest.mark.usefixtures("digits")
def test_a_cancelled_run_saves_and_continues_where_it_was(cluster: RayCluster, tmp_path: Path) -> None:
    run = slowly(sdk.Ray(address=cluster.address), tmp_path, checkpoint_every="1000steps")
    until(lambda: trains(run, 5), lambda: run.status())
    run.cancel(grace_s=30)
    assert run.wait(LONG_LIMIT_S).state is State.CANCELLED
    saved = run.status().saved_step
    assert saved >= 5
    run.resume()
    assert run.wait(LONG_LIMIT_S).state is State.SUCCEEDED
    assert run.status().continued_step == saved
    assert run.result().value == undisturbed(tmp_path)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("digits")
def test_a_job_that_is_stopped_on_the_cluster_saves_and_leaves_no_process(cluster: RayCluster, tmp_path: Path) -> None:
    import requests

    run = slowly(sdk.Ray(address=cluster.address), tmp_path, checkpoint_every="1000steps")
    until(lambda: trains(run, 5), lambda: run.status())
    requests.post(f"{cluster.address}/api/jobs/{run.id}-1/stop", timeout=20)
    until(lambda: not processes_of(run), lambda: processes_of(run))
    run.wait(LONG_LIMIT_S)
    assert (sdk.attach(run.url).status().saved_step or 0) >= 5


def processes_of(run: sdk.Run) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if process.pid != os.getpid() and any(run.id in word for word in words):
            found.append(" ".join(words)[-200:])
    return found


@pytest.mark.tensorflow
@pytest.mark.usefixtures("digits")
def test_resources_that_no_node_has_are_named_when_the_time_is_over(cluster: RayCluster, tmp_path: Path) -> None:
    target = sdk.Ray(address=cluster.address, pending_timeout_s=8)
    run = sdk.submit(DIGITS, accelerator="l4", workers=2, backend=target, root=tmp_path / "shared")
    until(lambda: run.status().reason is Reason.PROVISIONING, lambda: run.status())
    assert "2 GPU needed, and the cluster has 0" in run.why()
    status = run.wait(LONG_LIMIT_S)
    assert (status.state, status.reason) == (State.FAILED, Reason.STOCKOUT)
    assert "2 GPU needed, and the cluster has 0" in str(status.failure)


def test_a_task_gets_the_devices_that_ray_assigns(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "devices.py").write_text("import os; print('devices', os.environ.get('CUDA_VISIBLE_DEVICES'))")
    monkeypatch.chdir(tmp_path)
    raw = {"placement": {"tasks": {task: {"GPU": 2} for task in ("chief-0", "worker-0")}}}
    with closing(RayCluster(PYTHON, more=("--num-gpus=4",))) as cluster:
        target = sdk.Ray(address=cluster.address, raw=raw)
        run = sdk.submit("devices.py", workers=2, backend=target, root=tmp_path / "shared")
        assert run.wait(LONG_LIMIT_S).state is State.SUCCEEDED, run.why()
        said = [line.text for task in run.plan.tasks for line in run.logs(task=task) if "devices" in line.text]
        devices = [line.removeprefix("devices ") for line in sorted(said)]
        assert devices in (["0,1", "2,3"], ["0,2", "1,3"], ["0,3", "1,2"])


def test_a_cluster_accepts_the_token_of_a_header_and_the_token_of_rays_clients(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.py").write_text("print('trains')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # without a token of Ray's
    token = "0123456789abcdef" * 4
    with closing(RayCluster(PYTHON, env={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})) as cluster:
        with pytest.raises(InputError, match="does not accept this client"):
            sdk.submit("train.py", backend=sdk.Ray(address=cluster.address), root=tmp_path / "shared")
        assert not (tmp_path / "shared" / "runs").exists()
        monkeypatch.setenv("MY_RAY_TOKEN", token)
        target = sdk.Ray(address=cluster.address, headers={"Authorization": "Bearer $MY_RAY_TOKEN"})
        run = sdk.submit("train.py", backend=target, root=tmp_path / "shared")
        assert run.wait(LONG_LIMIT_S).state is State.SUCCEEDED, run.why()
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        run = sdk.submit("train.py", backend=sdk.Ray(address=cluster.address), root=tmp_path / "shared")
        assert run.wait(LONG_LIMIT_S).state is State.SUCCEEDED, run.why()


PROGRAM = """
import json, os
def main(epochs):
    roles = sorted(json.loads(os.environ["CLUSTER_SPEC"])["cluster"])
    return {"epochs": epochs, "roles": roles, "task": os.environ["PODLIFT_TASK"]}
"""


def test_a_plan_runs_on_a_cluster_as_here_and_the_client_has_no_ray(cluster, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("ray")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    backend = sdk.Ray(address=cluster.address)
    there = sdk.submit("train:main", args={"epochs": 3}, backend=backend, root=tmp_path / "shared")
    here = sdk.submit("train:main", args={"epochs": 3}, root=tmp_path / "own")
    assert there.result(120).value == here.result(120).value
    assert there.url == f"file://{tmp_path}/shared/runs/{there.id}"
    assert sdk.attach(f"{tmp_path}/shared/runs/{there.id}").status() == there.status()


def test_a_run_in_a_bucket_needs_no_shared_folder(cluster, podlift_gcs: GcsServer, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", podlift_gcs.url)
    podlift_gcs.client().create_bucket("mine")
    program = "import os; print('from', os.environ['PODLIFT_TASK'], os.environ['AIP_MODEL_DIR'])"
    (tmp_path / "train.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    run = sdk.submit("train.py", workers=2, backend=sdk.Ray(address=cluster.address), root="gs://mine/podlift")
    assert run.wait(120).state is sdk.State.SUCCEEDED, run.why()
    for task in run.plan.tasks:
        assert f"from {task} gs://mine/podlift/runs/{run.id}/model/" in [line.text for line in run.logs(task=task)]


class TestRay(BackendContract):
    name = "ray"

    @pytest.fixture
    def where(self, cluster: RayCluster, tmp_path: Path) -> dict[str, Any]:
        return {"backend": sdk.Ray(address=cluster.address), "root": tmp_path / "shared"}
