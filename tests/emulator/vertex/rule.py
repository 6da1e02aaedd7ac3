"""One rule of Google's documents, as a request and the answer that it has to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests
from served import Served

PROJECT, REGION = "acme", "us-central1"
PLACE = f"projects/{PROJECT}/locations/{REGION}"
BUCKETS = f"/storage/v1/b?project={PROJECT}"
# The first request: a method, a path and a body.
Sent = tuple[str, str, Any]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A sentence about a service, a request, and the answer: `name` is the status or the reason of an error."""

    says: str
    method: str = "POST"
    path: str
    body: Any = None
    data: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    before: Sequence[Sent] = ()
    code: int = 200
    part: str = ""  # of the answer's text
    name: str = ""
    # For a path that only an earlier answer tells.
    found: Callable[[Served], str] | None = None

    def answer(self, served: Served) -> requests.Response:
        for method, path, body in self.before:
            made = served.ask(method, path, body)
            assert made.status_code < 300, made.text
        path = self.found(served) if self.found else self.path
        more = {"headers": self.headers, "allow_redirects": False}
        if self.data is not None:
            more["data"] = self.data
        return served.ask(self.method, path, self.body, **more)


def bucket(name: str, location: str = REGION, **fields: Any) -> Sent:
    return ("POST", BUCKETS, {"name": name, "location": location, **fields})


def lacking(**what: Any) -> Sent:
    return ("POST", "/_project", what)
