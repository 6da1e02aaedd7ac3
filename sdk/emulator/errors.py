"""The common parts of all services: errors of requests, the bodies of requests, and sets of words."""

from __future__ import annotations

import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def is_label(text: str, max_characters: int) -> bool:
    # Letters of all scripts are allowed, as long as they are not capital ones.
    letters = all(letter in "-_" or (letter.isalnum() and letter == letter.lower()) for letter in text)
    return letters and len(text) <= max_characters


class ApiError(Exception):
    """A request that is answered with an error; each service has its own form."""

    def __init__(self, code: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.headers = code, message, headers or {}

    def body(self) -> dict[str, Any]:
        raise NotImplementedError

    def response(self) -> Response:
        if self.code == 304:
            return Response(status_code=304, headers=self.headers)
        # In ASCII: a client's text may hold half of a surrogate pair, which no encoding can write.
        return Response(json.dumps(self.body()), self.code, self.headers, "application/json")


# Makes the error of a service from a code and a message.
MakeError = Callable[[int, str], ApiError]


class DroppedError(Exception):
    """A fault cuts the connection without an answer."""


async def with_error_response(work: Awaitable[Response], make_error: MakeError) -> Response:
    try:
        return await work
    except ApiError as error:
        return error.response()
    except (DroppedError, ClientDisconnect):
        raise
    except Exception as error:
        # A defect of the emulator: the client gets an answer, and the other requests continue.
        traceback.print_exc()
        return make_error(500, f"{type(error).__name__}: {error}").response()


async def read_body(pieces: AsyncIterator[bytes], max_bytes: int, make_error: MakeError) -> bytes:
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > max_bytes:
            raise make_error(413, f"This request may have a body of {max_bytes} bytes at most.")
    return bytes(body)
