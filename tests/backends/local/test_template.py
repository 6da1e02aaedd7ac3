"""Tasks that are forked from a process that has imported for them: like tasks that have imported themselves, or not forked.

Most of these tests import a fake `tensorflow` with the behaviour that the test needs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from local_runs import events, left_alive, supervisor, why_fresh
from support import LIMIT_S, REPO, full_only, said, until

import sdk

pytestmark = [pytest.mark.process, pytest.mark.cold]

# Prints the state of a process, except values that cannot be the same twice.
STATE = """
    import ctypes, json, locale, logging, os, resource, signal, sys, tempfile, threading, warnings

    def text(name):
        with open(f"/proc/self/{name}") as file:
            return file.read()

    def state():
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        own = {"TF_CONFIG", "CLUSTER_SPEC", "no_grpc_proxy"}
        names = sorted(set(os.environ) - own)
        status = dict(line.split(":\\t", 1) for line in text("status").splitlines())
        death = ctypes.c_int()
        libc.prctl(2, ctypes.byref(death))
        files = {}
        for fd in os.listdir("/proc/self/fd"):
            try:
                files[fd] = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                pass  # the one that listed them
        main = vars(sys.modules["__main__"])
        signals = [number for number in signal.valid_signals() if number < signal.SIGRTMIN]
        limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        handlers = logging.getLogger().handlers
        return {
            "words": [sys.argv, sys.orig_argv, text("cmdline").replace("\\0", " ").strip(), text("comm")],
            "path": [sys.path, os.getcwd(), tempfile.gettempdir()],
            "flags": [str(sys.flags), sys.executable, sys.prefix, sys.getrecursionlimit(), sys.getswitchinterval()],
            "main": {name: str(main.get(name)) for name in ("__name__", "__file__", "__spec__", "__package__", "__cached__")},
            "alias": [str(sys.modules.get(name)) for name in ("__main__", "__mp_main__")],
            "variables": {name: os.environ[name] for name in names},
            "variables in C": {name: (libc.getenv(name.encode()) or b"").decode() for name in names},
            "cluster": {name: len(os.environ.get(name, "")) for name in own},
            "umask": os.umask(0o22),
            "signals": [str(signal.getsignal(number)) for number in signals],
            "signals in C": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd")],
            "kernel": [status[name] for name in ("Uid", "Gid", "Cpus_allowed", "NoNewPrivs")],
            "files": files,
            "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), death.value],
            "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
            "streams": [str(sys.stdin), str(sys.stdout), str(sys.stderr), sys.stdout.write_through, sys.stdout.line_buffering],
            "locale": locale.setlocale(locale.LC_ALL),
            "hooks": [str(hook) for hook in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.gettrace())],
            "finders": sorted(type(finder).__name__ for finder in sys.meta_path),
            "warnings": sorted(map(str, warnings.filters)),
            "logging": [str(handlers), str(logging.getLoggerClass())],
            "modules": sorted(sys.modules),
            "threads": [thread.name for thread in threading.enumerate()],
        }
"""


# A library of TensorFlow does without this thread after a fork: it is no reason to fork nothing.
NAMED_THREAD = """
import ctypes, threading, time
named = threading.Event()

def wait():
    ctypes.CDLL(None).prctl(15, b"jemalloc_bg_thd")  # the name that the kernel shows
    named.set()
    time.sleep(600)

