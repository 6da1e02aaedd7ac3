"""One request on its way through the emulator, and what is to go wrong with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.responses import Response

from .errors import DroppedError, StorageApiError, invalid
from .faults import RequestInfo, StorageFault, StorageFaults
from .routes import StorageRoute
from .state import StorageState

_MAX_JSON_BYTES = 16 << 20
_WITH_BYTES = ("objects.insert", "uploads.chunk", "xml.put")
# google-cloud-storage writes one precondition like this in its uploads.
_SPELLINGS = {"ifMetaGenerationNotMatch": "ifMetagenerationNotMatch"}


@dataclass(kw_only=True)
class Call:
    """A request. `aim` has to be called once it is known which object it is about: it decides what goes wrong.

    Args:
        state: what is stored.
        rules: what may go wrong.
        method: of HTTP.
        raw_path: as it was sent: a slash within a name is still written %2F.
        raw_query: as it was sent.
        headers: with names in lower case.
        base_url: under which the client has reached this server.
        body: the pieces of the body.
        is_gone: tells whether the client has left.
    """

    state: StorageState
    rules: StorageFaults
    method: str
    raw_path: bytes
    raw_query: bytes
    headers: Mapping[str, str]
    base_url: str
    body: AsyncIterator[bytes]
    is_gone: Callable[[], bool]
    route: StorageRoute = field(default_factory=lambda: StorageRoute(operation="unknown"))
    target: str = ""
    fired: list[StorageFault] = field(default_factory=list)
    query_lists: dict[str, list[str]] = field(init=False)
    query: dict[str, str] = field(init=False)
    _faults_applied: bool = False

    def __post_init__(self) -> None:
        self.query_lists = parse_qs(self.raw_query.decode("latin-1"), keep_blank_values=True)
        # Of several parameters of one name the last one holds, except where `multi` is read.
        self.query = {_SPELLINGS.get(name, name): texts[-1] for name, texts in self.query_lists.items()}

    @property
    def path(self) -> str:
        """The decoded path with the query, for people and rules."""
        return unquote(self.raw_path.decode("latin-1")) + (
            "?" + unquote(self.raw_query.decode("latin-1")) if self.raw_query else ""
        )

    async def apply_faults(self, name: str, bucket: str | None = None) -> None:
        """Let happen what is to happen before the work.

        Raises:
            ApiError: the status that a fault asks for.
            DroppedError: a fault cuts the connection.
        """
        if self._faults_applied:
            return
        self._faults_applied = True
        self.target = "/".join(filter(None, (self.route.bucket if bucket is None else bucket, name)))
        seen = RequestInfo(operation=self.route.operation, method=self.method, path=self.path, object=self.target)
        self.fired = self.rules.choose(seen)
        for fault in self.fired:
            if fault.kind == "latency":
                await asyncio.sleep(fault.seconds)
            if fault.kind == "stall":
                await self._stall(fault)
            if fault.kind == "drop_before":
                raise DroppedError
            if fault.kind == "status_before":
                raise injected_error(fault)

    async def _stall(self, fault: StorageFault) -> None:
        if fault.at == "after" or (fault.at == "late" and self.route.operation in _WITH_BYTES):
            return
        await asyncio.sleep(fault.seconds)
        if fault.at != "late" and self.is_gone():
            raise DroppedError

    async def wait_before_commit(self) -> None:
        """Wait with all bytes in hand, if a fault wants an upload to happen when its client has long left."""
        for fault in self.fired:
            if fault.kind == "stall" and fault.at == "late":
                await asyncio.sleep(fault.seconds)

    def fault(self, kind: str) -> StorageFault | None:
        """Return the fault of that kind that happens to this request."""
        return next((fault for fault in self.fired if fault.kind == kind), None)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, or as slowly as a fault wants it."""
        async for piece in self.body:
            async for drop in self.throttled(piece):
                yield drop

    async def throttled(self, piece: bytes) -> AsyncIterator[bytes]:
        """Yield a piece of the body, in drops if a fault wants it."""
        drip = self.fault("drip")
        if drip is None:
            yield piece
            return
        async for drop in throttle(piece, drip.bytes_per_s):
            if self.is_gone():
                raise DroppedError
            yield drop

    async def read_all(self) -> bytes:
        """Return a body that has to fit into memory.

        Raises:
            ApiError: it is too large.
        """
        found = bytearray()
        async for piece in self.pieces():
            found += piece
            if len(found) > _MAX_JSON_BYTES:
                raise StorageApiError(
                    413, "uploadTooLarge", f"This request may have a body of {_MAX_JSON_BYTES} bytes at most."
                )
        return bytes(found)

    async def read_json(self) -> dict[str, Any]:
        """Return the JSON object in the body; an empty one for no body.

        Raises:
            ApiError: it is none.
        """
        try:
            found = json.loads(await self.read_all() or b"{}")
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        raise invalid("The body is no JSON object.")


Handler = Callable[[Call], Awaitable[Response]]


def injected_error(fault: StorageFault) -> StorageApiError:
    """Return the answer that a fault asks for."""
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    return StorageApiError(fault.status, "injected", f"Injected fault: {fault.kind} {fault.status}.", headers)


async def throttle(data: bytes, bytes_per_s: int) -> AsyncIterator[bytes]:
    """Yield the bytes at this speed, ten times a second."""
    step = max(bytes_per_s // 10, 1)
    for start in range(0, len(data), step):
        drop = data[start : start + step]
        await asyncio.sleep(len(drop) / bytes_per_s)
        yield drop
