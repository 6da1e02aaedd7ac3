"""What a request to Vertex AI or Cloud Logging is refused with, in the form in which Google's APIs say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "INVALID_ARGUMENT",
    409: "ALREADY_EXISTS",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class VertexApiError(Exception):
    """A request that is answered with an error.

    Args:
        code: of HTTP.
        message: a sentence for people.
        status: the name of the error; by default the one that goes with the code.
        details: objects with an "@type" each.
        headers: further ones of the answer.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        status: str = "",
        details: Sequence[dict[str, Any]] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or _STATUS.get(code, "UNKNOWN")
        self.details = list(details)
        self.headers = headers or {}

    def response(self) -> Response:
        """Return the answer."""
        told: dict[str, Any] = {"code": self.code, "message": self.message, "status": self.status}
        if self.details:
            told["details"] = self.details
        return JSONResponse({"error": told}, self.code, self.headers)


def invalid(problems: Sequence[tuple[str, str]]) -> VertexApiError:
    """Return the error for a request that makes no sense.

    Args:
        problems: the field, as the proto calls it, and the sentence about it, of each mistake.
    """
    violations = [{"field": field, "description": text} if field else {"description": text} for field, text in problems]
    detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}
    return VertexApiError(400, "\n".join(text for _, text in problems), details=[detail])


def not_found(name: str) -> VertexApiError:
    """Return the error for a resource that is not there."""
    return VertexApiError(404, f"The {name} does not exist.")


def not_emulated(what: str) -> VertexApiError:
    """Return the error for what the real service does and this one does not."""
    return VertexApiError(501, f"podlift's emulator of Vertex AI does not know {what}.")
