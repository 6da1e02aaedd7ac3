"""What a request is refused with, in the form in which the real service says it."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response


class StorageApiError(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        reason: the word that client libraries look at, such as "conditionNotMet".
        message: a sentence for people.
        headers: further ones of the answer.
    """

    def __init__(self, status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = headers or {}

    def response(self) -> Response:
        """Return the answer."""
        if self.status == 304:
            return Response(status_code=304, headers=self.headers)
        detail = {"message": self.message, "domain": "global", "reason": self.reason}
        body = {"error": {"code": self.status, "message": self.message, "errors": [detail]}}
        return JSONResponse(body, self.status, self.headers)


class DroppedError(Exception):
    """The connection is to be cut without an answer: a fault that somebody asked for."""


def invalid(message: str) -> StorageApiError:
    """Return the error for a request that makes no sense."""
    return StorageApiError(400, "invalid", message)


def no_bucket(name: str) -> StorageApiError:
    """Return the error for a bucket that is not there."""
    return StorageApiError(404, "notFound", f"The specified bucket does not exist. Received: {name!r}.")


def no_object(bucket: str, name: str) -> StorageApiError:
    """Return the error for an object that is not there."""
    return StorageApiError(404, "notFound", f"No such object: {bucket}/{name}")


def not_emulated(what: str) -> StorageApiError:
    """Return the error for what the real service does and this one does not."""
    return StorageApiError(501, "notImplemented", f"podlift's emulator of Cloud Storage does not know {what}.")
