"""Tasks that tell each other where they are, and containers that are child processes: for services that do neither."""

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

from sdk.backends.vertex.options import Vertex
from sdk.errors import StoreError
from sdk.execution.identity import TaskAddress
from sdk.execution.tail import LogFile
from sdk.job import cluster
from sdk.job.container import ContainerTerms
from sdk.job.policies import Resources
from sdk.runtime.secret_values import words
from sdk.storage.posix_store import PosixStore

from .test_shared_agreement import Service, joined

TASKS = ("chief-0", "worker-0")


def test_each_attempt_knows_the_addresses_of_its_tasks_also_after_a_task_has_moved(tmp_path: Path) -> None:
    service = Service(PosixStore(tmp_path), TASKS)
    worker, chief = service.container("worker-0", address="b:1"), service.container("chief-0", address="a:1")
    assert joined({"worker-0": worker, "chief-0": chief}).addresses == {"chief-0": "a:1", "worker-0": "b:1"}
    second = joined({"worker-0": service.container("worker-0", address="c:7"), "chief-0": chief})
    assert (second.attempt, second.addresses) == (2, {"chief-0": "a:1", "worker-0": "c:7"})


def test_where_a_service_names_the_tasks_records_hold_no_address(tmp_path: Path) -> None:
    joined(Service(PosixStore(tmp_path), TASKS).all(address=""))
    kept = [bytes(PosixStore(tmp_path).get(stat.key)) for stat in PosixStore(tmp_path).list("attempts/")]
    assert kept
    assert not any(b"address" in data for data in kept)


def test_a_moved_worker_of_parameter_servers_ends_the_attempt_and_takes_no_task_over(
    tmp_path: Path,
) -> None:
    service = Service(PosixStore(tmp_path), ("chief-0", "worker-0", "ps-0"))
    containers = service.all(address="here:1")
    joined(containers)
    with pytest.raises(StoreError):
        service.container("worker-0", address="elsewhere:1").join(wait_s=0)
    end = containers["chief-0"].end_of(1)
    assert end is not None
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
    log = LogFile(str(tmp_path / "logs" / "chief-0.log"), words({"KEY": "very-secret"}, ["KEY"]))
    for data in (b"one\nkey very-", b"secret\n", b"unfinished"):
        log.add(data)
    assert (tmp_path / "logs" / "chief-0.log").read_bytes() == b"one\nkey ***\n"
    log.finish(1.0)
    assert (tmp_path / "logs" / "chief-0.log").read_bytes() == b"one\nkey ***\nunfinished"


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
