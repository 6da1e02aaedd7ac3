"""The command, as a shell runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sdk

REPO = str(Path(sdk.__file__).parent.parent)
COMMAND = [sys.executable, "-m", "sdk"]
LIMIT_S = 60
KEYS = {"url", "id", "state", "reason", "exit_code", "attempts", "metrics", "run_dir", "timings"}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": REPO, "COLUMNS": "120", "TERM": "xterm"}


def podlift(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=environment(), timeout=LIMIT_S)


def test_the_first_help_screen_shows_the_few_verbs_and_the_exit_codes() -> None:
    shown = podlift("--help")
    assert shown.returncode == 0
    for verb in ("submit", "plan", "runs", "status", "logs", "wait", "cancel"):
        assert f"\n  {verb} " in shown.stdout
    assert "75 checkpointed" in shown.stdout
    assert podlift("--version").stdout == f"podlift {sdk.__version__}\n"


def test_every_setting_is_an_option_of_submit_and_plan() -> None:
    from sdk import config

    for verb in ("submit", "plan"):
        shown = podlift(verb, "--help").stdout
        names = [*config.SETTINGS, *config.TARGET]
        assert [n for n in names if n != "entry" and f"--{n.replace('_', '-')} " not in shown] == []


def test_submit_in_the_foreground_prints_metrics_on_stdout_and_the_rest_on_stderr(write) -> None:
    write("train.py", "import sdk\nfor i in range(2):\n    sdk.context().report({'loss': 0.5 - i / 4}, step=i)\n")
    shown = podlift("submit", "train.py", "--workers", "2", "--name", "mine")
    assert shown.returncode == 0
    assert shown.stdout == "loss: 0.2500\n"
    for part in (
        "2 x cpu: chief-0, worker-0",
        "RUNNING",
        "step 1 loss: 0.2500",
        "It lives in",
        "Next: podlift status mine-",
    ):
        assert part in shown.stderr


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("1/0", 1), ("import os; os.kill(os.getpid(), 9)", 3), ("exit(75)", 75)]
)
def test_the_exit_code_is_the_runs_and_json_is_one_object_on_one_line(write, text: str, code: int) -> None:
    write("train.py", f"import sdk\nsdk.context().report({{'loss': 0.5}})\n{text}")
    shown = podlift("submit", "train.py", "--json")
    assert shown.returncode == code
    found = json.loads(shown.stdout.splitlines()[-1])
    assert len(shown.stdout.splitlines()) == 1
    assert set(found) == KEYS
    assert found["exit_code"] == code
    assert found["attempts"] == 1
    assert found["metrics"] == {"loss": 0.5}
    again = podlift("wait", found["id"], "--json")
    assert (again.returncode, json.loads(again.stdout.splitlines()[-1])) == (code, found)
    assert ("ZeroDivisionError" in shown.stderr) == (text == "1/0")
    assert "Traceback" not in shown.stderr.replace('Traceback (most recent call last):\n  File "', "", 1)


def test_detach_then_runs_status_logs_wait_and_cancel_from_other_processes(write) -> None:
    write("train.py", "import os, time; print('from', os.environ['PODLIFT_TASK'], flush=True); time.sleep(600)")
    url = podlift("submit", "train.py", "--workers", "2", "--detach").stdout.strip()
    run = sdk.attach(url)
    assert podlift("runs").stdout.startswith(run.id)
    assert json.loads(podlift("runs", "--json").stdout)[0]["url"] == url
    with subprocess.Popen(
        [*COMMAND, "logs", run.id, "-f"], stdout=subprocess.PIPE, text=True, env=environment()
    ) as logs:
        assert logs.stdout is not None
        lines = {
            line.strip()
            for line in (logs.stdout.readline(), logs.stdout.readline(), logs.stdout.readline())
            if "from" in line
        }
        assert json.loads(podlift("status", url, "--json").stdout)["state"] == "RUNNING"
        assert "training" in podlift("status", run.id).stdout
        late = podlift("wait", run.id, "--timeout-s", "0.1")
        assert (late.returncode, "still RUNNING" in late.stderr) == (3, True)
        assert podlift("cancel", run.id, "--grace-s", "0").returncode == 0
        rest = {line.strip() for line in logs.stdout.read().splitlines() if "from" in line}
    assert lines | rest == {"chief-0 | from chief-0", "worker-0 | from worker-0"}
    assert logs.returncode == 0
    assert podlift("wait", run.id).returncode == 4
    assert podlift("logs", run.id, "--task", "worker-0", "--attempt", "1").stdout.splitlines()[-1] == "from worker-0"
    assert podlift("cancel", run.id).returncode == 0


def test_bad_input_is_one_message_with_code_2_and_no_traceback_of_ours(write, root: Path) -> None:
    write("train.py", "print(1)")
    shown = podlift(
        "submit", "trian.py", "--workers", "none", "--env", "X", "--name", "A B", "--backend", "vertex", "--json"
    )
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr
    found = json.loads(shown.stdout)
    assert set(found) > KEYS
    assert (found["exit_code"], found["reason"]) == (2, "bad_input")
    for shown in (
        podlift("submit"),
        podlift("status", "nothing-aaaaaa"),
        podlift("submit", "train.py", "--bogus"),
        podlift("x"),
    ):
        assert (shown.returncode, "Traceback" in shown.stderr) == (2, False)
    assert not root.exists()


def test_plan_shows_everything_and_changes_nothing(write, root: Path) -> None:
    write("train.py", "print(1)")
    shown = podlift("plan", "train.py", "--workers", "2", "--json", "--", "--epochs", "3")
    found = json.loads(shown.stdout)
    assert found["argv"] == ["--epochs", "3"]
    assert [task["name"] for task in found["request"]["tasks"]] == ["chief-0", "worker-0"]
    assert "AIP_MODEL_DIR" in found["request"]["tasks"][0]["env"]
    assert "chief-0, worker-0" in podlift("plan", "train.py", "--workers", "2").stdout
    assert not root.exists()


def press_ctrl_c(times: int) -> tuple[int, str]:
    """Run a submit in a terminal, press Ctrl-C so often, return exit code and what the terminal showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*COMMAND, "submit", "train.py"], environment())
    shown, pressed, deadline = b"", 0, time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        shown += data
        if (pressed == 0 and b"training" in shown) or (pressed == 1 and times == 2 and b"cancels it" in shown):
            os.write(terminal, b"\x03")
            pressed += 1
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode("utf-8", "replace")


