"""Limits of a server on loopback: how many connections may wait for their request, and for how long.

Any user of the machine can open connections. It needs uvicorn, which every server here needs.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
import sys
from collections import Counter
from typing import Any

import h11
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import InputError

# How long a client may take to send the head of a request, and how many clients of other users may be waiting for theirs.
HEAD_S = 10.0
MAX_WAITING = 128
_MOST_BACKLOG = 2048


def backlog() -> int:
    """Return how many connections a server may accept at once: few of the files that this process may open."""
    return max(16, min(_MOST_BACKLOG, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))


def bind(port: int) -> socket.socket:
    """Return a socket that holds a port of the loopback interface, 0 for any free one, and does not listen yet."""
    # The protocol is named, or asyncio does not turn off the delay of small packets: 40 ms for each request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise _unusable(port, error) from None
    return listener


def listen(listener: socket.socket) -> None:
    try:
        listener.listen(backlog())
    except OSError as error:
        raise _unusable(listener.getsockname()[1], error) from None


def _unusable(port: int, error: Exception) -> InputError:
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    return InputError(f"The port cannot be used: {reason}. Received: {port}. Next: --port 0 takes any free one.")


class RequestHeads:
    """The open connections by the client's address.

    A connection without an admitted request is cut after `head_s` seconds. When more than `MAX_WAITING` of other users wait,
    the oldest of the user who has most is cut; of this user a fifth of the files that this process may open may wait, so that
    no other user keeps him out, and a burst of his own is served. At most `max_admitted` clients that have shown the token
    may be connected: by default half of the files.
    """

    def __init__(self, head_s: float = HEAD_S, max_admitted: int | None = None) -> None:
        self.open: dict[Any, Any] = {}
        self.waiting: dict[Any, Any] = {}
        self._users: dict[Any, int | None] = {}  # of the waiting clients
        self.head_s = head_s
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_admitted = max_admitted or max(MAX_WAITING, files // 2)
        self._max_own = max(MAX_WAITING, files // 5)

    def protocol(self) -> type[H11Protocol]:
        heads = self

        class WatchedProtocol(H11Protocol):
            head_timer: asyncio.TimerHandle | None = None

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                heads.open[self.client] = heads.waiting[self.client] = transport
                peer, here = self.client, self.server
                heads._users[peer] = user_at(peer, (here[0], here[1] or 0)) if peer and here else None
                heads._limit_waiting(os.geteuid())
                self.limit_head()

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                self.limit_head()

            def on_response_complete(self) -> None:
                super().on_response_complete()
                self.limit_head()

            def limit_head(self) -> None:
                """Limit the time of a head, from the connection or its first byte on; an admitted client may idle."""
                idle = self.conn.their_state is h11.IDLE
                begun = self.cycle is None or self.conn.trailing_data[0] or self.client in heads.waiting
                if idle and begun:
                    self.head_timer = self.head_timer or self.loop.call_later(heads.head_s, self.transport.abort)
                elif self.head_timer is not None:
                    self.head_timer.cancel()
                    self.head_timer = None

            def connection_lost(self, exc: Exception | None) -> None:
                heads.open.pop(self.client, None)
                heads._forget(self.client)
                if self.head_timer is not None:
                    self.head_timer.cancel()
                super().connection_lost(exc)

        return WatchedProtocol

    def admit(self, scope: Scope) -> bool:
        """Admit the client of a request that has shown the token; False if too many are admitted."""
        if self._forget(tuple(scope["client"])) is None:
            return True
        return len(self.open) - len(self.waiting) <= self._max_admitted

    def _limit_waiting(self, own: int) -> None:
        counts = Counter(self._users.values())
        mine = counts.pop(own, 0)
        if mine > self._max_own:
            self._cut_oldest(own)
        if counts.total() > MAX_WAITING:
            self._cut_oldest(counts.most_common(1)[0][0])

    def _cut_oldest(self, user: int | None) -> None:
        self._forget(next(client for client, other in self._users.items() if other == user)).abort()

    def _forget(self, client: Any) -> Any:
        self._users.pop(client, None)
        return self.waiting.pop(client, None)


_NETLINK, _SOCK_DIAG, _BY_FAMILY, _REQUEST, _LISTENS = 16, 4, 20, 1, 10
_NO_COOKIE = 0xFFFFFFFF
_WAIT_S = 0.1


def user_at(peer: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user of the socket at `peer` that is connected to `server`; None if unknown.

    Both are on loopback. Linux has a list of its sockets.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        ends = [socket.inet_aton(host) for host, _ in (peer, server)]
        addresses = struct.pack("!HH16s16s", peer[1], server[1], *ends) + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
        query = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _NO_COOKIE) + addresses
        with socket.socket(_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(_WAIT_S)
            kernel.send(struct.pack("=IHHII", 16 + len(query), _BY_FAMILY, _REQUEST, 0, 0) + query)
            answer = kernel.recv(1 << 12)
        kind, state = struct.unpack_from("=H", answer, 4)[0], answer[17]
        user, inode = struct.unpack_from("=II", answer, 80)
    except (OSError, struct.error, IndexError):
        return None
    # A socket that its process has closed has no user any more, and the kernel says 0.
    return user if kind == _BY_FAMILY and state != _LISTENS and inode else None
