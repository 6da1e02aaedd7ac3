"""Errors in the form in which Vertex AI and Cloud Logging answer them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..errors import ApiError

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


class VertexApiError(ApiError):
    """A request that is answered with an error; `status` is its name, by default the one that belongs to the code."""

    def __init__(
        self,
        code: int,
        message: str,
        headers: dict[str, str] | None = None,
        *,
        status: str = "",
        details: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__(code, message, headers)
        self.status = status or _STATUS.get(code, "UNKNOWN")
        self.details = list(details)

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message, "status": self.status}
        if self.details:
            error["details"] = self.details
        return {"error": error}


def invalid(problems: Sequence[tuple[str, str]]) -> VertexApiError:
    """Return the error for an invalid request: the field, as the proto names it, and a sentence for each mistake."""
    violations = [{"field": field, "description": text} if field else {"description": text} for field, text in problems]
    detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}
    return VertexApiError(400, "\n".join(text for _, text in problems), details=[detail])


def unknown_name(name: str) -> VertexApiError:
    text = f"Invalid JSON payload received. Unknown name {json.dumps(name)[:100]}: Cannot find field."
    return invalid([(name[:100], text)])


def not_found(name: str) -> VertexApiError:
    return VertexApiError(404, f"The {name} does not exist.")
