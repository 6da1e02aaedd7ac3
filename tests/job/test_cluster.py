from __future__ import annotations

import json
import re

import pytest

from sdk.job import cluster


def environment(workers: int, shape: str, task: int) -> dict[str, str]:
    members = cluster.tasks(workers, shape)
    return _environment(members, task)


def _environment(members: list[cluster.Task], task: int) -> dict[str, str]:
    hosts = {member.name: cluster.host_name(member, "run-aaaaaa") for member in members}
    addresses = {name: f"{host}:{4000 + number}" for number, (name, host) in enumerate(hosts.items())}
    return cluster.environment(members[task], members, addresses, {"run": "run-aaaaaa"})


def test_one_task_gets_a_cluster_spec_and_no_tf_config() -> None:
    variables = environment(1, "chief", 0)
    assert "TF_CONFIG" not in variables
    assert json.loads(variables["CLUSTER_SPEC"])["task"] == {"type": "workerpool0", "index": 0}


@pytest.mark.parametrize(
    ("shape", "names", "roles"),
    [
        ("chief", ["chief-0", "worker-0", "worker-1"], {"chief": 1, "worker": 2}),
        ("workers", ["worker-0", "worker-1", "worker-2"], {"worker": 3}),
    ],
)
def test_three_tasks_have_the_shape_that_was_asked_for(shape: str, names: list[str], roles: dict[str, int]) -> None:
    assert [task.name for task in cluster.tasks(3, shape)] == names
    config = json.loads(environment(3, shape, 2)["TF_CONFIG"])
    assert {role: len(hosts) for role, hosts in config["cluster"].items()} == roles
    assert f"{config['task']['type']}-{config['task']['index']}" == names[2]
    assert config["environment"] == "cloud"


def test_host_names_have_the_form_that_vertex_gives_and_each_port_is_there_once() -> None:
    spec = json.loads(environment(3, "chief", 1)["CLUSTER_SPEC"])
    hosts = [host for pool in spec["cluster"].values() for host in pool]
    assert all(re.fullmatch(r"cmle-training-workerpool[01]-[0-9a-f]{10}-\d:\d+", host) for host in hosts)
    assert len({host.rpartition(":")[2] for host in hosts}) == 3
    assert set(spec) == {"cluster", "environment", "task", "job"}
    assert spec["task"] == {"type": "workerpool1", "index": 0}


def test_pools_are_roles_and_an_evaluator_is_told_of_a_cluster_that_it_is_no_part_of() -> None:
    members = cluster.tasks(2, ps=2, evaluator=True)
    pools = [f"{task.name} {task.pool} {task.pool_index}" for task in members]
    assert pools == ["chief-0 0 0", "worker-0 1 0", "ps-0 2 0", "ps-1 2 1", "evaluator-0 3 0"]
    variables = _environment(members, -1)
    config, spec = json.loads(variables["TF_CONFIG"]), json.loads(variables["CLUSTER_SPEC"])
    assert config["task"]["type"] == "evaluator"
    assert {role: len(hosts) for role, hosts in config["cluster"].items()} == {"chief": 1, "worker": 1, "ps": 2}
    assert [(pool, len(hosts)) for pool, hosts in spec["cluster"].items()] == [
        ("workerpool0", 1),
        ("workerpool1", 1),
        ("workerpool2", 2),
        ("workerpool3", 1),
    ]
    assert spec["task"] == {"type": "workerpool3", "index": 0}


@pytest.mark.parametrize(
    ("names", "together", "ending", "alone"),
    [
        ("chief-0", "chief-0", "chief-0", ""),
        ("worker-0 worker-1", "worker-0 worker-1", "worker-0 worker-1", ""),
        ("chief-0 worker-0", "chief-0 worker-0", "chief-0 worker-0", ""),
        ("chief-0 worker-0 evaluator-0", "chief-0 worker-0", "chief-0 worker-0 evaluator-0", "evaluator-0"),
        ("chief-0 worker-0 ps-0", "chief-0", "chief-0", "worker-0"),
        ("worker-0 worker-1 ps-0", "worker-0", "worker-0", "worker-1"),
        ("chief-0 worker-0 ps-0 evaluator-0", "chief-0", "chief-0 evaluator-0", "worker-0 evaluator-0"),
    ],
)
def test_tasks_step_together_end_by_themselves_and_restart_alone(names, together, ending, alone) -> None:
    tasks = names.split()
    assert list(cluster.in_step(tasks)) == together.split()
    assert list(cluster.end_by_themselves(tasks)) == ending.split()
    assert [task for task in tasks if cluster.restarts_alone(task, tasks)] == alone.split()
