"""Errors in the form in which Cloud Storage answers them."""

from __future__ import annotations

from typing import Any

from ..errors import ApiError

_REASONS = {
    304: "conditionNotMet",
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    405: "methodNotAllowed",
    409: "conflict",
    410: "gone",
    412: "conditionNotMet",
    413: "uploadTooLarge",
    416: "requestedRangeNotSatisfiable",
    429: "rateLimitExceeded",
    500: "internalError",
    501: "notImplemented",
}


class StorageApiError(ApiError):
    """A request that is answered with an error; `reason` is a word, by default the one that belongs to the code."""

    def __init__(self, code: int, message: str, headers: dict[str, str] | None = None, *, reason: str = "") -> None:
        super().__init__(code, message, headers)
        self.reason = reason or _REASONS.get(code, "backendError")

    def body(self) -> dict[str, Any]:
        detail = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.code, "message": self.message, "errors": [detail]}}


def invalid(message: str) -> StorageApiError:
    return StorageApiError(400, message)


def not_emulated(what: str) -> StorageApiError:
    # 405: gcloud repeats a request for half a minute after 501.
    return StorageApiError(405, f"podlift's emulator of Cloud Storage does not know {what}.", reason="notImplemented")
