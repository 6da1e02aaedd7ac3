"""The pytest plugin: `podlift_run` runs a program, `podlift_drill` kills one, `podlift_gcs` is a bucket server,
`podlift_vertex` a whole cloud, and `podlift_kubernetes` a cluster.

pytest loads this file wherever podlift is installed, so imports happen only when a test requests a fixture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .gcs import podlift_gcs, podlift_gcs_server

if TYPE_CHECKING:
    from ..drill import DrillReport
    from ..run import Result, Run
    from .kubernetes import KubernetesCluster
    from .vertex import Cloud

# pytest finds fixtures by the names that this module has.
__all__ = [
    "podlift_drill",
    "podlift_gcs",
    "podlift_gcs_server",
    "podlift_kubernetes",
    "podlift_kubernetes_cluster",
    "podlift_run",
    "podlift_vertex",
    "podlift_vertex_server",
]

_TIMEOUT_S = 600.0
# How long a supervisor may take to stop the tasks at the time limit.
_MARGIN_S = 60.0
_CANCEL_S = 30.0


@pytest.fixture
def podlift_run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Result]]:
    """Run a training program, wait for its end, return its result.

    Usage: `result = podlift_run("train.py", max_steps=20, workers=2); assert result.metrics["loss"] < 2`

    The first argument is an entry, searched in the current folder and then in pytest's rootdir; every setting of a job is a
    keyword, as are `name` and `backend`. `timeout` is "10m" by default, `backend` is "local". Runs are stored below the test's
    `tmp_path`; runs still active when the test ends are cancelled. A failed run raises `sdk.RunFailedError` with the traceback
    of the task.
    """
    started: list[Run] = []

    def run(entry: Any, **settings: Any) -> Result:
        __tracebackhide__ = True
        from ..errors import PodliftError

        job_settings = {"timeout": _TIMEOUT_S, **settings}
        try:
            started.append(_submit(entry, job_settings, tmp_path / "podlift", request.config.rootpath))
            limit_s = started[-1].plan.job.limits.timeout_s
            # A limit in case the supervisor hangs; None means no limit.
            return started[-1].result(None if limit_s is None else limit_s + _MARGIN_S)
        except PodliftError as error:
            # The message names the failure; our own frames would only hide it.
            raise error.with_traceback(None) from None

    yield run
    for left in started:
        _end(left)


@pytest.fixture
def podlift_drill(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., DrillReport]:
    """Train twice without kills and once under kills, and return the report; see docs/how-to/drill.md.

    Usage: `report = podlift_drill("train.py", workers=2, kills=["worker-0@step:20"]); assert report.passed, report`

    The first argument is an entry, searched as for `podlift_run`; `kills`, `seed`, `name` and every setting of a job are
    keywords, and `backend`, with `podlift_vertex` a value of its `backend()`. `timeout` of each of the three runs is "10m" by
    default. Runs are stored below the test's `tmp_path`, or in the bucket of the backend. If a run
    without kills fails, `sdk.RunFailedError` has the traceback of the task.
    """

    def drill(entry: Any, **settings: Any) -> DrillReport:
        __tracebackhide__ = True
        from ..drill import run_drill
        from ..errors import PodliftError

        try:
            options = {name: settings.pop(name) for name in ("kills", "seed", "backend", "name") if name in settings}
            root = settings.pop("root", None if "backend" in options else tmp_path / "podlift")
            entry, job_settings = _located(entry, {"timeout": _TIMEOUT_S, **settings}, request.config.rootpath)
            return run_drill(entry, root=root, **options, **job_settings)
        except PodliftError as error:
            raise error.with_traceback(None) from None

    return drill


@pytest.fixture(scope="session")
def podlift_vertex_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """One emulated cloud for all tests of this process; tests use `podlift_vertex`."""
    from .vertex import Cloud

    cloud = Cloud(tmp_path_factory.mktemp("cloud"))
    with cloud:
        yield cloud


@pytest.fixture
def podlift_vertex(podlift_vertex_server: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A Vertex AI for this test, with Cloud Storage and Cloud Logging, which the whole SDK uses.

    Usage: `run = sdk.submit("train.py", workers=3, backend=podlift_vertex.backend()); run.result()`

    Jobs really run, as processes of this machine. It has `backend()`, `preempt(job)`, `faults(...)`, `requests()`,
    `entries(job)`, `advance(seconds)` for its clock, and `jobs()` and `scheduler()`, Google's own clients. It is empty when the
    test begins, except for the bucket for runs.
    """
    podlift_vertex_server.reset()
    podlift_vertex_server.make_bucket()
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_vertex_server.url)
    # The cache belongs to the test too.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return podlift_vertex_server


@pytest.fixture(scope="session")
def podlift_kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """One cluster for all tests of this process; tests use `podlift_kubernetes`."""
    from .kubernetes import KubernetesCluster

    with KubernetesCluster(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.fixture
def podlift_kubernetes(
    podlift_kubernetes_cluster: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubernetesCluster]:
    """A Kubernetes cluster for this test, whose pods are processes of this machine.

    Usage: `run = sdk.submit("train.py", backend=podlift_kubernetes.backend(), root=podlift_kubernetes.root); run.result()`

    It has `evict(pod)`, `lose_node(pod)`, `kill(pod)`, `admit()`, `objects(kind)`, `faults`, and causes for which pods wait:
    `unschedulable`, `bad_image`, `quota`. kubectl finds it by KUBECONFIG.
    """
    monkeypatch.setenv("KUBECONFIG", str(podlift_kubernetes_cluster.kubeconfig))
    # The cache belongs to the test too.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield podlift_kubernetes_cluster
    podlift_kubernetes_cluster.reset()


def _submit(entry: Any, settings: dict[str, Any], root: Path, rootdir: Path) -> Run:
    from .. import launch
    from ..errors import InputError, nearest
    from ..planning.prepare import make_plan
    from ..planning.settings import table
    from ..planning.settings.merge import Destination
    from ..run import Run

    names = sorted({*table.settings(), "name", "backend"} - {"entry"})
    unknown = [f"podlift_run has no keyword {name!r}. {nearest(name, names)}" for name in settings if name not in names]
    if unknown:
        raise InputError(unknown)
    # The environment and the project's file must not send a test's run to a cloud or to the user's own root.
    target = Destination(root=root, name=settings.pop("name", None), backend=settings.pop("backend", "local"))
    entry, job_settings = _located(entry, settings, rootdir)
    return Run(launch.submit(make_plan(entry, job_settings, target, os.environ, verb="submit")))


def _located(entry: Any, settings: dict[str, Any], rootdir: Path) -> tuple[Any, dict[str, Any]]:
    """Return the entry and the settings that find it: in the current folder, otherwise in `rootdir`."""
    from ..errors import InputError
    from ..packaging.entry import locate

    if not isinstance(entry, (str, Path)):
        return entry, settings
    home = settings.get("code_project")
    for path, project in ((str(entry), home), (str(rootdir / entry), home), (str(entry), home or str(rootdir))):
        with suppress(InputError):
            locate(path, project)
            return path, settings if project is None else {**settings, "code_project": project}
    return entry, settings


def _end(run: Run) -> None:
    from ..errors import PodliftError

    with suppress(PodliftError):
        if not run.status().state.terminal:
            run.cancel(grace_s=0)
            run.wait(_CANCEL_S)
