"""Real processes on this machine, without TensorFlow: the view of a task, its secrets, and the end of a run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from local_runs import client, event, left_alive, supervisor
from support import LIMIT_S, PROGRAMS, WAITS, files_with, said, until

import sdk
from sdk.packaging import bundle
from sdk.process import namespaces, spawn

pytestmark = [pytest.mark.process, pytest.mark.spread]


REPORT = """
    import json, os, sys
    ours = ("TF_", "CLUSTER", "CLOUD_ML", "AIP_", "PODLIFT", "MINE")
    seen = {name: value for name, value in os.environ.items() if name.startswith(ours)}
    place = {"cwd": os.getcwd(), "main": __name__, "file": __file__, "path": sys.path[0]}
    print(json.dumps({"argv": sys.argv[1:], "env": seen, **place}))
"""


def reports(run: sdk.Run) -> dict[str, dict]:
    run.result(LIMIT_S)
    return {task: json.loads(said(run, task)[0]) for task in run.plan.tasks}


@pytest.mark.shows("The same bundle, environment variables")
@pytest.mark.fidelity("cluster-variables", "local")
@pytest.mark.fidelity("environment", "local")
def test_tasks_see_the_same_environment_as_on_vertex(submit) -> None:
    run = submit(REPORT, args=["--x", "a b"], env={"MINE": "1"}, workers=3)
    found = reports(run)
    configs = {task: json.loads(report["env"]["TF_CONFIG"]) for task, report in found.items()}
    names = [f"{config['task']['type']}-{config['task']['index']}" for config in configs.values()]
    assert names == ["chief-0", "worker-0", "worker-1"]
    assert len({json.dumps(c["cluster"]) for c in configs.values()}) == 1
    hosts = [host for role in configs["chief-0"]["cluster"].values() for host in role]
    assert len({host.rpartition(":")[2] for host in hosts}) == 3
    for task, report in found.items():
        env = report["env"]
        assert report["argv"] == ["--x", "a b"]
        folders = {"AIP_MODEL_DIR": "model", "AIP_CHECKPOINT_DIR": "checkpoints", "AIP_TENSORBOARD_LOG_DIR": "logs"}
        wanted = {name: f"{run.url}/{folder}/" for name, folder in folders.items()}
        assert env.items() >= {"MINE": "1", "CLOUD_ML_JOB_ID": run.id, "PODLIFT_TASK": task, **wanted}.items()
        assert env["CLOUD_ML_PROJECT_ID"].isdigit()
        assert "PODLIFT_ROOT" not in env, "settings of the client are none of the task's business"
        assert set(json.loads(env["CLUSTER_SPEC"])) == {"cluster", "environment", "task", "job"}
        assert report["main"] == "__main__"
        assert report["cwd"] == report["path"] == str(Path(report["file"]).parent)
    assert len({report["cwd"] for report in found.values()}) == 3, "every task has a folder of its own"


def test_a_cluster_may_have_workers_only_and_a_single_task_has_no_tf_config(write) -> None:
    write("train.py", REPORT)
    found = reports(sdk.submit("train.py", workers=2, local_cluster="workers"))
    assert list(found) == ["worker-0", "worker-1"]
    assert list(json.loads(found["worker-1"]["env"]["TF_CONFIG"])["cluster"]) == ["worker"]
    alone = reports(sdk.submit("train.py"))["chief-0"]["env"]
    assert "CLUSTER_SPEC" in alone and "TF_CONFIG" not in alone


def test_a_function_gets_keywords_and_the_run_returns_the_chiefs_value(write) -> None:
    write("pkg/__init__.py")
    write("pkg/train.py", """
        import os, time
        from pathlib import Path
        import numpy as np, sdk
        def main(a, b=2):
            ctx = sdk.context()
            # The other task ends before.
            while ctx.is_chief and not [*Path(os.environ["PODLIFT_RUN"], "events").glob("*.worker-0.*.done.json")]:
                time.sleep(0.01)
            return {"task": ctx.task, "sum": a + b, "args": ctx.args, "loss": np.float32(0.5)}
        """)  # fmt: skip
    run = sdk.submit("pkg.train:main", args={"a": 1, "b": 3}, workers=2)
    value = run.result(LIMIT_S).value
    assert value == {"task": "chief-0", "sum": 4, "args": {"a": 1, "b": 3}, "loss": 0.5}
    assert type(value["loss"]) is float, "no number of numpy"


def test_a_module_is_main_with_relative_imports_until_its_threads_are_done(write) -> None:
    write("pkg/__init__.py")
    write("pkg/__main__.py", """
        from .helper import WORD
        import pickle, sys, threading
        class Thing: ...
        def late():
            threading.main_thread().join()
            print(len(pickle.dumps(Thing())) > 0, flush=True)
        print(WORD, __name__, sys.argv[1:], flush=True)
        threading.Thread(target=late).start()
        """)  # fmt: skip
    write("pkg/helper.py", "WORD = 'helped'\n")
    run = sdk.submit("pkg", args=["x"])
    run.result(LIMIT_S)
    assert said(run) == ["helped __main__ ['x']", "True"]


@pytest.mark.cold
def test_the_chief_that_is_done_waits_for_the_others_and_no_longer_than_it_may(write) -> None:
    write("train.py", """
        import os, sys, time
        if os.environ["PODLIFT_TASK"] != "chief-0":
            time.sleep(float(sys.argv[1]))
            print("finished")
        """)  # fmt: skip
    patient = sdk.submit("train.py", args=["1"], workers=2, limit_exit_wait="60s")
    hasty = sdk.submit("train.py", args=["600"], workers=2, limit_exit_wait=0.2)
    assert patient.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert said(patient, "worker-0") == ["finished"]
    assert hasty.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert said(hasty, "worker-0") == []
    assert any("not done yet: worker-0" in line.text for line in hasty.logs(task="chief-0"))
    assert left_alive(hasty) == []


def test_a_run_survives_its_client_and_can_be_attached_from_elsewhere(write, tmp_path: Path) -> None:
    write("train.py", f"{WAITS}print('alive')")
    url = client("import os, sdk; print(sdk.submit('train.py').url, flush=True); os._exit(0)")
    os.chdir(tmp_path)
    run = sdk.attach(url)
    assert sdk.attach(run.id).url == url
    assert run.status().state in (sdk.State.PENDING, sdk.State.RUNNING)
    Path(url, "go").touch()
    assert run.result(LIMIT_S).run_dir == url
    assert [info.id for info in sdk.runs()] == [run.id]


@pytest.mark.fidelity("cancel", "local")
@pytest.mark.cold
def test_cancelling_stops_children_too_and_the_most_impatient_wish_counts(submit) -> None:
    run = submit("""
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
        print("ready", flush=True)
        time.sleep(600)
        """, workers=2)  # fmt: skip
    until(lambda: len([line for line in run.logs() if line.text == "ready"]) == 2)
    assert len(left_alive(run)) >= 4
    for grace in ({"grace_s": 600}, {"grace_s": 0.2}, {}):
        run.cancel(**grace)
    assert run.wait(LIMIT_S).reason is sdk.Reason.CANCELLED
    with pytest.raises(sdk.RunCancelledError):
        run.result(LIMIT_S)
    run.cancel()
    assert run.status().exit_code == 4
    assert left_alive(run) == []


def test_without_any_grace_no_task_waits_for_a_step(submit) -> None:
    run = submit("import sdk, time\nwhile True:\n    sdk.context().should_stop()\n    time.sleep(0.01)")
    until(Path(run.plan.paths.progress(1, "chief-0")).exists, run.why)
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED


@pytest.mark.cold
def test_a_killed_supervisor_takes_its_tasks_along_and_a_follower_learns_it(submit) -> None:
    run = submit("import time\nprint('ready', flush=True)\ntime.sleep(600)", workers=2)
    seen = []
    for line in run.logs(follow=True):
        seen.append(line.text)
        if seen.count("ready") == 2:
            os.kill(supervisor(run), signal.SIGKILL)
    assert [text for text in seen if not text.startswith("podlift: ")] == ["ready", "ready"]
    status = run.wait(LIMIT_S)
    assert (status.state, status.exit_code) == (sdk.State.LOST, 3)
    until(lambda: left_alive(run) == [])
    with pytest.raises(sdk.RunError, match="gone and left no verdict"):
        run.result(LIMIT_S)


@pytest.mark.cold
def test_a_supervisor_that_is_told_to_stop_stops_its_tasks_and_says_so(submit) -> None:
    run = submit("import time; time.sleep(600)")
    event(run, "entry")
    os.kill(supervisor(run), signal.SIGTERM)
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason) == (sdk.State.FAILED, sdk.Reason.INFRASTRUCTURE)
    assert left_alive(run) == []


def test_code_that_was_stored_before_runs_although_a_file_has_changed(write) -> None:
    script = write("train.py", "print('planned')")
    assert sdk.submit("train.py").result(LIMIT_S)
    plan = sdk.plan("train.py")
    script.write_text("print('changed')")
    run = sdk.submit(plan)
    assert run.result(LIMIT_S)
    assert (run.url, said(run)) == (plan.url, ["planned"])


def test_ports_are_held_while_the_tasks_run_and_free_afterwards(submit) -> None:
    run = submit("""
        import json, os, socket, time
        config = json.loads(os.environ["TF_CONFIG"])
        host, port = config["cluster"][config["task"]["type"]][config["task"]["index"]].rsplit(":", 1)
        with socket.socket(socket.AF_INET6) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("::", int(port)))
            server.listen()
            with socket.create_connection((host, int(port)), timeout=10):
                print("reached", flush=True)
            time.sleep(600)
        """, workers=2)  # fmt: skip
    until(lambda: len([line for line in run.logs() if line.text == "reached"]) == 2)
    ports = [int(address.rpartition(":")[2]) for address in event(run, "attempt_started").data["addresses"].values()]
    for port in ports:
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("", port))
    run.cancel(grace_s=0)
    run.wait(LIMIT_S)
    for port in ports:
        with socket.socket() as stranger:
            stranger.bind(("", port))


def test_isolated_tasks_reach_each_other_and_nothing_else(submit) -> None:
    if namespaces.why_not() is not None:
        pytest.skip(f"network namespaces: {namespaces.why_not()}")
    run = submit(
        "import socket; print(sorted(name for _, name in socket.if_nameindex()))", workers=2, local_network="isolated"
    )
    run.result(LIMIT_S)
    assert set(said(run)) <= {"['lo']", "['lo', 'sit0']", "['lo', 'tunl0']"}


def test_a_bundle_that_is_damaged_after_the_submit_is_no_error_of_the_user(write, monkeypatch) -> None:
    write("train.py", "print(1)")
    plan = sdk.plan("train.py")
    Path(plan.bundle).parent.mkdir(parents=True)
    monkeypatch.setattr(bundle, "write", lambda packed, project, target: target.write_bytes(b"rotten"))
    status = sdk.submit(plan).wait(LIMIT_S)
    assert (status.reason, status.exit_code) == (sdk.Reason.INFRASTRUCTURE, 3)
    assert "damaged" in str(status.failure)


def test_a_run_that_a_restart_of_the_machine_has_ended_is_lost(submit) -> None:
    run = submit("import time; time.sleep(600)")
    event(run, "attempt_started")
    machine = spawn.identity(os.getpid()).split(".")[0]
    for record in Path(run.plan.paths.events).glob("*.json"):
        data = json.loads(record.read_bytes())
        if "supervisor" in data["data"]:
            pid = int(data["data"]["supervisor"].split(":")[1])
            data["data"]["supervisor"] = f"{machine}.an-earlier-boot:{pid}:1"
            record.write_text(json.dumps(data))
    assert run.status().state is sdk.State.LOST
    os.kill(pid, signal.SIGTERM)
    event(run, "final")


def test_a_process_identity_is_its_own(write) -> None:
    name = spawn.identity(os.getpid())
    assert spawn.alive(name)
    boot, pid, start = name.split(":")
    assert not spawn.alive(f"{boot}:{pid}:{int(start) + 1}"), "another process that got the same pid"
    assert spawn.alive(f"another.{boot.partition('.')[2]}:{pid}:{start}"), "the host name may change"
    assert spawn.identity(2**22 + 1) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere psutil knows when a process began")
def test_the_identity_of_a_process_does_not_move_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "boot_time", lambda: 0.0)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 0.0)
    name = spawn.identity(os.getpid())
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    assert name.rpartition(":")[2] == ticks


def test_psutil_gives_the_cpu_time_the_name_and_the_state_of_a_process(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until(lambda: spawn.cpu_s(child.pid) > 0)
        assert f"{child.pid} (python" in spawn.described(child.pid)
        assert not spawn.is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        until(lambda: spawn.is_stopped(child.pid))
    finally:
        child.kill()
        child.wait()
    gone = spawn.cpu_s(child.pid), spawn.is_stopped(child.pid), spawn.described(child.pid)
    assert gone == (0.0, False, str(child.pid))


KEY = "projects/my-project/secrets/api-key"
SPILLS = (PROGRAMS / "secret_in_output.py").read_text()


@pytest.mark.parametrize("source", ["the shell", "a file"])
def test_a_task_gets_the_value_and_nothing_that_is_kept_shows_it(write, root: Path, monkeypatch, source: str) -> None:
    write("train.py", SPILLS)
    outside = root.parent / "key.txt"
    outside.write_text("s3cr3t-value\n")
    if source == "the shell":
        monkeypatch.setenv("API_KEY", "s3cr3t-value")
    secret = sdk.Secret(KEY) if source == "the shell" else sdk.Secret(KEY, file=str(outside))
    run = sdk.submit(sdk.Job("train.py", env={"API_KEY": secret}))
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    lines = [line.text for line in run.logs()]
    assert lines[:3] == ["backwards eulav-t3rc3s", "split ***", "a child prints ***"]
    assert "RuntimeError: refused: ***" in lines
    assert "refused: ***" in str(run.status().failure)
    assert files_with("s3cr3t-value", run.url) == []


def test_a_secret_without_a_value_here_or_with_an_absent_or_packaged_file_is_refused(write) -> None:
    write("train.py", SPILLS)
    with pytest.raises(sdk.InputError, match=rf"secret API_KEY has no value here: {KEY}.+set API_KEY.+file="):
        sdk.plan(sdk.Job("train.py", env={"API_KEY": sdk.Secret(KEY)}))
    with pytest.raises(sdk.InputError, match=r"the file of the secret API_KEY cannot be read.+absent\.txt"):
        sdk.plan(sdk.Job("train.py", env={"API_KEY": sdk.Secret(KEY, file="absent.txt")}))
    write("key.txt", "s3cr3t-value")
    job = sdk.Job("train.py", env={"API_KEY": sdk.Secret(KEY, file="key.txt")}, code={"project": "."})
    with pytest.raises(sdk.InputError, match=r"key\.txt holds the secret API_KEY and would be packaged.+code_exclude"):
        sdk.plan(job)
    hidden = sdk.Job("train.py", env=job.env, code={"project": ".", "exclude": ["key.txt"]})
    assert "key.txt" not in {file.path for file in sdk.plan(hidden).code.files}
