"""Gives a program for GPUs its GPUs where logical CPU devices stand in for them."""

from __future__ import annotations

from collections.abc import Mapping

from ...hardware import accelerators
from ...job import cluster
from ...job.payload import Payload
from . import Patch, keras_multi_worker
from .tpu import has_stand_in, stand_in


def patches(payload: Payload, task: str, environ: Mapping[str, str]) -> list[Patch]:
    """Return the patches for a task with GPUs; none for other tasks, such as parameter servers."""
    if not payload.gpu or cluster.role_of(task) == "ps":
        return []
    row = accelerators.row(payload.gpu)
    found = [keras_multi_worker.REPLICAS] if len(payload.tasks) == 1 else []
    if has_stand_in(payload, environ):
        count = accelerators.replicas(row, environ)

        def install() -> None:
            from ..gpu import install

            install.install(row, count)

        found.insert(0, stand_in(row, count, install))
    return found
