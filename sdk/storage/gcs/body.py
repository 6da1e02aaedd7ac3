"""The body of an upload in one request: what describes the object, then its buffers, sent piece by piece.

The client library joins all of it in memory first, which takes four times the CPU of the training's process.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..checksums import flat
from ..store import Buffer

# Each piece has the connection's timeout for itself, and those below it are joined: each costs a call of the system.
_PIECE = 512 << 10
_SMALL = 64 << 10


class UploadBody:
    """A multipart/related body; it may be read again from its start.

    Args:
        about: the object's metadata, as JSON.
        data: its bytes.
        check: called before each piece; what it raises ends the upload.
    """

    def __init__(self, about: Mapping[str, Any], data: Sequence[Buffer], check: Callable[[], None]) -> None:
        mark = secrets.token_hex(16)
        self.type = f"multipart/related; boundary={mark}"
        head = f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n--{mark}\r\n"
        self._head = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
        self._tail = f"\r\n--{mark}--\r\n".encode()
        self._views = [flat(part) for part in data]
        self._check = check

    def __len__(self) -> int:
        return len(self._head) + sum(map(len, self._views)) + len(self._tail)

    def __iter__(self) -> Iterator[Buffer]:
        joined = bytearray(self._head)
        for view in [*self._views, memoryview(self._tail)]:
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                if len(piece) < _SMALL:
                    joined += piece
                if joined and (len(piece) >= _SMALL or len(joined) >= _PIECE):
                    yield from self._sent(joined)
                    joined = bytearray()
                if len(piece) >= _SMALL:
                    yield from self._sent(piece)
        if joined:
            yield from self._sent(joined)

    def _sent(self, piece: Buffer) -> Iterator[Buffer]:
        self._check()
        yield piece
