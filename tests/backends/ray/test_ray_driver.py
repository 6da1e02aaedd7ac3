"""The driver of a job with its agents, and its message when a cluster has no room: on a played cluster."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from support import FakeClock

from sdk.backends.ray.cluster import AgentEnd
from sdk.backends.ray.driver import Driver
from sdk.backends.ray.placement import ClusterResources, Placement, shortage
from sdk.backends.ray.request import DriverSpec
from sdk.job.layout import RunPaths
from sdk.job.wire import decode
from sdk.storage.posix_store import PosixStore

TASKS = ["chief-0", "worker-0"]


class PlayedCluster:
    """A cluster with agents that end on demand: `ends` are (task, code), and each is reported once its task has started."""

    def __init__(self, clock: FakeClock, *ends: AgentEnd, reserved: bool = True) -> None:
        self.clock, self._ends, self.reserved = clock, deque(ends), reserved
        self.running: list[str] = []
        self.started: list[str] = []
        self.sent: list[tuple[str, int]] = []
        self.seen = ""
        self.tick: Callable[[], None] = lambda: None

    def resources(self) -> ClusterResources:
        return ClusterResources(nodes=[{"CPU": 1.0}], free={"CPU": 1.0})

    def reserve(self, wanted: Placement) -> None:
        self.wanted = wanted

    def is_reserved(self, within_s: float) -> bool:
        self.clock.sleep(within_s)
        self.tick()
        return self.reserved

    def start(self, task, words, env, dropped, host, seen) -> None:
        self.running.append(task)
        self.started.append(task)
        self.seen = seen

    def ended(self, within_s: float) -> list[AgentEnd]:
        self.clock.sleep(within_s)
        self.tick()
        if any(number == 9 for _, number in self.sent):
            found, self.running = [AgentEnd(task=task, code=137) for task in self.running], []
            return found
        if self._ends and self._ends[0].task in self.running:
            self.running.remove(self._ends[0].task)
            return [self._ends.popleft()]
        return []

    def is_placed(self, task: str) -> bool:
        return self.reserved

    def send(self, task: str, number: int) -> None:
        self.sent.append((task, number))

    def close(self) -> None:
        self.running = []


@pytest.fixture
def play(tmp_path: Path, monkeypatch):
    """Return a function that runs a driver on a played cluster, and returns its exit code and the data of its verdict."""
    monkeypatch.setenv("PODLIFT_LOADER", "loader")
    url = tmp_path / "root" / "runs" / "run-abcdef"

    def played(*ends: AgentEnd, cluster: PlayedCluster | None = None, **limits) -> tuple[int, dict, PlayedCluster]:
        cluster = cluster or PlayedCluster(FakeClock(), *ends)
        paths = RunPaths(str(tmp_path / "home"))
        Path(paths.events).mkdir(parents=True)
        placement = {"strategy": "SPREAD", "pending_timeout_s": 60.0, "tasks": {task: {"CPU": 1} for task in TASKS}}
        names = {"run": f"file://{url}", "run_id": "run-abcdef", "job": 1, "tasks": TASKS, "model": ""}
        agent = ["/", "entry.py", "0" * 64, "spec.json", "1" * 64]
        settings = {"env": {}, "limits": limits, "shared": True, "resumes_by_users": 0}
        spec = {**names, "agent": agent, "placement": placement, **settings}
        code = Driver(decode(DriverSpec, spec), cluster, paths, cluster.clock).run()
        data = bytes(PosixStore(url).get("events/0000.supervisor.000001.final.json"))
        return code, json.loads(data)["data"], cluster

    played.url = url
    return played


def ended(task: str, code: int | None, said: str = "") -> AgentEnd:
    return AgentEnd(task=task, code=code, last_output=said, why="" if code is not None else "The node died.")


@pytest.mark.shows("`--backend ray` runs the same plan")
def test_the_exit_code_of_the_first_task_decides(play) -> None:
    code, verdict, cluster = play(ended("worker-0", 0), ended("chief-0", 0))
    assert (code, verdict["state"]) == (0, "SUCCEEDED")
    assert cluster.started == TASKS


def test_an_agent_that_asks_for_it_and_one_of_a_lost_node_are_started_again(play) -> None:
    code, _, cluster = play(ended("worker-0", 134), ended("chief-0", None), ended("worker-0", 0), ended("chief-0", 0))
    assert code == 0
    assert sorted(cluster.started) == ["chief-0", "chief-0", "worker-0", "worker-0"]


def test_a_container_that_never_gets_to_an_attempt_is_not_started_for_ever(play) -> None:
    code, verdict, cluster = play(*[ended("worker-0", 134, "podlift: the bucket cannot be reached")] * 9)
    assert code == 3
    assert cluster.started.count("worker-0") == 6
    assert verdict["reason"] == "infrastructure"
    assert "worker-0 ended 6 times without an attempt" in verdict["failure"]["message"]
    assert "bucket cannot be reached" in verdict["failure"]["message"]


def test_a_machine_that_does_not_see_the_root_ends_the_run_with_its_name(play) -> None:
    why = "podlift: node-7 (10.0.0.7) does not see the root: /mnt/x is missing there. Next: another --root."
    code, verdict, cluster = play(ended("worker-0", 3, why))
    assert (code, verdict["reason"]) == (3, "refused")
    assert verdict["failure"]["message"].startswith("node-7 (10.0.0.7) does not see the root")
    assert cluster.running == []
    assert Path(cluster.seen).read_bytes() == b"{}"


def test_a_cluster_without_room_ends_the_run_and_names_the_missing_resources(play) -> None:
    clock = FakeClock()
    code, verdict, cluster = play(cluster=PlayedCluster(clock, reserved=False))
    assert (code, verdict["state"], verdict["reason"]) == (3, "FAILED", "stockout")
    assert "2 CPU needed, and the cluster has 1" in verdict["failure"]["message"]
    assert "ray_pending_timeout=1 min" in verdict["failure"]["message"]
    assert cluster.started == []


def cancelling(play, *graces_s: float, reserved: bool = True) -> PlayedCluster:
    """Return a cluster with cancel requests for the run during its first tick, and a failure after the first one."""
    cluster = PlayedCluster(FakeClock(), reserved=reserved)
    failed = {"version": 1, "time": 15.0, "data": {"type": "KeyError", "message": "'column'", "traceback": ""}}

    def cancel() -> None:
        cluster.tick = lambda: None
        store = PosixStore(play.url)
        if len(graces_s) > 1:
            store.put_new("events/0001.chief-0.000001.failed.json", [json.dumps(failed).encode()])
        for number, grace_s in enumerate(graces_s, 1):
            wish = json.dumps({"grace_s": grace_s, "requested_at": 10.0 * number}).encode()
            store.put_new(f"control/0000-{number}.cancel.json", [wish])

    cluster.tick = cancel
    return cluster


@pytest.mark.parametrize(
    ("graces_s", "reserved"), [([0.0], False), ([300.0, 0.0], True)], ids=["waits for room", "the shorter grace counts"]
)
def test_a_run_with_a_cancel_request_ends_at_once_also_after_a_failure(play, graces_s, reserved) -> None:
    code, verdict, _ = play(cluster=cancelling(play, *graces_s, reserved=reserved))
    assert (code, verdict["state"]) == (4, "CANCELLED")


def test_tasks_that_ignore_a_cancel_request_are_killed_after_its_grace(play) -> None:
    cluster = cancelling(play, 30.0)
    began = cluster.clock.monotonic()
    code, verdict, _ = play(cluster=cluster)
    assert (code, verdict["state"]) == (4, "CANCELLED")
    assert cluster.sent == [(task, 9) for task in TASKS]
    assert 30 <= cluster.clock.monotonic() - began < 45


def test_a_driver_of_a_run_with_a_verdict_starts_nothing(play) -> None:
    PosixStore(play.url).put_new("events/0000.supervisor.000001.final.json", [b'{"data": {"state": "CANCELLED"}}'])
    code, verdict, cluster = play(ended("chief-0", 0))
    assert (code, verdict, cluster.started) == (3, {"state": "CANCELLED"}, [])


NODES = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0}]


@pytest.mark.parametrize(
    ("strategy", "tasks", "nodes", "free", "said"),
    [
        ("SPREAD", [{"CPU": 1, "GPU": 2}], NODES, {}, "2 GPU needed, and the cluster has 1"),
        ("SPREAD", [{"CPU": 6}], NODES, {}, "no node has 6 CPU together.*Its nodes have: 4 CPU, 1 GPU, 4 CPU"),
        ("STRICT_SPREAD", [{"CPU": 1}] * 3, NODES, {}, "STRICT_SPREAD needs 3 nodes.*the cluster has 2"),
        ("STRICT_PACK", [{"CPU": 3}] * 2, NODES, {}, "STRICT_PACK needs 6 CPU on one node"),
        ("SPREAD", [{"CPU": 3}] * 2, NODES, {"CPU": 2.0}, "6 CPU needed, and 2 of 8 are free"),
        ("SPREAD", [{"CPU": 1, "accelerator_type:T4": 0.001}], NODES, {}, "accelerator_type:T4 needed.*cluster has 0"),
    ],
)
def test_a_missing_resource_is_named_with_the_clusters_amount(strategy, tasks, nodes, free, said) -> None:
    named = {f"worker-{number}": each for number, each in enumerate(tasks)}
    wanted = Placement(strategy=strategy, pending_timeout_s=1, tasks=named)
    assert re.search(said, shortage(wanted, ClusterResources(nodes=nodes, free=free)))
