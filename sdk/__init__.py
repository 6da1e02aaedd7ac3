"""podlift: package TensorFlow/Keras training code and run it, unchanged.

import sdk
run = sdk.submit("train.py", workers=2)
print(run.result().metrics)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. They load at their first use: `import sdk` stays as light as the standard library.
_PUBLIC = {
    "plan": "api",
    "submit": "api",
    "attach": "api",
    "runs": "api",
    "Plan": "planner",
    "Job": "job",
    "Resources": "policies",
    "Code": "policies",
    "Limits": "policies",
    "Retry": "policies",
    "Checkpoints": "policies",
    "Vertex": "policies",
    "FromCaller": "job",
    "Run": "run",
    "RunInfo": "run",
    "Result": "run",
    "State": "status",
    "Reason": "status",
    "Status": "status",
    "context": "runtime.context",
    "Context": "runtime.context",
    "PodliftError": "errors",
    "InputError": "errors",
    "RunNotFoundError": "errors",
    "CorruptRunError": "errors",
    "InsideTaskError": "errors",
    "RunError": "errors",
    "RunFailedError": "errors",
    "RunCancelledError": "errors",
    "RunCheckpointedError": "errors",
    "WaitTimeoutError": "errors",
}
__all__ = [*_PUBLIC]

if TYPE_CHECKING:
    from .api import attach, plan, runs, submit
    from .errors import (
        CorruptRunError,
        InputError,
        InsideTaskError,
        PodliftError,
        RunCancelledError,
        RunCheckpointedError,
        RunError,
        RunFailedError,
        RunNotFoundError,
        WaitTimeoutError,
    )
    from .job import FromCaller, Job
    from .planner import Plan
    from .policies import Checkpoints, Code, Limits, Resources, Retry, Vertex
    from .run import Result, Run, RunInfo
    from .runtime.context import Context, context
    from .status import Reason, State, Status


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sdk' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"sdk.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
