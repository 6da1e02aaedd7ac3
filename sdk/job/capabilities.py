"""The properties of a backend, as data: every difference between backends outside of their folders depends on these."""

from __future__ import annotations

from dataclasses import dataclass

from .payload import KillTarget


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The properties of a backend. The defaults describe a backend that runs tasks on this machine.

    Args:
        runs_here: tasks are processes of this machine: they have its Python, its disk and its accelerators.
        supervised_here: a process of the submitting machine supervises the run; else the service and its containers do.
        needs_bucket: its machines see no folder of this machine, so its runs live in a bucket.
        shares_folders: instead of the bucket, a folder is enough that all of its machines share with this one.
        keeps_logs: the service keeps the logs; the run directory has no log files.
        outputs_in_store: tasks write the model to the root itself, not to a folder that is collected afterwards.
        has_price: it rents machines by the hour.
        last_phase: it registers the model of a run, and evaluates it, once the program has succeeded.
        stand_ins: logical CPU devices stand in for the cores of a TPU, and for GPUs unless the target asks for real ones.
        drills: the targets that a drill can kill: see `Kill`.
    """

    runs_here: bool = True
    supervised_here: bool = True
    needs_bucket: bool = False
    shares_folders: bool = False
    keeps_logs: bool = False
    outputs_in_store: bool = False
    has_price: bool = False
    last_phase: bool = False
    stand_ins: bool = False
    drills: tuple[KillTarget, ...] = ("process",)


LOCAL = Capabilities(last_phase=True, stand_ins=True)
# A cluster that exists: the root is a bucket, or a folder that its machines share.
CLUSTER = Capabilities(
    runs_here=False,
    supervised_here=False,
    needs_bucket=True,
    shares_folders=True,
    outputs_in_store=True,
    last_phase=True,
)
