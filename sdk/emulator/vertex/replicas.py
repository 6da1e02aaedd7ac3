"""The worker pools of an emulated job: each replica is a process of this machine in the environment of Vertex AI."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...errors import InputError
from ...process.exit_reasons import MemoryWatch
from ...process.ports import PortReservation
from ...process.redirect import tokens
from ...records.exits import OutOfMemory
from ...storage import own_folders
from . import environment, packages
from .bucket_fs import BucketFs
from .containers.client import ContainerConfig, Containers, OnLine
from .environment import Replica

# The part of the notice before a preemption of a virtual machine that its container gets.
PREEMPTION_GRACE_S = 15.0
_KILLED = 137
_END_S = 30.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOCALHOST = "127.0.0.1"


def missing_isolation() -> str | None:
    """Return which isolation of replicas this system denies, as a sentence; None if it denies none. Probed without a job."""
    with tempfile.TemporaryDirectory(prefix="podlift-emulator-") as scratch:
        containers = Containers(_config(Path(scratch), Path(scratch), [], {}), lambda *_: None, lambda *_: None)
        containers.close()
    refused = containers.refused
    if refused["root"]:
        return (
            f"Emulated jobs see no /gcs, and their host names do not resolve: this system denies them a separate root "
            f"({refused['root']}). Their packages go into separate environments, but nothing prevents a program from "
            "writing into this interpreter's folders itself. Next: run the emulator as root, or allow user namespaces."
        )
    if refused["pids"]:
        return (
            f"A process that an emulated job leaves behind may outlive a kill of the emulator: this system denies it a "
            f"PID namespace ({refused['pids']})."
        )
    return None


class ReplicaProcesses:
    """One attempt of all replicas of a job, as processes.

    None of its methods may be called in the thread that owns the state of the buckets.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        *,
        job_id: str,
        project: str,
        region: str,
        url: str,
        scratch: Path,
        wheels: Path,
        buckets: BucketFs,
        emit: OnLine,
    ) -> None:
        problems = environment.unsupported_pools(job)
        # Absolute: every replica starts in its own folder.
        self._scratch = scratch.absolute()
        if os.pathsep in str(self._scratch):
            problems.append(
                f"Jobs find their Python in PATH, where no folder's name may hold {os.pathsep!r}. Received: "
                f"{str(self._scratch)!r}. Next: name another data folder by --data."
            )
        if problems:
            raise InputError(problems)
        self._job, self._url, self._buckets, self._emit = job, url, buckets, emit
        self._token, self._job_id = urlsplit(url).path.strip("/"), job_id
        self._wheels = wheels.resolve()
        self._replicas = {replica.name: replica for replica in environment.replicas(job)}
        self._service = environment.service_env(job, job_id=job_id, project=project, region=region)
        token = environment.host_token(job_id)
        self._hosts = {name: replica.host(token) for name, replica in self._replicas.items()}
        self._exit_event = threading.Condition()
        self._codes: dict[str, int] = {}
        self._killed: set[str] = set()
        # A SIGKILL that one of these dies of was sent by the emulator.
        self._stopped: set[str] = set()
        self._memory = MemoryWatch()
        self._containers: Containers | None = None
        self._opened = ExitStack()
        self._addresses: dict[Replica, str] = {}
        self._redirect_env: Mapping[str, str] = {}

    def start(self) -> None:
        with ExitStack() as opened:
            own_folders.discard(str(self._scratch), private=False)
            self._scratch.mkdir(parents=True)
            opened.callback(own_folders.discard, str(self._scratch), private=False)
            self._redirect_env = self._buckets.redirect_env(self._url)
            self._buckets.mount()
            opened.callback(self._buckets.unmount)
            reservation = opened.enter_context(closing(PortReservation(list(self._replicas))))
            config = _config(self._scratch, self._buckets.folder, self._buckets.buckets, self._hosts)
            self._containers = opened.enter_context(closing(Containers(config, self._emit, self._on_exit)))
            self._opened = opened.pop_all()
        # Without separate host names, all replicas are on localhost.
        named = not self._containers.refused["root"]
        self._addresses = {
            replica: f"{self._hosts[name] if named else 'localhost'}:{reservation.ports[name]}"
            for name, replica in self._replicas.items()
        }
        for name in self._replicas:
            self._start(name)

    def start_one(self, replica: str) -> None:
        self._buckets.sync()
        self._stopped.discard(replica)
        with self._exit_event:
            self._codes.pop(replica, None)
        self._start(replica)

    def exited(self) -> dict[str, int]:
        """Return the exit codes of the replicas that have exited, as a container's: 128 + the signal.

        Their output was emitted, and the files that they have written below /gcs are objects.
        """
        with self._exit_event:
            return dict(self._codes)

    def wait(self, timeout_s: float, exits: int = 0) -> dict[str, int]:
        """Return `exited()` as soon as it has more than `exits` entries, or after `timeout_s` seconds."""
        with self._exit_event:
            self._exit_event.wait_for(lambda: len(self._codes) > exits, timeout_s)
            return dict(self._codes)

    def out_of_memory(self) -> frozenset[str]:
        with self._exit_event:
            return frozenset(self._killed)

    def terminate(self, grace_s: float) -> None:
        if self._containers is None:
            return
        self._stopped.update(self._replicas)
        self._containers.stop(list(self._replicas), grace_s)
        until = time.monotonic() + grace_s + _END_S
        with self._exit_event:
            while len(self._codes) < len(self._replicas):
                if not self._exit_event.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    left = sorted(set(self._replicas) - set(self._codes))
                    raise TimeoutError(f"{', '.join(left)} did not end within {_END_S:g} s of SIGKILL.")

    def preempt(self, replica: str) -> None:
        """Preempt a replica: SIGTERM, 15 s, SIGKILL. Returns at once; `exited` shows when it has ended."""
        if self._containers is not None:
            self._stopped.add(replica)
            self._containers.stop([replica], PREEMPTION_GRACE_S)

    def kill(self, replica: str) -> None:
        if self._containers is not None:
            self._containers.stop([replica], 0.0)

    def close(self) -> None:
        self._containers = None
        self._opened.close()

    def _on_exit(self, exited: dict[str, tuple[int, int]]) -> None:
        for name, (code, pid) in exited.items():
            if code == _KILLED and pid and name not in self._stopped and self._memory.ended() is OutOfMemory.YES:
                self._killed.add(name)
        try:
            self._buckets.flush()
        except Exception:
            # A full disk, or an emulator that is about to end: the exit of the replica still has to be reported.
            text = f"podlift emulator: the files of {', '.join(exited)} below /gcs are lost."
            sys.stderr.write(f"{text}\n{traceback.format_exc()}")
        with self._exit_event:
            self._codes.update({name: code for name, (code, _) in exited.items()})
            self._exit_event.notify_all()

    def _start(self, name: str) -> None:
        replica = self._replicas[name]
        pool = environment.worker_pools(self._job)[replica.pool]
        home = self._scratch / name
        # A restarted container begins with the files of its image.
        own_folders.discard(str(self._scratch), name, private=False)
        (home / "tmp").mkdir(parents=True)
        python = environment.make_environment(home / ".local")
        packages.configure_pip(home / ".local", self._wheels)
        package = pool.get("pythonPackageSpec")
        command = (
            environment.container_command(pool)
            if package is None
            else packages.package_command(package, home, self._buckets)
        )
        service_env = {**self._service, **environment.cluster_env(replica, self._addresses, self._job["jobSpec"])}
        machine = {
            **python,
            "PATH": f"{python['PATH']}:{_PATH}",
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "HOSTNAME": self._hosts[name],
            "LANG": "C.UTF-8",
        }
        secret = tokens.replica_token(self._token, tokens.ReplicaIdentity(job=self._job_id, name=name))
        emulated = environment.emulator_env(self._url, secret, self._hosts.values())
        pool_env = environment.expand_env(environment.pool_env(pool), service_env)
        stand_in = environment.stand_in_env(pool)
        env = {**machine, **self._redirect_env, **emulated, **stand_in, **service_env, **pool_env}
        if self._containers is not None:
            self._containers.start(name, host=self._hosts[name], command=command, env=env, cwd=str(home))


def _config(scratch: Path, gcs: Path, buckets: list[str], hosts: Mapping[str, str]) -> ContainerConfig:
    root, file = scratch / "root", scratch / "hosts"
    root.mkdir(exist_ok=True)
    own = Path("/etc/hosts")
    text = own.read_text() if own.exists() else f"{_LOCALHOST} localhost\n"
    names = "".join(f"{_LOCALHOST} {host}\n" for host in hosts.values())
    file.write_text(f"{text.rstrip()}\n{names}")
    read_only = environment.read_only_folders()
    return ContainerConfig(
        root=str(root), gcs=str(gcs), buckets=buckets, hosts=str(file), read_only=read_only, scratch=str(scratch)
    )
