"""Errors in the form in which Cloud Storage answers them."""

from __future__ import annotations

from typing import Any

from ..errors import ApiError


class StorageApiError(ApiError):
    """A request to Cloud Storage that is answered with an error; `reason` is a word such as "conditionNotMet"."""

    def __init__(self, code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(code, message, headers)
        self.reason = reason

    def body(self) -> dict[str, Any]:
        detail = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.code, "message": self.message, "errors": [detail]}}


def invalid(message: str) -> StorageApiError:
    return StorageApiError(400, "invalid", message)


def no_bucket(name: str) -> StorageApiError:
    return StorageApiError(404, "notFound", f"The specified bucket does not exist. Received: {name!r}.")


def no_object(bucket: str, name: str) -> StorageApiError:
    return StorageApiError(404, "notFound", f"No such object: {bucket}/{name}")


def too_large(message: str) -> StorageApiError:
    return StorageApiError(413, "uploadTooLarge", message)


def internal_error(message: str) -> StorageApiError:
    return StorageApiError(500, "internalError", message)


def not_emulated(what: str) -> StorageApiError:
    return StorageApiError(501, "notImplemented", f"podlift's emulator of Cloud Storage does not know {what}.")
