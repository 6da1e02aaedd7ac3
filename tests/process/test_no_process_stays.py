"""Whatever is killed, at whatever moment: nothing of the run is left, and its status is right."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import LIMIT_S, full_only, until

import sdk
from sdk.process import janitor, janitor_watch
from sdk.records.events import Event
from sdk.records.recorder import read_events

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the janitor works on Linux only"),
    pytest.mark.process,
]

# How long a victim has lived when it is killed: to a moment after the end of a run that nobody disturbs.
MOMENTS_S = (0.0, 2.0)
VICTIMS = (
    "supervisor",
    "supervisor and janitor",
    "stopped janitor, then supervisor",
    # Not in every run.
    "client and supervisor",
    "janitor, then supervisor",
    "client",
    "task",
    "all tasks",
    "janitor",
)
REPO = str(Path(sdk.__file__).parent.parent)
# Each task leaves one process in a separate session, one orphan without an environment, and one that
# holds the task's port; all have the mark in their command.
PROGRAM = """
    import json, os, socket, subprocess, sys, tempfile, time
    mark = sys.argv[1]
    subprocess.Popen(["sleep", mark], start_new_session=True)
    subprocess.run(["setsid", "--fork", "env", "-i", "sleep", mark])
    config = json.loads(os.environ["TF_CONFIG"])
    port = config["cluster"][config["task"]["type"]][config["task"]["index"]].rpartition(":")[2]
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("::", int(port)))
    server.listen()
    os.set_inheritable(server.fileno(), True)
    subprocess.Popen(["setsid", "sleep", mark], close_fds=False)
    handle, path = tempfile.mkstemp()
    os.mkdir(path + "-closed", 0o500)
    time.sleep(1.0)
"""
CLIENT = """
    import sys
    import sdk
    retry = sdk.Retry(infrastructure=int(sys.argv[2]))
    job = sdk.Job("program.py", args=sys.argv[1:2], retry=retry, resources=sdk.Resources(workers=2))
    print("ready", flush=True)
    sdk.submit(job, name="p").wait()
