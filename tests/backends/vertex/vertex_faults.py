"""Fault rules of the emulated Vertex AI, and the requests to it."""

from typing import Any

from sdk import api
from sdk.run import Run
from sdk.testing.vertex import Cloud


def vertex(kind: str, operation: str = "", **more: Any) -> dict[str, Any]:
    return {"api": "vertex", "kind": kind, **({"operation": operation} if operation else {}), **more}


# Jobs stay in the queue.
HOLD = vertex("hold")


def flat(text: str) -> str:
    return " ".join(text.split())


def asked(cloud: Cloud, operation: str) -> int:
    return cloud.requests().operations.get(operation, 0)


def only_run(cloud: Cloud) -> Run:
    (info,) = api.runs(root=f"gs://{cloud.bucket}/podlift")
    return api.attach(info.url)