threading.Thread(target=wait, daemon=True).start()
named.wait()
"""


def test_output_and_settings_of_a_shared_import_are_in_every_task(submit, fake, tmp_path: Path) -> None:
    once = f"import os; print('importing', flush=True); open({str(tmp_path / 'count')!r}, 'a').write('x')"
    env = fake(f"{once}; os.environ['SET_BY_IMPORT'] = '1'\n{NAMED_THREAD}")
    program = "import os, tensorflow; print(*map(os.environ.get, ('PODLIFT_TASK', 'SET_BY_IMPORT', 'MINE')))"
    run = submit(program, env={**env, "MINE": "2"}, workers=3)
    run.result(LIMIT_S)
    assert why_fresh(run) == [""]
    assert (tmp_path / "count").read_text() == "x"
    for task in run.plan.tasks:
        assert said(run, task) == ["importing", f"{task} 1 2"]


@pytest.mark.full
@pytest.mark.tensorflow
def test_a_forked_task_equals_a_started_one(write) -> None:
    """But for: numbers of processes, the idle threads of OpenBLAS, the hash seed, and the latest imports."""
    write("train.py", f"""{STATE}
    import tensorflow, keras
    found = state()
    import numpy
    import tensorflow as tf
    from tensorflow.python.client import device_lib
    numpy.linalg.inv(numpy.eye(500) * 2)  # by several threads, that did not survive the fork
    (device,) = device_lib.list_local_devices()
    own = [numpy.random.rand(), tf.random.uniform([]), keras.random.uniform([]), device.incarnation]
    found["parent"] = os.getppid()
    print(json.dumps({{"state": found, "own": [float(value) for value in own]}}))
    """)  # fmt: skip
    states, own = {}, []
    for start in ("fork", "spawn"):
        run = sdk.submit("train.py", env={"MINE": "a b"}, workers=2, local_start=start)
        run.result(LIMIT_S)
        assert why_fresh(run) == ["" if start == "fork" else "local_start='spawn'"]
        temporary = events(run, "placed")[0].data["temporary"]
        for task in run.plan.tasks:
            line = next(line for line in said(run, task) if line.startswith('{"state'))
            told = json.loads(line.replace(temporary, "TEMPORARY").replace(run.id, "RUN"))
            own.append(told["own"])
            assert told["state"].pop("parent") == supervisor(run)
            states[start, task] = told["state"]
    for task in run.plan.tasks:
        for part in states["spawn", task]:
            assert states["fork", task][part] == states["spawn", task][part], part
    for values in zip(*own, strict=True):
        assert len(set(values)) == len(values), "no task shares a random draw"


@pytest.mark.parametrize(
    ("text", "state", "code", "message"),
    [
        ("sys.exit(75)", "CHECKPOINTED", 75, ""),
        ("raise KeyError('column')", "FAILED", 1, "KeyError: 'column'"),
        ("os.abort()", "FAILED", 3, "killed by SIGABRT"),
    ],
)
def test_every_way_out_of_a_forked_task_is_seen(submit, fake, text: str, state: str, code: int, message: str) -> None:
    run = submit(f"import os, sys, tensorflow\n{text}", env=fake(), workers=2)
    status = run.wait(LIMIT_S)
    assert why_fresh(run) == [""]
    assert (status.state.value, status.exit_code) == (state, code)
    assert message in (status.failure.message if status.failure else "")
    assert "template" not in (status.failure.traceback if status.failure else "")
    assert left_alive(run) == []


def test_exit_handlers_and_threads_of_a_forked_task_have_their_time(submit, fake) -> None:
    run = submit("""
        import atexit, tensorflow, threading
        atexit.register(print, "handler")
        threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
        print("main")
        """, env=fake(), workers=2)  # fmt: skip
    run.result(LIMIT_S)
    assert said(run, "chief-0") == said(run, "worker-0") == ["main", "thread", "handler"]


def test_a_task_that_is_done_may_take_its_leave_after_the_first_one_has_ended(submit, fake, tmp_path: Path) -> None:
    run = submit(f"""
        import atexit, os, pathlib, signal, tensorflow, time
        first = pathlib.Path({str(tmp_path / "first")!r})

        def leave():
            while first.is_symlink() and os.path.exists(os.readlink(first)):
                time.sleep(0.01)
            print("stopped" if signal.sigtimedwait([signal.SIGTERM], 0.5) else "handler")

        if os.environ["PODLIFT_TASK"] == "chief-0":
            first.symlink_to(f"/proc/{{os.getpid()}}")
        else:
            while not first.is_symlink():
                time.sleep(0.01)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            atexit.register(leave)
        """, env=fake(), workers=2)  # fmt: skip
    run.result(LIMIT_S)
    assert [event.data["task"] for event in events(run, "exited")] == ["chief-0", "worker-0"]
    assert said(run, "worker-0") == ["handler"]


# Each of them has the tasks started in the ordinary way: the import is done by everyone.
REFUSED = {
    "a thread is left": ("import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()",
                             {}, "2 threads"),
    "the import fails": ("import sys\nif 'template.py' in sys.argv[0]: raise ImportError('no such luck')", {}, "no such luck"),
    "the process dies between two forks": (
        "import os, sys\nif 'template.py' in sys.argv[0]: forks = []; os.register_at_fork(before=lambda: forks and os.abort(), "
        "after_in_parent=lambda: forks.append(1))", {}, "ended"),
    "a tracer watches": ("import sys\nif 'template.py' in sys.argv[0]: sys.settrace(print)", {}, "a debugger"),
    "the project replaces what is imported": ("import colours", {"colours.py": "NAME = 'mine'"}, "colours"),
}  # fmt: skip
# The template says no, dies on the way, or is not asked at all: one case of each is in every run.
IN_EVERY_RUN = {"a thread is left", "the process dies between two forks", "the project replaces what is imported"}


@pytest.mark.parametrize("case", [case if case in IN_EVERY_RUN else full_only(case) for case in REFUSED])
def test_where_a_fork_would_not_be_the_same_nothing_is_forked(submit, write, fake, tmp_path: Path, case: str) -> None:
    text, files, reason = REFUSED[case]
    env = fake(f"open({str(tmp_path / 'count')!r}, 'a').write('x')\n{text}", colours="NAME = 'theirs'")
    for name, content in files.items():
        write(name, content)
    once = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"
    run = submit(f"import os, sys, tensorflow\n{once}\nprint('ran')", env=env, workers=2)
    run.result(LIMIT_S)
    assert reason in why_fresh(run)[0]
    assert said(run) == ["ran", "ran"]
    assert (tmp_path / "ran").read_text() == "xx", "no task has begun twice"
    assert len((tmp_path / "count").read_text()) == 3
    assert left_alive(run) == []


def test_a_template_without_a_listener_leaves_no_traceback_in_the_log_of_a_task(tmp_path: Path) -> None:
    (orders, no_orders), (go, no_go), (nobody, news) = os.pipe(), os.pipe(), os.pipe()
    for end in (no_orders, no_go, nobody):
        os.close(end)
    (tmp_path / "log").touch()
    options = {"orders": orders, "go": go, "news": news, "log": str(tmp_path / "log"), "work": str(tmp_path)}
    options |= {"yields": False, "modules": [], "outside": []}
    words = [sys.executable, REPO / "sdk" / "runtime" / "template.py", json.dumps(options)]
    env, pipes = {"PODLIFT_PARENT": str(os.getpid())}, (orders, go, news)
    done = subprocess.run(words, pass_fds=pipes, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_import_that_fails_is_told_as_the_programs_own(submit, fake) -> None:
    run = submit("def load():\n    import tensorflow\nload()", env=fake("raise ImportError('libcudart.so')"), workers=2)
    with pytest.raises(sdk.RunFailedError, match=r"ImportError: libcudart\.so") as caught:
        run.result(LIMIT_S)
    assert "in load" in str(caught.value)


def test_a_run_can_be_cancelled_while_it_imports(submit, fake) -> None:
    run = submit("import tensorflow", env=fake("import time; time.sleep(600)"), workers=2)
    until(lambda: left_alive(run))
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).reason is sdk.Reason.CANCELLED
    assert left_alive(run) == []


def test_a_killed_supervisor_takes_its_forked_processes_along(submit, fake) -> None:
    run = submit("import tensorflow, time; print('ready', flush=True); time.sleep(600)", env=fake(), workers=2)
    until(lambda: len(said(run)) == 2)
    os.kill(supervisor(run), signal.SIGKILL)
    assert run.wait(LIMIT_S).state is sdk.State.LOST
    until(lambda: left_alive(run) == [])


def test_forked_tasks_are_stopped_with_their_children(submit, fake) -> None:
    run = submit("""
        import signal, subprocess, sys, tensorflow, time
        signal.signal(signal.SIGTERM, lambda number, frame: (print("asked", flush=True), sys.exit(0)))
        subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
        print("ready", flush=True)
        time.sleep(600)
        """, env=fake(), workers=2)  # fmt: skip
    until(lambda: said(run).count("ready") == 2)
    run.cancel(grace_s=30)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert said(run).count("asked") == 2
    assert left_alive(run) == []
