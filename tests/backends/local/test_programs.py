"""Programs as users write them: the run must not be different from `python program.py`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from local_runs import client
from support import LIMIT_S, full_only, said

import sdk

pytestmark = pytest.mark.process

PROGRAMS = {
    "a fork that leaves by an exception": """
        import os
        if os.fork() == 0:
            raise ValueError("child only")
        os.wait()
        print("fine")
    """,
    "a program that closes its stdout": "import sys\nprint('fine')\nsys.stdout.close()",
    "a class of the program in a spawned process": """
        import dataclasses, multiprocessing

        @dataclasses.dataclass
        class Point:
            x: int

        def shift(point):
            return Point(point.x + 1)

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(shift, [Point(1)]))
    """,
    "exit handlers and threads after the last line": """
        import atexit, threading
        atexit.register(lambda: print("handled", flush=True))
        threading.Thread(target=lambda: (threading.main_thread().join(), print("late", flush=True))).start()
    """,
    "an exit code that is no integer of the kernel's": "import sys\nprint('fine')\nsys.exit(256)",
    "an exit code that is no integer": "import sys\nprint('fine')\nsys.exit(75.0)",
}


# Their paths in the code have another program.
RARE = {"a program that closes its stdout", "an exit code that is no integer of the kernel's"}


@pytest.mark.parametrize("name", [full_only(name) if name in RARE else name for name in PROGRAMS])
def test_a_program_ends_and_prints_as_it_does_by_itself(write, name: str) -> None:
    script = write("program.py", PROGRAMS[name])
    alone = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    run = sdk.submit("program.py")
    code = 1 if "75.0" in PROGRAMS[name] else 0
    assert (run.wait(LIMIT_S).exit_code, alone.returncode) == (code, code)
    printed = alone.stdout.splitlines()
    assert [line for line in said(run) if line in printed] == printed


@pytest.mark.full
def test_reports_of_forked_and_spawned_children_arrive_and_harm_nothing(submit) -> None:
    run = submit("""
        import multiprocessing, sys
        import sdk
        def child(value):
            ctx = sdk.context()
            ctx.report({"a": value})
            print(ctx.run_id != "", ctx.task, flush=True)
        if __name__ == "__main__":
            for number, way in enumerate(("fork", "spawn")):
                process = multiprocessing.get_context(way).Process(target=child, args=(number,))
                process.start()
                process.join()
                assert process.exitcode == 0
            sdk.context().report({"a": 2})
        """, workers=2)  # fmt: skip
    run.result(LIMIT_S)
    assert [row["a"] for row in run.metrics()] == [0, 1, 2]
    assert said(run, "worker-0") == ["True worker-0"] * 2


@pytest.mark.fidelity("chief-decides", "local")
def test_success_of_the_chief_is_not_undone_by_the_failures_that_its_end_causes(submit) -> None:
    run = submit("""
        import json, os, pathlib, time
        mark = pathlib.Path(os.environ["AIP_MODEL_DIR"], "pid")
        if os.environ["PODLIFT_TASK"] == "chief-0":
            # The kernel takes its time to give back so much, and nobody can wait for the process until then.
            much = b"x" * (600 << 20)
            mark.write_text(str(os.getpid()))
            os._exit(0)
        else:
            while not mark.exists() or not mark.read_text():
                time.sleep(0.001)
            while pathlib.Path("/proc", mark.read_text(), "exe").exists():
                time.sleep(0.0005)
            raise ConnectionError("the chief is gone")
        """, workers=2, limit_exit_wait="0s")  # fmt: skip
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED


@pytest.mark.parametrize("how", ["os._exit(0)", "os.abort()"], ids=["without a word", "by a crash after the chief"])
def test_a_worker_that_leaves_does_not_keep_the_chief(submit, how: str) -> None:
    run = submit(f"""
        import os, pathlib, time
        if os.environ["PODLIFT_TASK"] != "chief-0":
            events = pathlib.Path(os.environ["PODLIFT_RUN"], "events")
            while {how!r} == "os.abort()" and not list(events.glob("0001.chief-0.*.done.json")):
                time.sleep(0.05)
            {how}
        """, workers=2, limit_exit_wait="600s")  # fmt: skip
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED


ODD_MODULE = "if True:\n    from os import getcwd as other\ndef __getattr__(n): raise AttributeError(n)"
# It breaks any look at its attributes.
ODD_ERROR = """
class Answer(Exception):
    def __getattr__(self, name):
        return self.args[0][name]
