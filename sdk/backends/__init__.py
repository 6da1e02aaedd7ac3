"""The registry of backends: one row for each. Its classes are imported on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ..job import option_classes

if TYPE_CHECKING:  # a task imports this package, too
    from ..job.targets import Target
    from .base import Backend
    from .services import Services

# The class of each backend, and the class of its options.
_ROWS = {
    "local": (".local.backend:LocalBackend", ".local.options:Local"),
    "vertex": (".vertex.backend:VertexBackend", ".vertex.options:Vertex"),
    "ray": (".ray.backend:RayBackend", ".ray.options:Ray"),
    "kubernetes": (".kubernetes.backend:KubernetesBackend", ".kubernetes.options:Kubernetes"),
}
_registered: dict[str, Callable[[], Backend]] = {}


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


def names() -> list[str]:
    return [*_ROWS, *_registered]


def check_name(name: str) -> str:
    from ..errors import InputError, nearest

    if name in names():
        return name
    raise InputError(f"Unknown backend. Received: {name!r}. {nearest(name, names())}")


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


option_classes.LOADERS.update({name: partial(_imported, options) for name, (_, options) in _ROWS.items()})
