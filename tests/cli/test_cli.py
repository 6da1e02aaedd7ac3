"""The command, as a shell runs it, and its page, as a person starts and stops it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from page_runs import page_run
from support import LIMIT_S, finished_run, full_only, holds, needs, until

import sdk

pytestmark = pytest.mark.process


def test_submit_in_the_foreground_prints_metrics_on_stdout_and_the_rest_on_stderr(write, podlift) -> None:
    write("train.py", "import sdk\nfor i in range(2):\n    sdk.context().report({'loss': 0.5 - i / 4}, step=i)\n")
    shown = podlift("submit", "train.py", "--workers", "2", "--name", "mine")
    assert (shown.code, shown.stdout) == (0, "loss: 0.2500\n")
    holds(shown.stderr, "2 x cpu: chief-0, worker-0", "SUCCEEDED (done)", "step 1 loss: 0.2500", "Its directory is")
    assert "Next: podlift status mine-" in shown.stderr


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("1/0", 1), ("import os; os.kill(os.getpid(), 9)", 3), ("exit(75)", 75)]
)
def test_the_exit_code_is_the_runs_and_json_is_one_object_on_one_line(write, podlift, here, text, code: int) -> None:
    write("train.py", f"import sdk\nsdk.context().report({{'loss': 0.5}})\n{text}")
    # One code comes from a process, as a shell sees it.
    shown = (podlift if code == 75 else here)("submit", "train.py", "--json")
    (line,) = shown.stdout.splitlines()
    found = json.loads(line)
    assert shown.code == found["exit_code"] == code
    assert (found["attempts"], found["metrics"]) == (1, {"loss": 0.5})
    again = here("wait", found["id"], "--json")
    assert (again.code, json.loads(again.stdout.splitlines()[-1])) == (code, found)
    looked = here("status", found["id"], "--json")
    assert (looked.code, json.loads(looked.stdout)["exit_code"]) == (0, code)
    assert ("ZeroDivisionError" in shown.stderr) == (text == "1/0")
    assert "Traceback" not in shown.stderr.replace('Traceback (most recent call last):\n  File "', "", 1)


def test_detach_then_runs_status_logs_wait_and_cancel_from_other_processes(
    write, podlift, here, environment, tmp_path: Path
) -> None:
    write("train.py", "import os, time; print('from', os.environ['PODLIFT_TASK'], flush=True); time.sleep(600)")
    url = podlift("submit", "train.py", "--workers", "2", "--detach").stdout.strip()
    run = sdk.attach(url)
    followed, expected = tmp_path / "followed", {"chief-0 | from chief-0", "worker-0 | from worker-0"}
    with followed.open("wb") as file:
        logs = subprocess.Popen([sys.executable, "-m", "sdk", "logs", run.id, "-f"], stdout=file, env=environment())
    try:
        until(lambda: expected <= set(followed.read_text().splitlines()), followed.read_text)
        assert here("list").stdout.startswith(run.id)
        assert json.loads(here("list", "--json").stdout)[0]["url"] == url
        assert json.loads(here("status", url, "--json").stdout)["state"] == "RUNNING"
        assert "training" in here("status", run.id).stdout
        late = here("wait", run.id, "--timeout", "0.1s", "--json")
        found = json.loads(late.stdout)
        assert (late.code, found["state"], "still RUNNING" in found["problems"][0]) == (3, "RUNNING", True)
        assert "still RUNNING" in late.stderr
        assert podlift("cancel", run.id, "--grace", "0").code == 0
        assert logs.wait(LIMIT_S) == 0
    finally:
        logs.kill()
        logs.wait()
        run.cancel(grace_s=0)
    assert here("wait", run.id).code == 4
    assert here("logs", run.id, "--task", "worker-0", "--attempt", "1").stdout.splitlines()[-1] == "from worker-0"
    assert here("cancel", run.id).code == 0


def test_plan_shows_everything_and_changes_nothing(project, here, root: Path) -> None:
    shown = here("plan", "train.py", "--workers", "2", "--json", "--", "--epochs", "3")
    found = json.loads(shown.stdout)
    assert found["argv"] == ["--epochs", "3"]
    assert [task["name"] for task in found["request"]["tasks"]] == ["chief-0", "worker-0"]
    assert "AIP_MODEL_DIR" in found["request"]["tasks"][0]["env"]
    assert "chief-0, worker-0" in here("plan", "train.py", "--workers", "2").stdout
    assert not root.exists()


def test_ctrl_c_leaves_the_run_alone_and_says_how_to_come_back(write, in_terminal) -> None:
    write("train.py", "import time; time.sleep(600)")
    code, shown = in_terminal("submit", "train.py", at=("training",))
    run = sdk.attach(sdk.runs()[0].id)
    try:
        assert code == 130
        assert f"podlift wait {run.id}" in shown
        assert run.status().state is sdk.State.RUNNING
    finally:
        run.cancel(grace_s=0)
        run.wait(LIMIT_S)


def test_a_second_ctrl_c_cancels(write, in_terminal) -> None:
    write("train.py", "import time; time.sleep(600)")
    code, shown = in_terminal("submit", "train.py", at=("training", "cancels the run"))
    assert code == 4, shown
    assert "Cancelling" in shown
    assert sdk.attach(sdk.runs()[0].id).status().state is sdk.State.CANCELLED


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "train.py"),
        ("logs", "latest"),
        *map(full_only, [("--help",), ("list",), ("status", "latest"), ("why", "latest"), ("config",)]),
    ],
)
def test_every_verb_ends_quietly_when_its_reader_has_left(project, environment, root: Path, words) -> None:
    finished_run(root)
    for log in (root / "runs").rglob("*.log"):
        log.write_text(("x" * 80 + "\n") * 20_000)
    reader, end = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "sdk", *words]
        done = subprocess.run(command, stdout=end, stderr=subprocess.PIPE, env=environment(), timeout=LIMIT_S)
    finally:
        os.close(end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_followed_logs_end_with_their_reader_although_no_further_line_is_written(write, environment) -> None:
    write("train.py", "import time; print('first', flush=True); time.sleep(600)")
    run = sdk.submit("train.py")
    try:
        command = [sys.executable, "-m", "sdk", "logs", run.id, "-f"]
        logs = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        assert logs.stdout is not None and logs.stderr is not None
        assert logs.stdout.readline() == b"first\n"
        logs.stdout.close()
        assert logs.wait(LIMIT_S) == 141
        assert logs.stderr.read() == b""
        logs.stderr.close()
        assert run.status().state is sdk.State.RUNNING
    finally:
        run.cancel(grace_s=0)


def test_the_command_serves_until_it_is_interrupted(root: Path, environment: Callable[..., dict[str, str]]) -> None:
    needs("starlette", "uvicorn")
    page_run(root, "digits-aaaaaa")
    command = [sys.executable, "-m", "sdk", "ui", str(root)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **pipes) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert urlsplit(url).hostname == "127.0.0.1"
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            with browser.open(url, timeout=LIMIT_S) as answer:
                assert "token" not in answer.url and b"digits-aaaaaa" in answer.read()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 0
    holds(said, "Runs are not affected", lacks=[urlsplit(url).query])


def test_a_port_in_use_and_a_root_that_is_none_are_told(root: Path, here) -> None:
    needs("starlette", "uvicorn")
    root.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        shown = here("ui", str(root), "--port", str(taken.getsockname()[1]))
    assert (shown.code, "The port cannot be used: address already in use" in shown.stderr) == (2, True)
    shown = here("ui", str(root / "nowhere"), "s3://bucket")
    assert shown.code == 2
    holds(shown.stderr, "nowhere", "s3://bucket")
