"""What tests and people say to the emulator itself fits into a small body."""

from __future__ import annotations

from starlette.requests import Request

from .gcs.errors import StorageApiError

MAX_BYTES = 1 << 20


async def read_body(request: Request) -> bytes:
    """Return the body of a request to the emulator itself.

    Raises:
        ApiError: it is too large; no more than `MAX_BYTES` of it were read.
    """
    announced, found = request.headers.get("content-length", ""), bytearray()
    if not announced.isdigit() or int(announced) <= MAX_BYTES:
        async for piece in request.stream():
            found += piece
            if len(found) > MAX_BYTES:
                break
        else:
            return bytes(found)
    why = f"A request to the emulator itself may have a body of {MAX_BYTES} bytes at most."
    # What was not read is not waited for.
    raise StorageApiError(413, "uploadTooLarge", why, {"Connection": "close"})
