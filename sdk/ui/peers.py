"""Finds out which user of this machine is at the other end of a connection on loopback, from Linux's own list of sockets."""

from __future__ import annotations

import socket
import struct
import sys

_NETLINK, _SOCK_DIAG, _BY_FAMILY, _REQUEST, _LISTENS = 16, 4, 20, 1, 10
_NO_COOKIE = 0xFFFFFFFF
_WAIT_S = 0.1


def user_at(peer: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user whose socket has the address `peer` and is connected to `server`; None if that is not known."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        ends = [socket.inet_aton(host) for host, _ in (peer, server)]
        addresses = struct.pack("!HH16s16s", peer[1], server[1], *ends) + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
        asked = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _NO_COOKIE) + addresses
        with socket.socket(_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(_WAIT_S)
            kernel.send(struct.pack("=IHHII", 16 + len(asked), _BY_FAMILY, _REQUEST, 0, 0) + asked)
            answer = kernel.recv(1 << 12)
        kind, state = struct.unpack_from("=H", answer, 4)[0], answer[17]
        user, inode = struct.unpack_from("=II", answer, 80)
    except (OSError, struct.error, IndexError):
        return None
    # A socket that its process has closed has no user any more, and the kernel says 0.
    return user if kind == _BY_FAMILY and state != _LISTENS and inode else None
