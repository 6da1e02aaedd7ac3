"""podlift: package TensorFlow/Keras training code and run it, unchanged.

import sdk
run = sdk.submit("train.py", workers=2)
print(run.result().metrics)
"""

from __future__ import annotations

from . import interrupts  # before anything else

# isort: split
from typing import TYPE_CHECKING, Any

from . import backends  # fills the table of the backends' options

__version__ = "0.2.0"

# The public names of each module. They load at first use, so that `import sdk` stays as light as the standard library.
_MODULES = {
    "api": "plan submit attach runs models",
    "job.plan": "Plan",
    "job.job": "Job FromCaller",
    "job.secrets": "Secret",
    "job.policies": "Resources Code Limits Retry Checkpoints",
    "backends.local.options": "Local",
    "backends.vertex.options": "Vertex",
    "backends.ray.options": "Ray",
    "backends.kubernetes.options": "Kubernetes",
    "job.gates": "Gate",
    "run": "Run RunInfo Result",
    "schedules.handle": "schedule Schedule",
    "sweeps.handle": "sweep Sweep",
    "sweeps.space": "LogUniform Uniform IntUniform Choice",
    "model_registry.registry": "Registry",
    "model_registry.models": "Model ModelVersion",
    "status": "State Reason Status",
    "runtime.context": "context Context",
    "errors": "PodliftError InputError RunNotFoundError CorruptRunError InsideTaskError RunError RunFailedError"
    " RunCancelledError RunCheckpointedError WaitTimeoutError",
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = [*_PUBLIC]

if TYPE_CHECKING:  # `as` makes these names public for a strict type checker
    from .api import attach as attach
    from .api import models as models
    from .api import plan as plan
    from .api import runs as runs
    from .api import submit as submit
    from .backends.kubernetes.options import Kubernetes as Kubernetes
    from .backends.local.options import Local as Local
    from .backends.ray.options import Ray as Ray
    from .backends.vertex.options import Vertex as Vertex
    from .errors import CorruptRunError as CorruptRunError
    from .errors import InputError as InputError
    from .errors import InsideTaskError as InsideTaskError
    from .errors import PodliftError as PodliftError
    from .errors import RunCancelledError as RunCancelledError
    from .errors import RunCheckpointedError as RunCheckpointedError
    from .errors import RunError as RunError
    from .errors import RunFailedError as RunFailedError
    from .errors import RunNotFoundError as RunNotFoundError
    from .errors import WaitTimeoutError as WaitTimeoutError
    from .job.gates import Gate as Gate
    from .job.job import FromCaller as FromCaller
    from .job.job import Job as Job
    from .job.plan import Plan as Plan
    from .job.policies import Checkpoints as Checkpoints
    from .job.policies import Code as Code
    from .job.policies import Limits as Limits
    from .job.policies import Resources as Resources
    from .job.policies import Retry as Retry
    from .job.secrets import Secret as Secret
    from .model_registry.models import Model as Model
    from .model_registry.models import ModelVersion as ModelVersion
    from .model_registry.registry import Registry as Registry
    from .run import Result as Result
    from .run import Run as Run
    from .run import RunInfo as RunInfo
    from .runtime.context import Context as Context
    from .runtime.context import context as context
    from .schedules.handle import Schedule as Schedule
    from .schedules.handle import schedule as schedule
    from .status import Reason as Reason
    from .status import State as State
    from .status import Status as Status
    from .sweeps.handle import Sweep as Sweep
    from .sweeps.handle import sweep as sweep
    from .sweeps.space import Choice as Choice
    from .sweeps.space import IntUniform as IntUniform
    from .sweeps.space import LogUniform as LogUniform
    from .sweeps.space import Uniform as Uniform


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
