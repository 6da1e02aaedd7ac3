"""Many runs started at once, by several processes that know nothing of each other."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_runs import processes
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO, until

import sdk
from sdk.records.recorder import read_events

pytestmark = pytest.mark.process

# Each task listens as TensorFlow does, and asks everybody at the cluster's addresses who he is: a port that two runs share
# would sooner or later answer with a stranger's name.
PROGRAM = """
    import json, os, socket, sys, threading, time
    if sys.argv[1] == "fail":
        raise KeyError("on purpose")
    if sys.argv[1] == "stay":
        time.sleep(600)
    config = json.loads(os.environ["TF_CONFIG"])
    me, me_at = config["task"], config["cluster"][config["task"]["type"]][config["task"]["index"]]
    everybody = {f"{role}-{i}": at for role, hosts in config["cluster"].items() for i, at in enumerate(hosts)}
    run, seen = os.environ["PODLIFT_RUN"], threading.Semaphore(0)
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("::", int(me_at.rpartition(":")[2])))
    server.listen()

    def serve():
        while True:
            with server.accept()[0] as caller:
                caller.sendall(f"{run} {me['type']}-{me['index']}".encode())
                seen.release()

    threading.Thread(target=serve, daemon=True).start()
    for name, at in everybody.items():
        while True:
            try:
                with socket.create_connection(at.rsplit(":", 1), timeout=60) as peer:
                    answer = peer.makefile().read()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        assert answer == f"{run} {name}", f"{at} is {answer}, not {run} {name}"
    for _ in everybody:
        assert seen.acquire(timeout=60)
"""
# Waits for the start shot, so that all clients submit at the same moment.
CLIENT = """
    import os, sys, time
    import sdk
    print("ready", flush=True)
    sys.stdin.readline()
    for kind in sys.argv[1:]:
        run = sdk.submit(sdk.Job("program.py", args=[kind], resources=sdk.Resources(workers=2)), name="many")
        print(run.url, flush=True)
        if kind == "stay":
            run.cancel(grace_s=0)
"""
ENDS = {"work": sdk.State.SUCCEEDED, "fail": sdk.State.FAILED, "stay": sdk.State.CANCELLED}


def started(path: str, *words: str, count: int, **env: str) -> list[subprocess.Popen[str]]:
    """Start clients that wait for their start shot."""
    command, pipe = [sys.executable, path, *words], subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(REPO), **env}
    found = [subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(count)]
    for process in found:
        assert process.stdout.readline() == "ready\n"
    return found


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc").exists(), reason="remaining processes are looked up in /proc")
def test_runs_started_at_once_never_meet_and_leave_nothing(write, root: Path, tmp_path: Path) -> None:
    clients, kinds = 10, ["work", "fail", "work", "stay", "work"]
    write("program.py", PROGRAM)
    client = write("client.py", CLIENT)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    waiting = started(str(client), *kinds, count=clients, TMPDIR=str(temporary))
    for process in waiting:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=LIMIT_S) for process in waiting]
    assert [error for _, error in said if error] == []
    urls = [url for output, _ in said for url in output.split()]
    assert len(set(urls)) == len(urls) == clients * len(kinds)

    runs = [sdk.attach(url) for url in urls]
    ends = {run.url: run.wait(LIMIT_S) for run in runs}
    meant = zip(runs, kinds * clients, strict=True)
    wrong = [run.why() for run, kind in meant if ends[run.url].state is not ENDS[kind]]
    assert wrong == []
    assert len(sdk.runs(limit=None)) == len(runs)

    for one, other in itertools.combinations([lifetime(run) for run in runs], 2):
        (began, ended, ports), (began_too, ended_too, ports_too) = one, other
        assert began > ended_too or began_too > ended or not ports & ports_too
    until(lambda: not processes(lambda words, environ: str(root).encode() in words + environ))
    assert list(temporary.iterdir()) == []
    assert [run.url for run in runs if os.path.exists(run.plan.paths.temporary)] == []
    assert [path.suffix for path in (root / "bundles").iterdir()] == [".tar"], "the same code is stored once"
    # Half a record of a task that was killed while it wrote it is no file of anybody's.
    assert [path for path in root.rglob("*.part") if path.parent.name != "events"] == []


def lifetime(run: sdk.Run) -> tuple[float, float, set[str]]:
    """When a run's ports were held, and which; never, where it was cancelled before."""
    events = {event.kind: event for event in read_events(run.plan.paths)}
    addresses = events["attempt_started"].data["addresses"].values() if "attempt_started" in events else []
    ports = {address.rpartition(":")[2] for address in addresses}
    assert len(ports) in (0, len(run.plan.tasks))
    return events["submitted"].time, events["final"].time, ports


def test_a_plan_that_several_processes_submit_at_once_is_executed_once(write, root: Path) -> None:
    write("program.py", "print('once')")
    made = sdk.plan("program.py")
    Path("plan.json").write_text(made.to_json())
    write("client.py", """
        import sdk
        from sdk.job.plan import Plan
        print("ready", flush=True)
        input()
        try:
            print(sdk.submit(Plan.from_json(open("plan.json").read(), "plan.json")).url)
        except sdk.InputError as error:
            print("refused:", error)
        """)  # fmt: skip
    waiting = started("client.py", count=2)
    said = sorted(process.communicate("go\n", timeout=LIMIT_S)[0].strip() for process in waiting)
    assert said.count(made.url) == 1
    assert [text for text in said if "submitted before" in text] == [text for text in said if text != made.url]
    assert sdk.attach(made.url).wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert [line.text for line in sdk.attach(made.url).logs()] == ["once"]
