from __future__ import annotations

import json
import re

import pytest

from sdk import cluster


def environment(workers: int, shape: str, task: int) -> dict[str, str]:
    members = cluster.tasks(workers, shape)
    addresses = {
        member.name: f"{cluster.host_name(member, 'run-aaaaaa')}:{4000 + i}" for i, member in enumerate(members)
    }
    return cluster.environment(members[task], members, addresses, {"run": "run-aaaaaa"})


def test_one_task_gets_a_cluster_spec_and_no_tf_config() -> None:
    found = environment(1, "chief", 0)
    assert "TF_CONFIG" not in found
    assert json.loads(found["CLUSTER_SPEC"])["task"] == {"type": "workerpool0", "index": 0}


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
