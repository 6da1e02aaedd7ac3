"""The options of a Ray cluster. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from ...job.credentials import formats_in
from ...job.findings import Facts, Finding
from ...job.policies import Resources
from ...job.targets import Target
from ...job.values import JsonObject, Seconds, Validator, changed

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# A variable in the value of a header.
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)
_CLIENT = "ray"
_SECRET = ("authorization", "cookie", "token", "key", "secret")


def http_address(value: str) -> str:
    """Return the URL of a server without a slash at its end; ValueError for anything else."""
    parts = urlsplit(value)
    if parts.scheme == _CLIENT:
        raise ValueError(
            "ray:// is the protocol of Ray Client, which needs an equal version of Ray here. Jobs are submitted to the "
            f"dashboard: http://{parts.hostname or 'HOST'}:8265"
        )
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise ValueError("must be the URL of the dashboard, such as http://HOST:8265")
    if parts.username or parts.password:
        raise ValueError("must not hold a user or a password, because it is stored: use headers")
    return value.rstrip("/")


def header_values(value: dict[str, str]) -> dict[str, str]:
    """Return headers that hold the names of variables, as $NAME, instead of credentials."""
    problems = []
    for name, text in value.items():
        if not _HEADER.fullmatch(name) or not text.isprintable():
            problems.append(f"{name!r} is not a header of HTTP")
        elif not VARIABLE.search(text) and (
            any(word in name.lower() for word in _SECRET) or any(True for _ in formats_in(text))
        ):
            problems.append(
                f"the value of {name!r} looks like a credential, and would be stored in the plan: name a variable that holds "
                f'it, such as "Bearer $RAY_TOKEN"'
            )
    if problems:
        raise ValueError("; ".join(problems))
    return value


@dataclass(frozen=True, kw_only=True)
class Ray(Target):
    """Which Ray cluster runs a job, and how: `sdk.submit("train.py", workers=2, backend=Ray(address="http://head:8265"))`.

    Args:
        address: URL of the cluster's dashboard, which serves Ray's Jobs API: "http://head:8265". By default
            RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265.
        pending_timeout_s: The longest time to wait for the resources of all tasks. Ray itself would never stop waiting.
        headers: HTTP headers of requests to the cluster, such as `{"Authorization": "Bearer $RAY_TOKEN"}`. Each client
            replaces $NAME by its variable of that name: a plan holds no token.
        raw: JSON to merge into the request last, such as `{"placement": {"tasks": {"chief-0": {"CPU": 4}}}}`,
            `{"placement": {"strategy": "STRICT_SPREAD"}}` for tasks on different nodes, or
            `{"job": {"runtime_env": {"pip": ["scikit-learn"]}}}`. A list is replaced as a whole, or one of its items by its
            number; None removes.
    """

    title: ClassVar[str] = "Ray"
    metavars: ClassVar[Mapping[str, str]] = {"address": "URL", "headers": "JSON", "raw": "JSON"}
    instead: ClassVar[Mapping[str, str]] = {"runtime_env": "raw = { job = { runtime_env = { ... } } }"}

    address: Annotated[str, Validator(http_address)] | None = None
    pending_timeout_s: Seconds = 600.0
    headers: Annotated[dict[str, str], Validator(header_values)] = field(default_factory=dict)
    raw: Annotated[dict[str, object], JsonObject()] = field(default_factory=dict)

    def located(self, resources: Resources, facts: Facts) -> tuple[Target, list[Finding]]:
        address = facts.online.get("ray", {}).get("address")
        return (self, []) if self.address or not address else (changed(self, address=address), [])

    def lines(self, resources: Resources) -> list[tuple[str, str]]:
        return [("cluster", f"Ray at {self.address}")]
