"""Worker pools that really run: a program sees itself, its buckets and the others as on Vertex AI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import EXECUTOR
from stored import Stored
from support import LIMIT_S, full_only, until

from sdk.emulator.vertex import environment, replicas
from sdk.emulator.vertex.containers import client
from sdk.emulator.vertex.launcher import ProcessLauncher
from sdk.errors import InputError

pytestmark = pytest.mark.process

URL = "http://127.0.0.1:9"


class Jobs:
    def __init__(self, stored: Stored, home: Path) -> None:
        self.stored, self._home = stored, home
        self.lines: list[tuple[str, str, str]] = []
        self.launcher: list[replicas.ReplicaProcesses] = []

    def make(self, *specs: dict, url: str = URL, **fields: object) -> replicas.ReplicaProcesses:
        group = replicas.ReplicaProcesses(
            {"jobSpec": {"workerPoolSpecs": list(specs), **fields}},
            job_id="123",
            project="my-project",
            region="us-central1",
            url=url,
            scratch=self._home / str(len(self.launcher)),
            wheels=self._home.parent / "wheels",
            buckets=self.stored.view,
            emit=lambda *line: self.lines.append(line),
        )
        self.launcher.append(group)
        return group

    def run(self, *specs: dict, **fields: object) -> dict[str, int]:
        group = self.make(*specs, **fields)
        group.start()
        found = group.wait(LIMIT_S, exits=sum(spec["replicaCount"] for spec in specs) - 1)
        group.close()
        return found

    def said(self, replica: str = "workerpool0-0", stream: str = "stdout") -> list[str]:
        return [line for name, kind, line in self.lines if (name, kind) == (replica, stream)]

    def wait_for(self, replica: str, line: str) -> None:
        until(lambda: line in self.said(replica))


def pool(*command: str, count: int = 1, args: tuple[str, ...] = (), **env: str) -> dict:
    given = [{"name": name, "value": value} for name, value in env.items()]
    words = {"imageUri": "image", "command": list(command), "args": list(args), "env": given}
    return {"replicaCount": count, "containerSpec": words}


def shell(text: str, count: int = 1, **env: str) -> dict:
    return pool("sh", "-c", text, count=count, **env)


def python(text: str, count: int = 1) -> dict:
    return pool("python3", "-S", "-c", textwrap.dedent(text), count=count)


def living(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


@pytest.fixture
def jobs(stored, tmp_path) -> Iterator[Jobs]:
    made = Jobs(stored, tmp_path / "jobs")
    yield made
    for group in made.launcher:
        group.close()


@pytest.fixture
def rooted() -> None:
    reason = replicas.missing_isolation()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.fidelity("gcs-folder", "emulator")
def test_any_program_reads_its_bucket_and_finds_the_others_by_name(jobs, stored, rooted) -> None:
    stored.put("d/x", b"text\n")
    host = environment.Replica(1, 0).host(environment.host_token("123"))
    group = jobs.make(shell("cat /gcs/bucket/d/x; getent hosts $WORKER; hostname", WORKER=host), shell("sleep 100"))
    group.start()
    assert group.wait(LIMIT_S) == {"workerpool0-0": 0}
    text, found, name = jobs.said()
    assert text == "text"
    assert found.split() == ["127.0.0.1", host]
    assert name == host.replace("workerpool1", "workerpool0")


def test_files_of_a_program_below_gcs_are_there_when_its_exit_is(jobs, stored, rooted) -> None:
    kept = "mkdir /gcs/bucket/out; echo model > /gcs/bucket/out/model; exec 3> /gcs/bucket/log; echo l >&3"
    assert jobs.run(shell(f"echo x > /gcs/bukcet; {kept}; kill -9 $$")) == {"workerpool0-0": 137}
    assert (stored.get("out/model"), stored.get("log")) == (b"model\n", b"l\n")
    assert "Read-only" in jobs.said(stream="stderr")[0], "there is nothing beside the buckets"


@pytest.mark.shows("The same bundle, environment variables")
@pytest.mark.fidelity("environment", "emulator")
def test_the_environment_holds_the_clouds_variables_and_nothing_of_this_one(jobs, monkeypatch) -> None:
    monkeypatch.setenv("MY_SECRET", "secret")
    base = {"outputUriPrefix": "gs://bucket/run"}
    dump = "python3 -S -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    assert jobs.run(shell(dump, DIR="$(AIP_MODEL_DIR)$(DIR2)"), baseOutputDirectory=base) == {"workerpool0-0": 0}
    found = json.loads(jobs.said()[0])
    assert "MY_SECRET" not in found and "TF_CONFIG" not in found
    assert found["DIR"] == "gs://bucket/run/model/$(DIR2)"
    assert found["AIP_CHECKPOINT_DIR"] == "gs://bucket/run/checkpoints/"
    assert found["AIP_TENSORBOARD_LOG_DIR"] == "gs://bucket/run/logs/"
    assert (found["CLOUD_ML_JOB_ID"], found["CLOUD_ML_REGION"]) == ("123", "us-central1")
    assert found["CLOUD_ML_PROJECT_ID"].isdigit()
    assert (found["PODLIFT_EMULATOR"], found["STORAGE_EMULATOR_HOST"]) == (URL, URL)
    assert found["GCE_METADATA_HOST"].startswith("127.0.0.1:9/123.workerpool0-0.")
    assert json.loads(found["CLUSTER_SPEC"])["task"] == {"type": "workerpool0", "index": 0}


@pytest.mark.parametrize(
    ("machine", "value"),
    [({}, "unset"), ({"acceleratorType": "NVIDIA_L4"}, "1"), ({"machineType": "ct5lp-hightpu-1t"}, "1")],
)
def test_a_replica_with_a_stand_in_has_its_accelerators_kernels_on_any_processor(jobs, machine, value) -> None:
    assert jobs.run({**shell("echo ${TF_ENABLE_ONEDNN_OPTS:-unset}"), "machineSpec": machine}) == {"workerpool0-0": 0}
    assert jobs.said() == [value]


@pytest.mark.fidelity("tasks-by-name", "emulator")
def test_replicas_talk_to_each_other_by_name_and_each_at_its_own_port(jobs, rooted) -> None:
    text = """
        import json, os, socket
        config = json.loads(os.environ["TF_CONFIG"])
        kind = config["task"]["type"]
        host, port = config["cluster"][kind][0].rsplit(":", 1)
        assert host == socket.gethostname()
        mine = socket.socket()
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        mine.bind(("", int(port)))
        mine.listen()
        if kind == "chief":
            peer = mine.accept()[0]
            print(peer.recv(100).decode())
        else:
            host, port = config["cluster"]["chief"][0].rsplit(":", 1)
            while True:
                try:
                    other = socket.create_connection((host, int(port)))
                    break
                except ConnectionRefusedError:
                    pass
            other.sendall(b"hello from the " + kind.encode())
    """
    assert jobs.run(python(text), python(text)) == {"workerpool0-0": 0, "workerpool1-0": 0}
    assert jobs.said() == ["hello from the worker"]


def described(*counts: int) -> dict[str, dict[str, dict]]:
    specs = [pool("x", count=count) if count else {} for count in counts]
    job = {"jobSpec": {"workerPoolSpecs": specs}}
    members = environment.replicas(job)
    addresses = {member: f"{member.host('0123456789')}:2222" for member in members}
    found = {member.name: environment.cluster_env(member, addresses, job["jobSpec"]) for member in members}
    return {name: {variable: json.loads(text) for variable, text in given.items()} for name, given in found.items()}


@pytest.mark.fidelity("cluster-variables", "emulator")
def test_a_single_replica_has_a_cluster_spec_and_no_tf_config() -> None:
    found = described(1)["workerpool0-0"]
    assert list(found) == ["CLUSTER_SPEC"]
    assert found["CLUSTER_SPEC"]["cluster"] == {"workerpool0": ["cmle-training-workerpool0-0123456789-0:2222"]}


@pytest.mark.fidelity("cluster-variables", "emulator")
def test_an_evaluator_is_in_nobodys_cluster_and_empty_pools_keep_their_place() -> None:
    found = described(1, 2, 0, 1)
    for name, kind, index in (
        ("workerpool0-0", "chief", 0),
        ("workerpool1-1", "worker", 1),
        ("workerpool3-0", "evaluator", 0),
    ):
        config, spec = found[name]["TF_CONFIG"], found[name]["CLUSTER_SPEC"]
        assert (config["task"]["type"], config["task"]["index"]) == (kind, index)
        assert {role: len(hosts) for role, hosts in config["cluster"].items()} == {"chief": 1, "worker": 2}
        assert sorted(spec["cluster"]) == ["workerpool0", "workerpool1", "workerpool3"]
        assert spec["environment"] == config["environment"] == "cloud"
    assert described(1, 1, 1)["workerpool2-0"]["TF_CONFIG"]["task"]["type"] == "ps"


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("a$(JOB)b$(JOB)", "a7b7"),
        ("$(EARLIER) $(LATER) $(OWN) $(UNKNOWN)", "first $(LATER) $(OWN) $(UNKNOWN)"),
        ("$$(JOB) $$$(JOB) $$$$(JOB)", "$(JOB) $7 $$(JOB)"),
        ("$JOB ${JOB} $() $(JOB $", "$JOB ${JOB} $() $(JOB $"),
        ("$($(JOB))", "$($(JOB))"),
        ("$(ONCE)", "$(JOB)"),
    ],
)
def test_variables_are_expanded_as_kubernetes_does(value: str, expanded: str) -> None:
    given = [("EARLIER", "first"), ("ONCE", "$$(JOB)"), ("OWN", value), ("LATER", "last")]
    pairs = [{"name": name, "value": text} for name, text in given]
    assert environment.expand_env(pairs, {"JOB": "7"})["OWN"] == expanded


@pytest.mark.parametrize(
    ("text", "code"),
    [("exit 3", 3), ("kill -ABRT $$", 134), ("kill -TERM $$", 143)],
)
def test_exit_codes_equal_the_codes_of_a_container(jobs, text: str, code: int) -> None:
    assert jobs.run(shell(text)) == {"workerpool0-0": code}


def test_a_command_that_is_not_there_says_so(jobs) -> None:
    assert jobs.run(pool("no-such-program")) == {"workerpool0-0": 127}
    assert "'no-such-program' cannot be executed" in jobs.said(stream="stderr")[0]


def test_all_lines_come_before_the_exit_whatever_they_are(jobs) -> None:
    text = """
        import sys
        write = sys.stdout.buffer.write
        for number in range(5_000):
            write(b"%d\\n" % number)
        write(b"\\n")
        write("é".encode() * 100_000 + b"\\n")
        write(b"no \\xff text\\n")
        write(b"x" * 65536 + b"\\n")
        write(b"no end")
        sys.stderr.write("beside")
    """
    assert jobs.run(python(text)) == {"workerpool0-0": 0}
    lines = jobs.said()
    assert lines[:5_001] == [*map(str, range(5_000)), ""]
    *long, broken, full, last = lines[5_001:]
    assert "".join(long) == "é" * 100_000 and max(len(piece.encode()) for piece in long) <= client.MAX_LINE_BYTES
    assert (broken, full, last) == ("no \ufffd text", "x" * 65536, "no end")
    assert jobs.said(stream="stderr") == ["beside"]


def test_a_container_that_only_its_image_knows_is_refused(jobs) -> None:
    assert jobs.run(pool(args=("echo", "from args"))) == {"workerpool0-0": 0}
    assert jobs.said() == ["from args"]
    with pytest.raises(InputError, match=r"workerPoolSpecs\[0\].*images.*'image'.*ENTRYPOINT"):
        jobs.make(pool())


def test_sigterm_comes_first_and_whoever_stays_is_killed(jobs) -> None:
    polite = "trap 'echo leaving; exit 7' TERM; echo up; while :; do sleep 0.02; done"
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.02; done"
    group = jobs.make(shell(polite), shell(stubborn))
    group.start()
    for name in ("workerpool0-0", "workerpool1-0"):
        jobs.wait_for(name, "up")
    group.terminate(grace_s=1.0)
    assert group.exited() == {"workerpool0-0": 7, "workerpool1-0": 137}
    assert jobs.said() == ["up", "leaving"]


def test_a_preempted_replica_leaves_the_others_alone_and_returns_with_its_identity(jobs) -> None:
    text = "ls; touch left; trap 'exit 9' TERM; echo $CLUSTER_SPEC; echo up; while :; do sleep 0.02; done"
    group = jobs.make(shell(text), shell(text))
    group.start()
    for name in ("workerpool0-0", "workerpool1-0"):
        jobs.wait_for(name, "up")
    group.preempt("workerpool1-0")
    assert group.wait(LIMIT_S) == {"workerpool1-0": 9}
    group.start_one("workerpool1-0")
    until(lambda: jobs.said("workerpool1-0").count("up") == 2)
    assert group.exited() == {}
    files, first, _, *again = jobs.said("workerpool1-0")
    assert again == [files, first, "up"], "nor does it see its earlier files on its own disk"


def leaves(marker: str, then: str = "echo up; wait") -> dict:
    """A program that leaves a child, and an orphan in another session, and continues."""
    return shell(f"sleep {marker} & (setsid sleep {marker} &) ; {then}")


@pytest.mark.parametrize("how", ["terminate", "close"])
def test_no_process_stays(jobs, how: str) -> None:
    marker = f"1000.{os.getpid()}{len(how)}"
    group = jobs.make(leaves(marker))
    group.start()
    jobs.wait_for("workerpool0-0", "up")
    until(lambda: len(living(marker)) == 2)
    group.terminate(1.0) if how == "terminate" else group.close()
    assert living(marker) == []


def test_the_next_emulator_removes_the_scratch_folders_of_one_that_was_killed(stored, tmp_path) -> None:
    left, precious = tmp_path / "emulator" / "scratch" / "123-1" / "workerpool0-0", tmp_path / "precious"
    for folder in (left, precious):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (left / "link").symlink_to(precious)
    loop = asyncio.new_event_loop()
    ProcessLauncher(tmp_path / "emulator", stored.state, loop, URL).close()
    loop.close()
    assert not (tmp_path / "emulator" / "scratch").exists()
    assert (precious / "file").exists()


def test_a_killed_container_runtime_ends_its_replicas_and_their_shared_memory(jobs, rooted) -> None:
    marker, shared = f"1002.{os.getpid()}", f"/dev/shm/podlift-test-{os.getpid()}"
    group = jobs.make(leaves(marker, f"echo state > {shared}; cat {shared}; wait"))
    group.start()
    jobs.wait_for("workerpool0-0", "state")
    assert not Path(shared).exists(), "each container has a separate folder there"
    group._containers._process.kill()
    assert group.wait(LIMIT_S) == {"workerpool0-0": 137}
    until(lambda: not living(marker))
    assert not Path(shared).exists()
    group.start_one("workerpool0-0")
    assert group.wait(LIMIT_S) == {"workerpool0-0": 137}


def test_nothing_is_left_open_and_no_thread_runs_on(jobs, tmp_path) -> None:
    jobs.run(shell("exit 0"))
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    jobs.run(shell("exit 0"))
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert os.listdir(tmp_path / "jobs") == []


@pytest.fixture
def unshare(monkeypatch):
    """Make the containers of a test call these lines instead of unshare(2)."""

    def set_(*lines: str) -> None:
        head = ["import containers.runtime as root", "real = root._unshare", "def unshare(flags):"]
        patched = "\n".join([*head, *lines, "root._unshare = unshare"])
        before, _, after = client._RUN.partition("from containers")
        monkeypatch.setattr(client, "_probe_result", {})
        monkeypatch.setattr(client, "_RUN", f"{before}\n{patched}\nfrom containers{after}")

    return set_


def test_a_user_namespace_is_enough(jobs, stored, unshare) -> None:
    unshare("    if flags == root._NEWNS: raise PermissionError(1, 'not permitted')", "    real(flags)")
    reason = replicas.missing_isolation()
    if reason is not None:
        pytest.skip(reason)
    stored.put("x", b"text\n")
    assert jobs.run(shell("cat /gcs/bucket/x; id -u; getent hosts $(hostname) > /gcs/bucket/y")) == {"workerpool0-0": 0}
    assert jobs.said() == ["text", str(os.getuid())]
    assert stored.get("y").startswith(b"127.0.0.1")


def test_where_the_system_permits_nothing_jobs_run_and_no_process_stays(jobs, stored, unshare) -> None:
    unshare("    raise PermissionError(1, 'not permitted')")
    assert "no /gcs" in replicas.missing_isolation() and "not permitted" in replicas.missing_isolation()
    marker = f"1003.{os.getpid()}"
    group = jobs.make(leaves(marker, "echo $TF_CONFIG; exit 5"), shell("sleep 100"))
    group.start()
    assert group.wait(LIMIT_S) == {"workerpool0-0": 5}
    assert living(marker) == []
    config = json.loads(jobs.said()[0])
    assert config["cluster"]["worker"][0].startswith("localhost:")
    group.terminate(1.0)
    assert group.exited() == {"workerpool0-0": 5, "workerpool1-0": 143}


def packaged(uri: str) -> dict:
    spec = {"executorImageUri": EXECUTOR, "packageUris": [uri], "pythonModule": "trainer.task", "args": ["--lr", "a b"]}
    return {"replicaCount": 1, "pythonPackageSpec": spec}


@pytest.mark.parametrize(
    ("data", "sentence"), [(None, "cannot be read"), full_only(b"no archive", "cannot be installed here")]
)
def test_a_package_that_cannot_be_had_says_so(jobs, stored, data: bytes | None, sentence: str) -> None:
    if data is not None:
        stored.put("trainer-0.1.tar.gz", data)
    assert jobs.run(packaged("gs://bucket/trainer-0.1.tar.gz")) == {"workerpool0-0": 1}
    assert sentence in jobs.said(stream="stderr")[-1]
