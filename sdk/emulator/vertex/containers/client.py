"""The containers of one job: starts and stops them through the container runtime, and reads their output."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Called with a replica's name, "stdout" or "stderr", and a line.
OnLine = Callable[[str, str, str], None]
# Called with exit code and pid by the names of exited replicas, once all their output was emitted.
OnExit = Callable[[dict[str, tuple[int, int]]], None]

# A longer line is split.
MAX_LINE_BYTES = 1 << 16
_CHUNK = 1 << 16
_KILLED = 137
# The kernel ends a killed process at once, unless a disk does not respond.
_END_S = 30.0
# The features that this system denies, once probed: a probe takes as long as the start of a job.
_probe_result: dict[str, dict[str, str]] = {}
_RUN = "import sys; sys.path.append(sys.argv[1]); from containers import runtime; runtime.main(int(sys.argv[2]))"


@dataclass(frozen=True, kw_only=True)
class ContainerConfig:
    """The file system that the replicas of a job see."""

    root: str  # An empty folder, in which their root is assembled
    gcs: str  # The folder that they see as /gcs
    buckets: Sequence[str]  # Its folders that they may write
    hosts: str  # The file that they see as /etc/hosts
    read_only: Sequence[str]  # Folders that they may read only
    scratch: str  # The folder of all their own files, which they may write wherever it lies


@dataclass
class _OutputStream:
    name: str
    kind: str
    rest: bytes = b""

    def feed(self, data: bytes) -> list[str]:
        whole, end, rest = (self.rest + data).rpartition(b"\n")
        *pieces, self.rest = _split_line(rest)
        lines = whole.split(b"\n") if end else []
        return [_decode(piece) for line in lines for piece in _split_line(line)] + [_decode(piece) for piece in pieces]

    def flush(self) -> list[str]:
        return [_decode(self.rest)] if self.rest else []


@dataclass
class _Container:
    streams: set[str] = field(default_factory=lambda: {"stdout", "stderr"})
    code: int | None = None
    pid: int = 0


class Containers:
    def __init__(self, config: ContainerConfig, on_line: OnLine, on_exit: OnExit) -> None:
        self._on_line, self._on_exit = on_line, on_exit
        self._containers: dict[str, _Container] = {}
        self._exited: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._buffer = b""
        self._ready = threading.Event()
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        self.refused = {"root": "the container runtime has ended", "pids": "the container runtime has ended"}
        self._socket, self._process = _start_runtime()
        for source in (self._socket, self._wake_read):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="podlift-containers", daemon=True)
        self._thread.start()
        self._send({**vars(config), "refused": _probe_result.get("refused")})
        self._ready.wait()

    def start(self, name: str, *, host: str, command: list[str], env: dict[str, str], cwd: str) -> None:
        """Start the container of a replica that does not run, with this command, environment and working folder."""
        outputs = {kind: os.pipe() for kind in ("stdout", "stderr")}
        with self._lock:
            self._containers[name] = _Container()
        for kind, (here, _) in outputs.items():
            os.set_blocking(here, False)
            self._selector.register(here, selectors.EVENT_READ, _OutputStream(name, kind))
        request = {"action": "start", "name": name, "host": host, "command": command, "env": env, "cwd": cwd}
        try:
            if not self._send(request, [there for _, there in outputs.values()]):
                self._containers[name].code = _KILLED
        finally:
            for _, there in outputs.values():
                os.close(there)

    def stop(self, names: Sequence[str], grace_s: float) -> None:
        self._send({"action": "stop", "names": list(names), "grace_s": grace_s})

    def close(self) -> None:
        """Kill all containers; all processes that they started have ended when this returns."""
        if self._closing:
            return
        self._closing = True
        self._socket.shutdown(socket.SHUT_WR)
        os.write(self._wake_write, b"c")
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"A container has not ended within {_END_S:g} s of SIGKILL.") from None
        self._thread.join()
        self._selector.close()
        self._socket.close()
        for end in (self._wake_read, self._wake_write):
            os.close(end)

    def _send(self, message: Mapping[str, Any], handles: Sequence[int] = ()) -> bool:
        """Send a request to the runtime; False if it has ended, which the thread will notice."""
        data = json.dumps(message).encode()
        with self._lock:
            try:
                socket.send_fds(self._socket, [len(data).to_bytes(4, "big")], list(handles))
                self._socket.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                return False
        return True

    def _run(self) -> None:
        """Read all messages and output until `close`, and then until the runtime has ended and everything is read."""
        while not self._closing or len(self._selector.get_map()) > 1:
            for key, _ in self._selector.select():
                if isinstance(key.data, _OutputStream):
                    self._read(key.fd, key.data)
                elif key.fd == self._wake_read:
                    os.read(self._wake_read, 1)
                else:
                    self._receive()
            exited, self._exited = self._exited, {}
            if exited:
                self._on_exit(exited)

    def _read(self, handle: int, stream: _OutputStream) -> None:
        data = os.read(handle, _CHUNK)
        for line in stream.feed(data) if data else stream.flush():
            self._emit_line(stream.name, stream.kind, line)
        if not data:
            self._selector.unregister(handle)
            os.close(handle)
            self._containers[stream.name].streams.discard(stream.kind)
            self._report_if_exited(stream.name)

    def _emit_line(self, name: str, kind: str, line: str) -> None:
        try:
            self._on_line(name, kind, line)
        except Exception:
            # A program must not hang in its output, nor its exit be missed, because a line cannot be stored.
            sys.stderr.write(f"podlift emulator: a line of {name} was lost.\n{traceback.format_exc()}")

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except ConnectionResetError:
            data = b""  # it was killed before it had read everything
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "ready" in message:
                self.refused = _probe_result["refused"] = message["ready"]
                self._ready.set()
            else:
                if message["why"]:
                    self._emit_line(message["exited"], "stderr", f"podlift emulator: {message['why']}")
                self._set_exited(message["exited"], message["code"], message["pid"])
        if not data:
            self._selector.unregister(self._socket)
            self._ready.set()
            # All other containers have ended with the runtime, by the kernel if not by the runtime.
            for name, container in list(self._containers.items()):
                if container.code is None:
                    self._set_exited(name, _KILLED, 0)

    def _set_exited(self, name: str, code: int, pid: int) -> None:
        container = self._containers[name]
        container.code, container.pid = code, pid
        self._report_if_exited(name)

    def _report_if_exited(self, name: str) -> None:
        container = self._containers[name]
        if container.code is not None and not container.streams:
            self._exited[name] = (container.code, container.pid)


def _start_runtime() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    here, there = socket.socketpair()
    with there:
        words = [sys.executable, "-I", "-S", "-E", "-c", _RUN, str(Path(__file__).parents[1]), str(there.fileno())]
        # A new session: signals of a terminal are for the emulator.
        process = subprocess.Popen(
            words, env={}, cwd="/", stdin=subprocess.DEVNULL, pass_fds=[there.fileno()], start_new_session=True
        )
    return here, process


def _split_line(line: bytes) -> list[bytes]:
    """Return a line in pieces that are not too long, none of which ends inside a character; [b""] for an empty one."""
    pieces, start = [], 0
    while len(line) - start > MAX_LINE_BYTES:
        stop = start + MAX_LINE_BYTES
        back = next((n for n in range(4) if line[stop - n] & 0xC0 != 0x80), 0)
        pieces.append(line[start : stop - back])
        start = stop - back
    return [*pieces, line[start:]]


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")