raise Answer({"code": 7})
"""


@pytest.mark.parametrize(
    ("entry", "text", "kind"),
    [
        ("program.py", "import sys\ndef deep():\n    sys.exit(3)\ndeep()", "SystemExit: 3"),
        ("program:main", ODD_MODULE, "main"),
        ("program.py", ODD_ERROR, "chief-0 failed: Answer: {'code': 7}"),
    ],
)
def test_no_traceback_shows_a_frame_of_podlift(write, entry: str, text: str, kind: str) -> None:
    write("program.py", text)
    with pytest.raises(sdk.RunFailedError) as caught:
        sdk.submit(entry).result(LIMIT_S)
    assert kind in str(caught.value)
    assert "bootstrap" not in str(caught.value)
    assert "chief-0.log" in str(caught.value)
    assert text is not ODD_ERROR or 'raise Answer({"code": 7})' in str(caught.value)


def test_a_huge_message_is_cut(submit) -> None:
    run = submit("raise ValueError('x' * 5_000_000)")
    assert len(str(run.wait(LIMIT_S).failure)) < 100_000


@pytest.mark.full
def test_a_client_that_ignores_its_children_does_not_blind_the_supervisor(write) -> None:
    write("program.py", "import os; os._exit(5)")
    url = client("import sdk; from signal import *; signal(SIGCHLD, SIG_IGN); print(sdk.submit('program.py').url)")
    assert "exit code 5" in str(sdk.attach(url).wait(LIMIT_S).failure)


def test_relative_paths_of_python_and_uv_mean_the_callers_folder(write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("../elsewhere/library.py", "WORD = 'found'")
    folder = write("program.py", "import library, os; print(library.WORD, os.environ['UV_CACHE_DIR'])").parent
    for name, path in {"PYTHONPATH": "../elsewhere", "UV_CACHE_DIR": "../wheels"}.items():
        monkeypatch.setenv(name, path)
    monkeypatch.syspath_prepend("../elsewhere")
    with pytest.raises(sdk.InputError, match="imports 'library': it loads from"):
        sdk.plan("program.py")
    run = sdk.submit(sdk.Job("program.py", env={name: sdk.FromCaller() for name in ("PYTHONPATH", "UV_CACHE_DIR")}))
    run.result(LIMIT_S)
    assert said(run) == [f"found {folder.parent / 'wheels'}"]


# The second one waits for its peer, and its abort is no matter of its exit handlers.
ABORTS = {
    "the program had not returned with 0": (1, "import atexit, os\natexit.register(os.abort)\nos.abort()\n"),
    "a peer is lost for which it waits": (2, f"""
import os, threading, time
if os.environ["PODLIFT_TASK"] == "chief-0":
    threading.Timer(1, os.abort).start()
else:
    time.sleep({LIMIT_S})
"""),
}  # fmt: skip


@pytest.mark.parametrize(("workers", "text"), ABORTS.values(), ids=ABORTS)
def test_an_abort_of_the_first_task_is_a_failure(submit, workers: int, text: str) -> None:
    status = submit(text, workers=workers, retry_infrastructure=0).wait(LIMIT_S)
    assert (status.state.value, status.findings) == ("FAILED", ())


def test_an_error_line_of_a_program_that_trained_is_no_finding(submit) -> None:
    run = submit("import sdk\nprint('ValueError: caught')\nsdk.context().report({'loss': 0.5}, step=1)")
    status = run.wait(LIMIT_S)
    assert (status.state.value, status.findings) == ("SUCCEEDED", ())


FLAGS = "FATAL Flags parsing error"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import argparse\nargparse.ArgumentParser().parse_args()", "train.py: error: unrecognized arguments: epochs"),
        (f"import sys\ntry:\n    raise OSError({FLAGS!r})\nexcept OSError:\n    sys.exit(2)", FLAGS),
    ],
)
def test_the_summary_of_a_nonzero_exit_shows_the_reason_printed_before_it(submit, program, reason) -> None:
    status = submit(program, args=["epochs"]).wait(LIMIT_S)
    assert status.failure.message == f"chief-0 failed: SystemExit: 2 ({reason})"
