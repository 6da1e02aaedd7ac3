"""Starts a training script as the tasks of one cluster on this machine, with patches in force; a stand-in for tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from support import REPO as ROOT

BOOT = """
import os, runpy, sys
patched, script = sys.argv[1] == "patched", sys.argv[2]
sys.argv = sys.argv[2:]
sys.path.insert(0, os.path.dirname(script))
if patched:
    from sdk import logs
    from sdk.runtime.patches import install
    logs.start(logs.PLAIN)
    from sdk.runtime.patches.keras_multi_worker import PATCH
    install([PATCH])
runpy.run_path(script, run_name="__main__")
"""


def run(script, arguments, folder, tasks, patched=True, timeout_s=300, python=sys.executable, **environment):
    """Run `script` to the end on that many tasks; returns each task's exit code and output. Kills the remaining ones."""
    folder.mkdir(parents=True, exist_ok=True)
    running = []
    for task in _tasks(tasks):
        name = f"{task['task']['type']}-{task['task']['index']}" if task else "alone-0"
        log = (folder / f"{name}.log").open("wb")
        env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"} | environment
        env |= {"AIP_MODEL_DIR": str(folder), "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
        if task:
            env["TF_CONFIG"] = json.dumps(task)
        command = [python, "-c", BOOT, "patched" if patched else "stock", str(script), *arguments]
        running.append((subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True), log))
    return _wait(running, timeout_s)


def _tasks(count):
    if count == 1:
        return [None]
    addresses = [f"localhost:{port}" for port in _free_ports(count)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    names = [("chief", 0)] + [("worker", index) for index in range(count - 1)]
    return [{"cluster": cluster, "task": {"type": type_, "index": index}} for type_, index in names]


def _free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _wait(running, timeout_s):
    deadline = time.monotonic() + timeout_s
    try:
        while any(process.poll() is None for process, _ in running) and time.monotonic() < deadline:
            if any(process.poll() for process, _ in running):  # one has failed: the others would wait for it
                time.sleep(3)
                break
            time.sleep(0.05)
    finally:
        for process, log in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            log.close()
    return [(process.returncode, Path(log.name).read_text(errors="replace")) for process, log in running]
