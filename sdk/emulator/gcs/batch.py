"""Batches: many small requests in the body of one, as clients send them to delete or change many objects."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from email.message import Message
from email.parser import BytesParser
from http import HTTPStatus

from starlette.responses import Response

from .call import Call
from .errors import StorageApiError, invalid

_MAX_REQUESTS = 1000
# (method, target, headers, body) -> answer
Perform = Callable[[str, bytes, dict[str, str], bytes], Awaitable[Response]]


async def batch(call: Call, perform: Perform) -> Response:
    """Answer the requests one after the other."""
    body = await call.read_all()
    await call.apply_faults("")
    head = f"Content-Type: {call.headers.get('content-type', '')}\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + body)
    if not message.is_multipart():
        raise invalid("A batch is a multipart/mixed body with a request in each part.")
    parts = message.get_payload()
    if not isinstance(parts, list) or len(parts) > _MAX_REQUESTS:
        raise invalid(f"A batch has at most {_MAX_REQUESTS} requests.")
    mark = f"batch_{uuid.uuid4().hex}"
    answers = [await _answer(part, perform) for part in parts if isinstance(part, Message)]
    content = b"".join(f"--{mark}\r\n".encode() + answer + b"\r\n" for answer in answers) + f"--{mark}--\r\n".encode()
    return Response(content, headers={"Content-Type": f"multipart/mixed; boundary={mark}"})


async def _answer(part: Message, perform: Perform) -> bytes:
    number = str(part.get("Content-ID", "")).strip("<>")
    try:
        answer = await perform(*_request(part))
    except StorageApiError as error:
        answer = error.response()
    phrase = HTTPStatus(answer.status_code).phrase
    lines = [
        "Content-Type: application/http",
        *([f"Content-ID: <response-{number}>"] if number else []),
        "",
        f"HTTP/1.1 {answer.status_code} {phrase}",
        f"Content-Type: {answer.headers.get('content-type', 'text/plain')}",
        f"Content-Length: {len(answer.body)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + bytes(answer.body)


def _request(part: Message) -> tuple[str, bytes, dict[str, str], bytes]:
    payload = part.get_payload(decode=True)
    text = payload if isinstance(payload, bytes) else b""
    head, _, body = text.replace(b"\r\n", b"\n").lstrip(b"\n").partition(b"\n\n")
    line, _, rest = head.partition(b"\n")
    words = line.split(b" ")
    if len(words) != 3:
        raise invalid(f"A part of the batch does not begin with a request: {line[:100]!r}.")
    pairs = (each.partition(":") for each in rest.decode("latin-1").split("\n") if each)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    target = words[1]
    if target.startswith((b"http://", b"https://")):
        target = b"/" + target.split(b"/", 3)[-1]
    return words[0].decode("latin-1").upper(), target, headers, body
