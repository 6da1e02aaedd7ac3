"""The backends: a table of names and classes, which are imported on demand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InputError, nearest

if TYPE_CHECKING:  # a supervisor imports this package, too
    from .base import Backend, ImageService, PriceService, SetupService
    from .deliveries import Deliveries
    from .triggers import TriggerService

_TABLE = {"local": ".local.backend:LocalBackend", "vertex": ".vertex:VertexBackend", "ray": ".ray:RayBackend"}
# The service that starts schedules of a backend; schedules of others are started by `podlift schedule serve`.
_TRIGGERS = {"vertex": ".vertex.cloud_scheduler:CloudScheduler"}
# The same services, as the container of a keeper asks it.
_DELIVERIES = {"vertex": ".vertex.deliveries:VertexDeliveries"}
# What reads the list prices of the machines that a backend rents.
_PRICES = {"vertex": ".vertex.prices:VertexPrices"}
# What looks at the account of a backend's service before a first run, and the settings that it proposes.
_SETUPS = {"vertex": ".vertex.doctor:VertexSetup"}
_PROPOSED = {"vertex": ("project", "regions", "bucket", "service_account", "image")}
# What builds the images in which the jobs of a backend run.
_IMAGES = {"vertex": ".vertex.image_builds:VertexImages"}
_registered: dict[str, Callable[[], Backend]] = {}
_registered_triggers: dict[str, Callable[[], TriggerService]] = {}


def register(name: str, make: Callable[[], Backend], *, triggers: Callable[[], TriggerService] | None = None) -> None:
    """Add your own backend in this process: `register("mine", MyBackend)`. It cannot replace a built-in one.

    `triggers` makes the service that starts schedules of this backend, if there is one.
    """
    if name in _TABLE:
        raise InputError(f"A built-in backend cannot be replaced. Received: {name!r}. Next: choose another name.")
    _registered[name] = make
    if triggers is not None:
        _registered_triggers[name] = triggers


def names() -> list[str]:
    return [*_TABLE, *_registered]


def check_name(name: str) -> str:
    if name in names():
        return name
    raise InputError(f"Unknown backend. Received: {name!r}. {nearest(name, names())}")


def load(name: str) -> Backend:
    """Return the backend called `name`."""
    if check_name(name) in _registered:
        return _registered[name]()
    backend: Backend = _imported(_TABLE[name])()
    return backend


def trigger_service(name: str) -> TriggerService | None:
    """Return the service that starts the schedules of a backend; None if it has none."""
    if name in _registered_triggers:
        return _registered_triggers[name]()
    if check_name(name) not in _TRIGGERS:
        return None
    service: TriggerService = _imported(_TRIGGERS[name])()
    return service


def delivery_service(name: str) -> Deliveries | None:
    """Return what starts the keepers of a backend; None where a server of this machine serves schedules."""
    if name not in _DELIVERIES:
        return None
    service: Deliveries = _imported(_DELIVERIES[name])()
    return service


def price_services() -> dict[str, PriceService]:
    """Return what reads prices, by the name of its backend."""
    return {name: _imported(path)() for name, path in _PRICES.items()}


def proposed_fields() -> dict[str, tuple[str, ...]]:
    """Return the fields that are proposed for each backend with a service that has to be set up."""
    return dict(_PROPOSED)


def setup_service(name: str) -> SetupService:
    """Return what looks at the setup of a backend's service; InputError if it has none."""
    if check_name(name) not in _SETUPS:
        raise InputError(f"The backend {name} needs no setup. Received: {name!r}. Known: {', '.join(_SETUPS)}.")
    service: SetupService = _imported(_SETUPS[name])()
    return service


def image_services() -> dict[str, ImageService]:
    """Return what builds images, by the name of its backend."""
    return {name: _imported(path)() for name, path in _IMAGES.items()}


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module, __name__), attribute)
