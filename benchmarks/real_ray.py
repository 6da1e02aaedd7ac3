"""Real Ray clusters on loopback: one node by `ray start`, and several by Ray's own class for tests, with Ray's own Python.

Usage: `cluster = RayCluster(Path("ray/bin/python"))`, then `sdk.Ray(address=cluster.address)` as the backend.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import requests

from sdk.storage import own_folders

# Ray itself gives up after 30 s, which a busy machine may need for several of its processes.
_START_S, _STARTS = 90.0, 3
# On a busy machine, its processes are late for each other: without these, one of them gives up, and the cluster with it.
_PATIENCE = {
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "300",
}
_SEVERAL = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": True, "dashboard_host": "127.0.0.1",
    "dashboard_port": int(sys.argv[1]), "dashboard_agent_listen_port": int(sys.argv[2])})
nodes = []
print("ready", flush=True)
for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "add":
        nodes.append(cluster.add_node(num_cpus=int(number)))
    elif word == "remove":
        cluster.remove_node(nodes.pop(int(number)), allow_graceful=False)
    print("done", flush=True)
"""


def free_ports(count: int) -> list[int]:
    """Return ports above those that Ray gives to its workers."""
    held = []
    # Two clusters that start at the same time must not choose the same ones, also if their processes have the same seed.
    for port in random.SystemRandom().sample(range(22000, 32000), 500):
        found = socket.socket()
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            found.close()
            continue
        held.append(found)
        if len(held) == count:
            break
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class RayCluster:
    """A cluster on this machine, until `close`.

    Args:
        python: of the environment that has Ray and TensorFlow.
        nodes: the CPUs of each further node, beside a head without any; with none, the head has four.
        more: further options of `ray start`.
        env: further variables of the cluster.
    """

    def __init__(
        self, python: Path, *nodes: int, more: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        # A longer path would not fit into the names of Ray's sockets.
        self.folder = tempfile.mkdtemp(prefix="pl-ray-")
        self.port, agent, gcs, client = free_ports(4)
        self.address = f"http://127.0.0.1:{self.port}"
        own = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        self._env = {
            **own,
            **_PATIENCE,
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": self.folder,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            # Else it depends on whether this user has ever called `ray.init()`.
            "RAY_AUTH_MODE": "disabled",
            # By default 15: beside other tests, tasks would wait for minutes.
            "RAY_worker_niceness": "0",
            **(env or {}),
        }
        if nodes:
            command = [str(python), "-c", _SEVERAL, str(self.port), str(agent)]
        else:
            command = [
                str(python.parent / "ray"), "start", "--head", "--block", "--num-cpus=4", "--dashboard-host=127.0.0.1",
                f"--dashboard-port={self.port}", f"--port={gcs}", f"--dashboard-agent-listen-port={agent}",
                f"--ray-client-server-port={client}", "--disable-usage-stats", *more,
            ]  # fmt: skip
        self._log = open(f"{self.folder}/start.log", "wb")  # noqa: SIM115
        starts = 1
        self._process = self._start(command, is_told=bool(nodes))
        try:
            while not self._answers():
                if starts == _STARTS:
                    raise RuntimeError(f"Ray did not start: {Path(self._log.name).read_text()[-2000:]}")
                starts += 1
                self._end_all()
                self._process = self._start(command, is_told=bool(nodes))
            for cpus in nodes:
                self.tell(f"add {cpus}")
        except BaseException:
            self.close()
            raise

    def _start(self, command: Sequence[str], *, is_told: bool) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self._env,
            cwd=self.folder,
            stdin=subprocess.PIPE if is_told else subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_told else self._log,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def _answers(self) -> bool:
        if self._process.stdin is not None:
            self._answer("ready")
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(requests.RequestException):
                if requests.get(f"{self.address}/api/jobs/", timeout=2, headers=self.headers).status_code == 200:
                    return True
            time.sleep(0.1)
        return False

    @property
    def headers(self) -> dict[str, str]:
        token = self._env.get("RAY_AUTH_TOKEN")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def tell(self, command: str) -> None:
        """Say "add CPUS" or "remove INDEX", and wait until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._answer("done")

    def _answer(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise RuntimeError(f"Ray has ended: {Path(self._log.name).read_text()[-2000:]}")

    def close(self) -> None:
        self._end_all()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()
        own_folders.discard(self.folder)

    def _end_all(self) -> None:
        found = [self._process]
        with suppress(psutil.NoSuchProcess):
            found = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        # Workers are children of a raylet, which may be gone: their command names the folder of the session.
        for each in psutil.process_iter(["cmdline", "environ"]):
            with suppress(psutil.Error, TypeError):
                if any(self.folder in word for word in each.info["cmdline"] or ()):
                    found.append(each)
        for each in found:
            with suppress(psutil.Error, ProcessLookupError):
                os.kill(each.pid, signal.SIGTERM)
        psutil.wait_procs([psutil.Process(each.pid) for each in found if psutil.pid_exists(each.pid)], timeout=5)
        for each in found:
            with suppress(psutil.Error, ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        self._process.wait(10)
