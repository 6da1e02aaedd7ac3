"""Reserves ports, so that no other process can bind them between choice and use.

The supervisor binds each port with SO_REUSEPORT and never listens. A task with `TF_GRPC_REUSE_PORT=true` binds the same port.
Each attempt gets new ports: with an old and a new listener on one port, the kernel splits the connections between them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence


class PortReservation:
    """Holds one port per name until `close`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._sockets: list[socket.socket] = []
        self.ports: dict[str, int] = {}
        try:
            for name in names:
                self._sockets.append(_bind())
                self.ports[name] = int(self._sockets[-1].getsockname()[1])
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def _bind() -> socket.socket:
    # TensorFlow binds [::], so the same family must be reserved. Without IPv6 it falls back to 0.0.0.0.
    try:
        return _bound(socket.AF_INET6, "::")
    except OSError:
        return _bound(socket.AF_INET, "")


def _bound(family: socket.AddressFamily, address: str) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address, 0))
    except OSError:
        sock.close()
        raise
    return sock