"""


class Trial:
    """The kills and their times; everything follows from the seed."""

    def __init__(self, seed: int, home: Path) -> None:
        dice = random.Random(seed)
        self.seed, self.home, self.temporary = seed, home, home / "temporary"
        self.victim, self.moment_s, self.restarts = (
            VICTIMS[seed % len(VICTIMS)],
            dice.uniform(*MOMENTS_S),
            dice.choice((0, 1)),
        )
        # An argument of `sleep` that no other process of this machine has.
        self.mark = f"600.{os.getpid():07d}{seed:05d}"
        # A short path has its temporary folder inside the run, a long one has it elsewhere.
        self.root = home / ("r" if seed % 2 else "a-path-that-is-too-long-for-the-names-of-unix-sockets")


def supervisor_of(run: sdk.Run) -> psutil.Process:
    (started,) = read_events(run.plan.paths, ("started",))
    return psutil.Process(int(started.data["supervisor"].split(":")[1]))


@contextmanager
def client_of(trial: Trial) -> Iterator[subprocess.Popen[str]]:
    """A client that is about to submit."""
    for folder in (project := trial.home / "project", trial.temporary):
        folder.mkdir()
    (project / "program.py").write_text(textwrap.dedent(PROGRAM))
    (project / "client.py").write_text(textwrap.dedent(CLIENT))
    env = {**os.environ, "PYTHONPATH": REPO, "PODLIFT_ROOT": str(trial.root), "TMPDIR": str(trial.temporary)}
    words = [sys.executable, "client.py", trial.mark, str(trial.restarts)]
    client = subprocess.Popen(words, cwd=project, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with client:
        assert client.stdout.readline() == "ready\n"
        yield client


def commands(trial: Trial) -> dict[int, str]:
    """Every process that has to do with the trial, this one excepted."""
    commands = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                words, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                # One that has just been forked or is ending shows its old command or none; a zombie is over.
                if any(text.encode() in words + environ for text in (trial.mark, f"{trial.home}/")):
                    commands[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return commands


def targets(trial: Trial, client: int) -> list[int]:
    """The processes that the trial kills, as far as they exist at this moment."""
    running = commands(trial)

    def named(part: str) -> list[int]:
        return sorted(pid for pid, command in running.items() if part in command)

    tasks = named("task_main.py")
    return {
        "client": [client],
        "supervisor": named("local.supervisor"),
        "janitor": named("janitor.py"),
        "client and supervisor": [client, *named("local.supervisor")],
        "supervisor and janitor": [*named("janitor.py"), *named("local.supervisor")],
        "janitor, then supervisor": named("janitor.py"),
        "stopped janitor, then supervisor": named("janitor.py"),
        "task": random.Random(trial.seed).sample(tasks, min(1, len(tasks))),
        "all tasks": tasks,
    }[trial.victim]


def run_trial(trial: Trial) -> str:
    """Kill the processes of the trial, look for remaining ones, and return the outcome."""
    with client_of(trial) as client:
        if trial.seed < len(VICTIMS):
            # Once for each victim when everything is up, so that no run of the tests goes without.
            until(lambda: sum(c.startswith("sleep ") for c in commands(trial).values()) == 6, lambda: commands(trial))
        else:
            until(lambda: targets(trial, client.pid) or client.poll() is not None, lambda: "it never began")
            time.sleep(trial.moment_s)  # the trial is about the moment
        killed = []
        number = signal.SIGSTOP if trial.victim.startswith("stopped") else signal.SIGKILL
        for pid in targets(trial, client.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                killed.append(pid)
        if trial.victim.endswith("then supervisor"):
            if number == signal.SIGKILL and trial.seed < len(VICTIMS):
                until(lambda: set(targets(trial, client.pid)) - {*killed}, lambda: "no janitor has taken over")
                time.sleep(1.5)  # it has noted what there is
            for pid, command in commands(trial).items():
                if "local.supervisor" in command:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        until(lambda: client.poll() is not None, lambda: f"the client still waits: {commands(trial)}")
        if number == signal.SIGSTOP and trial.seed >= len(VICTIMS):
            # Stopped after the run had ended: nobody waits for it any more.
            for pid in killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
    until(lambda: not commands(trial), lambda: f"left: {commands(trial)}")
    assert list(trial.temporary.iterdir()) == []
    plans = list(trial.root.glob("runs/*/plan.json"))
    assert len(plans) <= 1
    outcome = status_of(plans[0].parent, trial) if plans else "no run"
    return f"{trial.victim if killed else 'nobody there'}: {outcome}"


def status_of(url: Path, trial: Trial) -> str:
    """Check the remains of a run, and that its status is right; return it."""
    run = sdk.attach(url)
    status = run.wait(LIMIT_S)
    events = read_events(run.plan.paths)
    assert not Path(run.plan.paths.temporary).exists()
    assert [path.name for path in trial.root.rglob("*lock*")] == []
    addresses = [address for e in events if e.kind == "attempt_started" for address in e.data["addresses"].values()]
    # A process that is ending has no name any more, and closes its files a moment later.
    until(lambda: can_lock(url), lambda: "the run is still locked")
    until(lambda: all(map(can_bind, addresses)), lambda: f"a port is still held: {addresses}")
    assert status.attempts <= 1 + trial.restarts
    if not any(event.kind == "final" for event in events):
        assert trial.victim == "client" or "supervisor" in trial.victim
        launched = any(event.kind in ("started", "launched") for event in events)
        assert not launched or "supervisor" in trial.victim, "a run does not need its client"
        assert (status.state, status.reason) == (sdk.State.LOST, sdk.Reason.SUPERVISOR_LOST)
    else:
        assert (status.state, status.reason) == expected(events, status.attempts)
    assert sdk.attach(url).status() == status
    return f"{status.state.value} ({status.reason.value}), attempt {status.attempts}"


def can_lock(url: Path) -> bool:
    folder = os.open(url, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(folder)
    return True


def can_bind(address: str) -> bool:
    with socket.socket(socket.AF_INET6) as server:
        try:
            server.bind(("::", int(address.rpartition(":")[2])))
        except OSError:
            return False
        return True


def expected(events: list[Event], attempt: int) -> tuple[sdk.State, sdk.Reason]:
    """The status that follows from the ends of the tasks of the last attempt."""
    codes = {e.data["task"]: e.data["code"] for e in events if e.kind == "exited" and e.attempt == attempt}
    if codes["chief-0"] == 0:
        return sdk.State.SUCCEEDED, sdk.Reason.DONE
    assert -signal.SIGKILL in codes.values(), codes
    return sdk.State.FAILED, sdk.Reason.KILLED


@pytest.mark.parametrize(
    ("first", "trials"),
    [(0, 3), full_only(3, 6), full_only(1000, 200)],
    ids=["without a supervisor", "others", "200 trials"],
)
def test_whatever_is_killed_nothing_is_left_and_the_status_is_right(monkeypatch, first: int, trials: int) -> None:
    # A run with a client that was killed before it started a supervisor is lost soon: it is looked at when all is quiet.
    monkeypatch.setattr(janitor_watch, "_START_LIMIT_S", 1.0)

    def tried(seed: int) -> str:
        with tempfile.TemporaryDirectory() as home:
            try:
                return run_trial(Trial(seed, Path(home)))
            except BaseException as error:
                error.args = (f"seed {seed}: {error}",)
                raise

    with ThreadPoolExecutor(3) as pool:
        outcomes = Counter(pool.map(tried, range(first, first + trials)))
    print("\n".join(f"{count:4} {outcome}" for outcome, count in sorted(outcomes.items())))
    assert outcomes.total() == trials


def test_processes_of_a_task_end_with_it_while_the_other_tasks_continue(write: Callable[..., Path]) -> None:
    write(
        "program.py",
        """
        import os, subprocess, sys, time
        from pathlib import Path
        note = Path(os.environ["PODLIFT_RUN"], "child")
        if os.environ["PODLIFT_TASK"] != "chief-0":
            note.with_suffix(".part").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
            note.with_suffix(".part").rename(note)
            sys.exit(0)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            # One that was killed is a zombie until its new parent, the supervisor, has time for it.
            if note.exists() and " Z " in Path("/proc", note.read_text(), "stat").read_text():
                sys.exit(0)
            time.sleep(0.02)
        sys.exit("the child of a task that has ended is still there")
        """,
    )
    run = sdk.submit(sdk.Job("program.py", resources=sdk.Resources(workers=2)))
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()


@pytest.mark.parametrize("killed", ["task", "supervisor and janitor", *map(full_only, ["nothing", "supervisor"])])
def test_shared_memory_of_a_task_that_was_killed_is_removed_and_no_other(write, killed: str) -> None:
    write(
        "program.py",
        """
        import os, signal, time
        from multiprocessing.shared_memory import SharedMemory
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(SharedMemory(create=True, size=100).name, flush=True)
        time.sleep(600)
        """,
    )
    mine = SharedMemory(create=True, size=100)
    try:
        run = sdk.submit("program.py")
        theirs = next(line.text for line in run.logs(follow=True))
        assert Path("/dev/shm", theirs).exists()
        supervisor = supervisor_of(run)
        if killed == "task":
            begun = next(e for e in read_events(run.plan.paths) if e.kind == "attempt_started")
            os.kill(begun.data["pids"]["chief-0"], signal.SIGKILL)
        elif killed == "nothing":
            run.cancel(grace_s=0)
        else:
            supervisor.suspend()  # it would start another janitor
            if killed == "supervisor and janitor":
                supervisor.parent().kill()
            supervisor.kill()
        assert run.wait(LIMIT_S).state.terminal
        until(lambda: not Path("/dev/shm", theirs).exists())
        assert Path("/dev/shm", mine.name).exists()
    finally:
        mine.close()
        mine.unlink()


def test_a_janitor_removes_half_records_and_temporary_files_but_nothing_of_clients(tmp_path) -> None:
    events, temporary = tmp_path / "events", tmp_path / "tmp"
    (temporary / "deep").mkdir(parents=True)
    events.mkdir()
    names = [".0000.supervisor.000002.final.json.0a.part", ".0001.chief-0.000002.done.json.0a.part"]
    stay = [".0000.client.000002.resumed.json.0a.part", ".0000.launcher.000001.launched.json.0a.part", "0000.x.json"]
    for name in (*names, *stay):
        (events / name).touch()
    # It is nobody's parent: the supervisor that it waits for has ended.
    subprocess.run([sys.executable, "-I", "-S", janitor.__file__, "1", str(temporary), str(events)], check=True)
    assert sorted(path.name for path in events.iterdir()) == sorted(stay)
    assert not temporary.exists()


@contextmanager
def process(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that has said a line, and is gone at the end."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **options) as started:
        try:
            assert started.stdout.readline() == "up\n"
            yield started
        finally:
            started.kill()


def test_a_persons_processes_that_look_at_a_run_carry_no_mark_of_it(tmp_path: Path) -> None:
    url, me = str(tmp_path / "runs" / "a-aaaaaa"), str(tmp_path)
    log = Path(url, "attempts", "0001", "logs", "chief-0.log")
    log.parent.mkdir(parents=True)
    log.touch()
    say = "echo up; read line"
    marks = {"PODLIFT_RUN": url, "PODLIFT_ATTEMPT": "1"}
    to_log = f"exec 2>>{log}; {say}"
    innocent = (say, f"cd {url}; {say}", f"exec 2<{log}; {say}", f"exec 2>>{url}/mine.txt; {say}")
    cases: list[tuple[str, dict[str, str], bool]] = [(text, {}, False) for text in innocent]
    cases += [(say, {"PODLIFT_RUN": url}, False), (say, {**marks, "PODLIFT_RUN": f"{url}x"}, False)]
    cases += [(say, marks, True), (to_log, {}, True)]
    for text, env, expected in cases:
        with process("/bin/sh", "-c", text, env=env, cwd=me, stdin=subprocess.PIPE) as started:
            assert janitor.is_marked(started.pid, url, set()) is expected, (text, env)
            janitor.end_marked(url, [])
            until(lambda: expected is (started.poll() is not None), lambda: (text, env))  # noqa: B023


@pytest.mark.parametrize("ends", [True, False])
def test_a_stopped_janitor_is_woken_and_one_that_keeps_the_lock_is_ended(tmp_path, monkeypatch, ends: bool) -> None:
    monkeypatch.setattr(janitor, "_WAKE_S", 0.02)
    monkeypatch.setattr(janitor, "_LOCK_LIMIT_S", LIMIT_S if ends else 0.1)
    events = str(tmp_path / "events")
    holder = tmp_path / "janitor.py"
    holder.write_text(
        "import fcntl, os, signal, sys, time\n"
        f"fcntl.flock(os.open({str(tmp_path)!r}, os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('up', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        f"time.sleep({0 if ends else 600})\n"
    )
    with process(sys.executable, str(holder), "1", "tmp", events) as started:
        lock = janitor._lock(str(tmp_path), events)
        os.close(lock)
        assert started.wait(LIMIT_S) == (0 if ends else -signal.SIGKILL)


def test_the_end_of_one_run_touches_neither_its_readers_nor_another_run(write: Callable[..., Path]) -> None:
    write("program.py", "import time\nprint('up', flush=True)\ntime.sleep(600)")
    lost, other = sdk.submit("program.py"), sdk.submit("program.py")
    follow = "import sys, sdk\nfor line in sdk.attach(sys.argv[1]).logs(follow=True): print(line.text, flush=True)"
    env = {**os.environ, "PYTHONPATH": REPO}
    words = [sys.executable, "-c", follow, lost.url]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "up\n"
        supervisor_of(lost).kill()
        assert reader.wait(LIMIT_S) == 0, "it read to the end and left by itself"
    assert lost.wait(LIMIT_S).state is sdk.State.LOST
    assert not other.status().state.terminal
    assert not can_lock(Path(other.url)), "as long as a run goes on its supervisor and janitor have it locked"
    assert next(line.text for line in other.logs(follow=True)) == "up"
    other.cancel(grace_s=0)
    assert other.wait(LIMIT_S).state is sdk.State.CANCELLED


STRANGER = """
import os, pathlib, subprocess, time
child = subprocess.Popen(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "600"])
pathlib.Path("left.txt").write_text(str(child.pid))
print("begun", flush=True)
time.sleep(float(os.environ["SLEEP"]))
"""


@pytest.mark.full
@pytest.mark.parametrize(("sleep", "state"), [("0", "SUCCEEDED"), ("600", "CANCELLED")])
def test_a_process_of_another_user_changes_no_verdict_and_is_named(write, sleep: str, state: str) -> None:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("another user's process cannot be made here")
    write("train.py", STRANGER)
    program = f"""if True:
        import sdk, time
        run = sdk.submit("train.py", env={{"SLEEP": {sleep!r}}})
        if {sleep!r} != "0":
            while not any(line.text == "begun" for line in run.logs()):
                time.sleep(0.05)
            run.cancel(grace_s=0.1)
        run.wait(60)
        print(run.url)
    """
    # Like a user who is not root: a process of another user may not be sent a signal.
    command = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill", sys.executable, "-c", program]
    run = sdk.attach(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    stranger = int(Path(run.url, "outputs/work/left.txt").read_text())
    try:
        assert run.status().state.value == state, run.why()
        (finding,) = run.status().findings
        assert f"{stranger} (sleep, of user nobody)" in finding
        assert finding in run.why()
    finally:
        with suppress(ProcessLookupError):  # a client of root's may have ended it
            os.kill(stranger, signal.SIGKILL)


def test_a_client_that_ends_before_its_supervisor_warns_of_nothing(tmp_path: Path) -> None:
    text = "import os; from sdk.process.spawn import spawn; "
    text += f"kept = spawn(['sleep', '2'], env=dict(os.environ), cwd='/', log='{tmp_path}/log')"
    command = [sys.executable, "-W", "always", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPO)
    assert done.stderr == ""
