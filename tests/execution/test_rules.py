"""The decisions of a container that need no container."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sdk.backends.vertex.job import request
from sdk.errors import InputError
from sdk.execution import container, identity
from sdk.execution.shared_agreement import ReadyContainer, newest
from sdk.job import cluster
from sdk.packaging.runtime_archive import loader

TERMS = request.CONTAINER
CODES = {
    "done": (0, 0),
    "an error": (1, 1),
    "another code of the program": (17, 17),
    "saved, and no preemption more": (75, 75),
    "aborted too often": (-6, 3),
    "aborted, as a shell says": (134, 3),
    "segmentation fault, too often": (-11, 3),
    "segmentation fault, as a shell says": (139, 3),
    "killed too often": (-9, 137),
}


@pytest.mark.parametrize(("code", "left"), CODES.values(), ids=CODES)
def test_a_containers_exit_code_decides_whether_the_service_starts_it_again(code, left) -> None:
    assert container.container_code(code, TERMS) == left


def test_another_service_has_other_exit_codes() -> None:
    terms = dataclasses.replace(TERMS, restart_code=42, restarting_codes=(42,))
    assert [container.container_code(code, terms) for code in (42, 134, -6)] == [3, 134, 134]


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
