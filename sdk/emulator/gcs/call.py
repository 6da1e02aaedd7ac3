"""One request on its way through Cloud Storage, and the faults that happen to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import parse_qs, unquote

from starlette.responses import JSONResponse, Response

from ..connections import fall_silent
from ..errors import DroppedError, read_body
from ..faults import Fault, FaultRules
from ..project.state import ProjectState
from .errors import StorageApiError, invalid
from .records import Object, object_resource
from .routes import StorageRoute
from .state import StorageState

_MAX_JSON_BYTES = 16 << 20
_WITH_BYTES = ("objects.insert", "uploads.chunk", "xml.put")
# google-cloud-storage spells one precondition like this in its uploads.
_SPELLINGS = {"ifMetaGenerationNotMatch": "ifMetagenerationNotMatch"}


@dataclass(kw_only=True)
class Call:
    """A request. Each handler calls `apply_faults` once it has the object of the request.

    `raw_path` and `raw_query` are as sent: a slash within a name is still written %2F. Names of `headers` are in lower case.
    """

    state: StorageState
    project: ProjectState
    faults: FaultRules
    method: str
    raw_path: bytes
    raw_query: bytes
    headers: Mapping[str, str]
    base_url: str
    body: AsyncIterator[bytes]
    is_closed: Callable[[], bool]
    route: StorageRoute = field(default_factory=lambda: StorageRoute(operation="unknown"))
    target: str = ""
    fired: list[Fault] = field(default_factory=list)
    query_lists: dict[str, list[str]] = field(init=False)
    query: dict[str, str] = field(init=False)
    _faults_applied: bool = False

    def __post_init__(self) -> None:
        self.query_lists = parse_qs(self.raw_query.decode("latin-1"), keep_blank_values=True)
        # The last of several parameters of one name counts, except where `query_lists` is read.
        self.query = {_SPELLINGS.get(name, name): texts[-1] for name, texts in self.query_lists.items()}

    @property
    def path(self) -> str:
        path = unquote(self.raw_path.decode("latin-1"))
        return f"{path}?{unquote(self.raw_query.decode('latin-1'))}" if self.raw_query else path

    async def apply_faults(self, name: str, bucket: str | None = None) -> None:
        if self._faults_applied:
            return
        self._faults_applied = True
        self.target = "/".join(filter(None, (self.route.bucket if bucket is None else bucket, name)))
        self.fired = self.faults.for_storage(self.route.operation, self.method, self.path, self.target)
        for fault in self.fired:
            if fault.kind == "latency":
                await asyncio.sleep(fault.seconds or 0.0)
            if fault.kind == "stall" and fault.at != "after" and not self._is_late(fault):
                await asyncio.sleep(fault.seconds or 0.0)
                if fault.at != "late" and self.is_closed():
                    raise DroppedError
            if fault.kind == "drop_before":
                raise DroppedError
            if fault.kind in ("status_before", "deny"):
                raise fault.error(StorageApiError, self.route.operation)
            if fault.kind == "silent_before":
                await self.fall_silent(fault)

    async def fall_silent(self, fault: Fault) -> NoReturn:
        await fall_silent(lambda: self.is_closed() or not self.faults.has(fault))

    def _is_late(self, fault: Fault) -> bool:
        return fault.at == "late" and self.route.operation in _WITH_BYTES

    async def wait_before_commit(self) -> None:
        """Wait with all bytes received, if a fault wants an upload to happen long after its client has disconnected."""
        for fault in self.fired:
            if fault.kind == "stall" and self._is_late(fault):
                await asyncio.sleep(fault.seconds or 0.0)

    def fault(self, kind: str) -> Fault | None:
        return next((fault for fault in self.fired if fault.kind == kind), None)

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self.body:
            async for slice_ in self.throttled(piece):
                yield slice_

    async def throttled(self, piece: bytes) -> AsyncIterator[bytes]:
        """Yield a piece of the body, in slices if a fault wants it."""
        drip = self.fault("drip")
        if drip is None:
            yield piece
            return
        async for slice_ in throttle(piece, drip.bytes_per_s):
            if self.is_closed():
                raise DroppedError
            yield slice_

    async def read_all(self) -> bytes:
        return await read_body(self.pieces(), _MAX_JSON_BYTES, StorageApiError)

    async def read_json(self) -> dict[str, Any]:
        if (value := json_object(await self.read_all())) is None:
            raise invalid("The body is not a JSON object.")
        return value

    def object_response(self, record: Object) -> Response:
        return JSONResponse(object_resource(record, self.base_url))


Handler = Callable[[Call], Awaitable[Response]]


def json_object(text: bytes) -> dict[str, Any] | None:
    """Return the object of a body, None for other JSON, or for values that no answer could hold: NaN, half a surrogate pair."""
    try:
        value = _without_nulls(json.loads(text or b"{}"))
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _without_nulls(value: Any, *, listed: bool = False) -> Any:
    """Return JSON without the nulls in objects of lists, which say nothing there; elsewhere a null removes a field."""
    if isinstance(value, list):
        return [_without_nulls(item, listed=True) for item in value]
    if isinstance(value, dict):
        entries = {name: item for name, item in value.items() if not (listed and item is None)}
        return {name: _without_nulls(item, listed=listed) for name, item in entries.items()}
    return value


async def throttle(data: bytes, bytes_per_s: int) -> AsyncIterator[bytes]:
    """Yield the bytes at this speed, ten times a second."""
    step = max(bytes_per_s // 10, 1)
    for start in range(0, len(data), step):
        slice_ = data[start : start + step]
        await asyncio.sleep(len(slice_) / bytes_per_s)
        yield slice_