def test_ctrl_c_leaves_the_run_alone_and_says_how_to_come_back(write) -> None:
    write("train.py", "import time; time.sleep(600)")
    code, shown = press_ctrl_c(1)
    run = sdk.attach(sdk.runs()[0].id)
    assert code == 130
    assert f"podlift wait {run.id}" in shown
    assert run.status().state is sdk.State.RUNNING
    run.cancel(grace_s=0)
    run.wait(LIMIT_S)


def test_a_second_ctrl_c_cancels(write) -> None:
    write("train.py", "import time; time.sleep(600)")
    code, shown = press_ctrl_c(2)
    assert code == 4, shown
    assert "Cancelling" in shown
    assert sdk.attach(sdk.runs()[0].id).status().state is sdk.State.CANCELLED


def test_a_reader_that_leaves_early_sees_no_traceback(write) -> None:
    write("train.py", "for i in range(20000): print('x' * 80)")
    url = podlift("submit", "train.py", "--detach").stdout.strip()
    sdk.attach(url).wait(LIMIT_S)
    with subprocess.Popen(
        [*COMMAND, "logs", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as reader:
        assert reader.stdout is not None and reader.stderr is not None
        reader.stdout.readline()
        reader.stdout.close()
        assert "Traceback" not in reader.stderr.read()
