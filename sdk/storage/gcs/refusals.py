"""What Google Cloud Storage says when it refuses a request, read without any library of Google's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class GcsStatusError(Exception):
    """An answer that is no success.

    Args:
        code: its HTTP status.
        message: the service's own words.
        errors: the items of the answer, each with "reason" and "message".
        headers: of the answer.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message
        self.errors = tuple(errors)
        self.headers = dict(headers or {})


def status_error(response: Any) -> GcsStatusError:
    """Return the error of an answer of `requests`, whatever its body is."""
    try:
        told = response.json()["error"]
        items = [item for item in told.get("errors", ()) if isinstance(item, dict)]
        message = str(told["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        items, message = [], (response.text or "").strip() or str(response.reason or "no reason given")
    return GcsStatusError(response.status_code, message, errors=items, headers=response.headers)
