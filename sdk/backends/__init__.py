"""The registry of backends: one row for each. Its classes are imported on demand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

from ..job import option_classes

if TYPE_CHECKING:  # a task imports this package, too
    from ..clock import Clock
    from ..job.plan import Plan
    from ..job.targets import Target
    from .base import Backend, RunHandle
    from .services import Services

# The class of each backend, and the class of its options.
_ROWS = {
    "local": (".local.backend:LocalBackend", ".local.options:Local"),
    "vertex": (".vertex.backend:VertexBackend", ".vertex.options:Vertex"),
    "ray": (".ray.backend:RayBackend", ".ray.options:Ray"),
    "kubernetes": (".kubernetes.backend:KubernetesBackend", ".kubernetes.options:Kubernetes"),
}
_registered: dict[str, Callable[[], Backend]] = {}
# The entry points by which installed packages add backends.
ENTRY_POINTS = "podlift.backends"


def register(name: str, make: Callable[[], Backend], *, options: type[Target] | None = None) -> None:
    """Add your own backend in this process: `register("mine", MyBackend, options=Mine)`. It cannot replace a built-in one.

    Each field of `options` becomes a setting: a field `thing` is the keyword `mine_thing` and the option `--mine-thing`.
    """
    from ..errors import InputError
    from ..job.setting_names import WORDS

    if name in _ROWS:
        raise InputError(f"A built-in backend cannot be replaced. Received: {name!r}. Next: choose another name.")
    if options is not None and (name in {*WORDS, *WORDS.values()} or not name.isalnum()):
        raise InputError(
            "The name of a backend with options has letters and digits only, and is no group of settings of a job. "
            f"Received: {name!r}. Next: choose another name."
        )
    _registered[name] = make
    option_classes.LOADERS.pop(name, None)
    if options is not None:
        option_classes.LOADERS[name] = lambda: options


def _add_installed() -> None:
    """Register the backends of installed packages; the class may name its options in the attribute `options`."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name in _registered:
            continue
        try:
            # A result on the standard output, such as JSON, must have nothing before it.
            with redirect_stdout(sys.stderr):
                make = entry.load()
            register(entry.name, make, options=getattr(make, "options", None))
        except (Exception, SystemExit) as error:  # of another package, without which podlift works
            from ..logs import logger

            logger("backends").warning(
                f"The installed backend {entry.name!r} ({entry.value}) is left out. {type(error).__name__}: {error}"
            )


def names() -> list[str]:
    option_classes.complete()
    return [*_ROWS, *_registered]


def check_name(name: str) -> str:
    from ..errors import InputError, nearest

    if name in names():
        return name
    raise InputError(f"Unknown backend. Received: {name!r}. {nearest(name, names())}")


def opened(plan: Plan, clock: Clock) -> RunHandle:
    """Return the handle of an existing run; its folder alone describes the run of a backend that is not registered here."""
    if plan.backend not in _ROWS and plan.backend not in names():
        from .folder import unregistered

        return unregistered(plan, clock)
    return load(plan.backend).open(plan, clock)


def load(name: str) -> Backend:
    """Return the backend called `name`."""
    if check_name(name) in _registered:
        own = _registered[name]()
        if not hasattr(own, "services"):
            from ..errors import InputError

            raise InputError(f"The backend {name!r} has no services. Next: give its class `services = Services()`.")
        return own
    backend: Backend = _imported(_ROWS[name][0])()
    return backend


def offered() -> Iterator[tuple[str, Services]]:
    """Yield the name and the additional services of each backend."""
    yield from ((name, load(name).services) for name in names())


def _imported(path: str) -> Any:
    import importlib

    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module, __name__), attribute)


option_classes.add_later(_add_installed)
option_classes.LOADERS.update({name: partial(_imported, options) for name, (_, options) in _ROWS.items()})
