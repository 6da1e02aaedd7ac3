"""The decisions of a container that need no container, and tasks that tell each other where they are."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import until

from sdk.backends.vertex.job import request
from sdk.backends.vertex.options import Vertex
from sdk.errors import InputError
from sdk.execution import container, identity
from sdk.execution.identity import TaskAddress
from sdk.execution.shared_agreement import ReadyContainer, newest
from sdk.execution.tail import LogFile
from sdk.job import cluster
from sdk.job.container import ContainerTerms
from sdk.job.policies import Resources
from sdk.packaging.runtime_archive import loader
from sdk.runtime.secret_values import words
from sdk.storage.posix_store import PosixStore

from .test_shared_agreement import Service, joined, waits

TERMS = request.CONTAINER
OTHER = dataclasses.replace(TERMS, restart_code=42, restarting_codes=(42,))
CODES = {
    "done": (0, TERMS, 0),
    "an error": (1, TERMS, 1),
    "another code of the program": (17, TERMS, 17),
    "saved, and no preemption more": (75, TERMS, 75),
    "aborted too often": (-6, TERMS, 3),
    "aborted, as a shell says": (134, TERMS, 3),
    "segmentation fault, too often": (-11, TERMS, 3),
    "segmentation fault, as a shell says": (139, TERMS, 3),
    "killed too often": (-9, TERMS, 137),
    "the code with which another service restarts": (42, OTHER, 3),
    "aborted, where that means no restart": (-6, OTHER, 134),
    "aborted there, as a shell says": (134, OTHER, 134),
}


@pytest.mark.parametrize(("code", "terms", "left"), CODES.values(), ids=CODES)
def test_a_containers_exit_code_decides_whether_the_service_starts_it_again(code, terms, left) -> None:
    assert container.container_code(code, terms) == left


TASKS = ("chief-0", "worker-0")
READY = {
    "nobody came": ([], {}),
    "one came": ([("worker-0", "a", 1)], {"worker-0": "a"}),
    "both came": ([("worker-0", "a", 1), ("chief-0", "b", 2)], {"chief-0": "b", "worker-0": "a"}),
    "one came twice": ([("worker-0", "a", 1), ("worker-0", "b", 2)], {"worker-0": "b"}),
    "in any order": ([("worker-0", "b", 2), ("worker-0", "a", 1)], {"worker-0": "b"}),
    "somebody unknown": ([("ps-7", "a", 1)], {}),
}


@pytest.mark.parametrize(("ready", "members"), READY.values(), ids=READY)
def test_the_newest_container_of_each_task_is_taken(ready, members) -> None:
    there = [ReadyContainer(task=task, job=1, nonce=nonce, time=time) for task, nonce, time in ready]
    assert {task: each.nonce for task, each in newest(there, TASKS).items()} == members


WHO = {
    "chief": ({"cluster_spec": ("workerpool0", 0)}, "chief-0"),
    "worker": ({"cluster_spec": ("workerpool1", 1)}, "worker-1"),
    "evaluator": ({"cluster_spec": ("workerpool3", 0)}, "evaluator-0"),
    "parameter server": ({"cluster_spec": ("workerpool2", 0)}, "ps-0"),
    "an index that is text": ({"cluster_spec": ("workerpool1", "0")}, "worker-0"),
    "only TF_CONFIG": ({"tf_config": ("worker", 1)}, "worker-1"),
    "master": ({"tf_config": ("master", 0)}, "chief-0"),
    "both": ({"cluster_spec": ("workerpool1", 0), "tf_config": ("worker", 0)}, "worker-0"),
    "a strange pool": ({"cluster_spec": ("pool", 0), "tf_config": ("chief", 0)}, "chief-0"),
}
ALL = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")


def told(**about) -> dict[str, str]:
    tasks = {name.upper(): {"type": kind, "index": index} for name, (kind, index) in about.items()}
    return {name: json.dumps({"job": None, "task": task}) for name, task in tasks.items()}


@pytest.mark.parametrize(("about", "name"), WHO.values(), ids=WHO)
def test_a_container_finds_its_task_in_the_variables_of_vertex_ai(about, name) -> None:
    assert identity.task_of(told(**about), ALL, request.terms(ALL)) == name


def test_a_service_may_name_the_task_in_a_variable() -> None:
    other = dataclasses.replace(TERMS, identity=("JOB", "POD"), tasks={"run-pod-4": "evaluator-0"})
    assert identity.task_of({"POD": "worker-1"}, ALL, other) == "worker-1"
    assert identity.task_of({"POD": "run-pod-4"}, ALL, other) == "evaluator-0"
    with pytest.raises(InputError, match="cannot determine its task"):
        identity.task_of({"POD": "worker-7"}, ALL, other)


def test_a_service_without_a_cluster_spec_has_the_addresses_of_tf_config() -> None:
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"], "other": ["d:4"]}}
    environ = {"CLUSTER_SPEC": "{}", "TF_CONFIG": json.dumps(config)}
    found = identity.addresses(environ, ALL, request.terms(ALL))
    assert found == {"chief-0": "a:1", "worker-0": "b:2", "worker-1": "c:3"}


def test_without_a_chief_the_first_worker_is_in_pool_0() -> None:
    tasks = ("worker-0", "worker-1", "worker-2")
    for pool, name in {("workerpool0", 0): "worker-0", ("workerpool1", 1): "worker-2"}.items():
        assert identity.task_of(told(cluster_spec=pool), tasks, request.terms(tasks)) == name


UNUSABLE = [*({"CLUSTER_SPEC": text} for text in ("{", "[]", '{"task": 7}')), told(cluster_spec=("workerpool1", 9))]


@pytest.mark.parametrize("environ", [{}, *UNUSABLE])
def test_a_container_without_usable_variables_reports_that_its_task_is_unknown(environ) -> None:
    with pytest.raises(InputError, match="cannot determine its task"):
        identity.task_of(environ, ALL, request.terms(ALL))
    assert identity.task_of(environ, ("chief-0",), TERMS) == "chief-0"


def test_addresses_equal_the_addresses_of_vertex_ai() -> None:
    members = cluster.tasks(3, evaluator=True)
    places = {member.name: f"{cluster.host_name(member, 'run')}:2222" for member in members}
    for member in members:
        environ = cluster.environment(member, members, places, {})
        names = [each.name for each in members]
        assert identity.task_of(environ, names, request.terms(names)) == member.name
        assert identity.addresses(environ, names, request.terms(names)) == places


def test_the_loader_is_short_and_nothing_in_it_is_expanded_by_vertex_ai() -> None:
    # It is in the request once for each pool of machines, with a limit of 100,000 characters.
    assert len(loader()) <= 6000
    assert "$(" not in loader()


def test_each_attempt_knows_the_addresses_of_its_tasks_also_after_a_task_has_moved(tmp_path: Path) -> None:
    service = Service(PosixStore(tmp_path / "moves"), TASKS)
    worker, chief = service.container("worker-0", address="b:1"), service.container("chief-0", address="a:1")
    assert joined({"worker-0": worker, "chief-0": chief}).addresses == {"chief-0": "a:1", "worker-0": "b:1"}
    second = joined({"worker-0": service.container("worker-0", address="c:7"), "chief-0": chief})
    assert (second.attempt, second.addresses) == (2, {"chief-0": "a:1", "worker-0": "c:7"})
    # Where a service names the tasks, records hold no address.
    store = PosixStore(tmp_path / "named")
    joined(Service(store, TASKS).all(address=""))
    kept = [bytes(store.get(stat.key)) for stat in store.list("attempts/")]
    assert kept and not any(b"address" in data for data in kept)


def test_a_moved_worker_of_parameter_servers_ends_the_attempt_and_takes_no_task_over(tmp_path) -> None:
    service = Service(PosixStore(tmp_path), ("chief-0", "worker-0", "ps-0"))
    containers = service.all(address="here:1")
    joined(containers)
    waits(service.container("worker-0", address="elsewhere:1"))
    end = containers["chief-0"].end_of(1)
    assert end.restart


@pytest.mark.parametrize(("given", "told"), [("10.0.0.5", "10.0.0.5"), ("fd00::5", "[fd00::5]")])
def test_a_task_holds_its_port_and_is_told_of_the_others(given: str, told: str) -> None:
    terms = ContainerTerms(restart_code=1, restarting_codes=(1,), identity=("TASK",), notice_s=1, host="HOST")
    place = TaskAddress("worker-0", terms, {"HOST": given})
    host, _, port = place.address.rpartition(":")
    assert host == told
    with pytest.raises(OSError), socket.socket() as taken:
        taken.bind(("", int(port)))
    env = place.variables(TASKS, {"chief-0": "10.0.0.4:5", "worker-0": place.address}, "run-abcdef")
    config = json.loads(env["TF_CONFIG"])
    assert config["cluster"] == {"chief": ["10.0.0.4:5"], "worker": [place.address]}
    assert (config["task"]["type"], config["task"]["index"]) == ("worker", 0)
    assert env["TF_GRPC_REUSE_PORT"] == "true"
    place.close()
    assert TaskAddress("worker-0", dataclasses.replace(terms, host=""), {}).address == ""


@pytest.mark.parametrize("resources", [Resources(workers=3), Resources(workers=3, ps=2, evaluator=True)])
def test_tasks_follow_from_their_names(resources: Resources) -> None:
    members = cluster.members(resources, Vertex())
    assert cluster.named([task.name for task in members]) == members


def test_a_log_that_no_service_keeps_is_whole_and_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "chief-0.log"
    log = LogFile(str(path), words({"KEY": "very-secret"}, ["KEY"]))
    for data in (b"one\nkey very-", b"secret\n", b"unfinished"):
        log.add(data)
    assert path.read_bytes() == b"one\nkey ***\n"
    log.finish(1.0)
    assert path.read_bytes() == b"one\nkey ***\nunfinished"


CHILD = """
import os, signal, sys, threading, time
from sdk.execution import entrypoint
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], "w").write("saved"), os._exit(0)))
threading.Thread(target=entrypoint.end_with, args=[int(sys.argv[2])], daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1], sys.argv[2], str(os.getpid())], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_a_container_with_a_killed_parent_is_stopped_as_by_a_service(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PARENT, CHILD, str(tmp_path / "saved")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        until(lambda: (tmp_path / "saved").exists())
        until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
