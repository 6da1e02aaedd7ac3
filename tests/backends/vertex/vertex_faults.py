"""Fault rules of the emulated Vertex AI, the requests to it, and a clock that does not wait for it."""

import time
from typing import Any

from support import FakeClock

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


class QuickClock(FakeClock):
    """A fake clock on which each sleep takes at least five seconds; other processes get a moment."""

    def __init__(self) -> None:
        super().__init__(time.time())

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 5.0))
        time.sleep(0.005)
