"""The options of local mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from ...job.targets import Start, Target
from ...job.values import Accepts, Validator, default


def cores_text(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if text not in ("share", "all") and not (isinstance(text, str) and text.isdecimal() and int(text)):
        raise ValueError("must be share, all or a number of CPUs from 1")
    return text


@dataclass(frozen=True, kw_only=True)
class Local(Target):
    """How a run on this machine behaves: `sdk.submit("train.py", workers=2, backend=Local(network="isolated"))`.

    Args:
        network: This machine's network for the tasks, or an isolated one. "isolated": they run in a network namespace that
            holds only loopback, so that no other machine can reach TensorFlow's servers, which listen on every interface
            without authentication.
        start: Fork task processes from one with TensorFlow, or spawn each. "fork": all are forked from a process that has
            imported TensorFlow and Keras, and that stands by for restarts while 1.5 GB of memory are free. "spawn": each task
            is a new Python process, also after a restart. "auto": "fork" on Linux if there are several tasks and nothing in the
            program prevents it. "standby": as "auto", and a single task has such a process for its restarts too, which imports
            at low priority while the task trains. "anew": as "auto", but nothing stands by.
        cluster: A chief and workers, or workers only. "chief" is the layout of Vertex AI; "workers" is for scripts in which
            task 0 of `worker` is the chief.
        gpus: Stand-ins or this machine's own GPUs, if the accelerator is a GPU. "stand-in": logical CPU devices. "real": each
            task has its own GPUs, of any type.
        cores: How the tasks divide the CPUs of this machine. "share": several tasks get separate, equal parts of them, and as
            many threads. "all": each may use all. A number: this many threads for each task, also for a single one, on any CPU.
    """

    title: ClassVar[str] = "Local mode"
    # The plan then names the modules that a task imports, which all trials share.
    swept: ClassVar[Mapping[str, object]] = {"local_start": "standby"}

    network: Literal["host", "isolated"] = "host"
    start: Start = "auto"
    cluster: Literal["chief", "workers"] = "chief"
    gpus: Literal["stand-in", "real"] = "stand-in"
    cores: Accepts[Annotated[str, Validator(cores_text, before=True)], str | int] = default("share")

    @property
    def shape(self) -> Literal["chief", "workers"]:
        return self.cluster

    @property
    def isolated(self) -> bool:
        return self.network == "isolated"

    @property
    def real_gpus(self) -> bool:
        return self.gpus == "real"

    def divided(self, runs: int, cpus: int) -> Local:
        shares = runs > 1 and self.cores == "share"
        start: Start = "anew" if self.start == "standby" else self.start
        return replace(self, start=start, cores=str(max(1, cpus // runs)) if shares else self.cores)
