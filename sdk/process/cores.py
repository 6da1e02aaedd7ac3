"""Divides the cores of this machine between the tasks of a run, and counts the cores that a process may use.

TensorFlow makes as many threads as the process may use CPUs when it first computes, and not when it is imported: a task that is
confined before that has pools of the right size.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..job import cluster
from ..text import counted
from . import control_groups

# The part of a task and all CPUs of its run, for threads that may use these: "0-1/0-7".
VARIABLE = "PODLIFT_CORES"
INTRA, INTER, OPENMP = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"
# Two operations of which one waits for the other, such as a collective, must not need the same thread.
_LEAST_INTER = 2


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The CPUs that a process may use."""

    cpus: tuple[
        int, ...
    ]  # CPUs of a NUMA node, and siblings of a core, next to each other; () if they cannot be chosen
    limit: float  # in CPUs, of which a quota may leave a fraction

    @property
    def count(self) -> int:
        return max(1, math.ceil(self.limit))

    @property
    def has_quota(self) -> bool:
        return self.limit < len(self.cpus)

    def __str__(self) -> str:
        if not self.cpus:
            return counted(self.count, "CPU")
        return f"{f'a quota of {self.limit:g} on ' if self.has_quota else ''}{_named(self.cpus)}"


@dataclass(frozen=True, kw_only=True)
class Share:
    """The CPUs and threads of a task. Both are empty if it is not restricted."""

    cpus: tuple[int, ...] = ()
    threads: int = 0


@dataclass(frozen=True, kw_only=True)
class Division:
    """How the tasks of a run divide the CPUs that they may use."""

    cores: Cores
    shares: Mapping[str, Share]
    least_inter: int

    def variables(self, task: str) -> dict[str, str]:
        """Return the variables of a task for the pools that do not follow its CPUs."""
        share = self.shares[task]
        if not share.threads:
            return {}
        variables = {INTRA: str(share.threads), INTER: str(max(share.threads, self.least_inter))}
        # It is read at imports, which forked tasks share.
        variables |= {OPENMP: str(most)} if (most := min(share.threads for share in self.shares.values())) else {}
        return {**variables, VARIABLE: f"{spans(share.cpus)}/{spans(self.cores.cpus)}"} if share.cpus else variables

    def __str__(self) -> str:
        """Return the line for the log, "" if nothing is restricted."""
        if not any(share.threads for share in self.shares.values()):
            return ""
        texts = [f"{task} {_words(share)}" for task, share in self.shares.items()]
        return f"{counted(len(texts), 'task')} on {self.cores}: {', '.join(texts)}"


def available(root: Path = Path("/")) -> Cores:
    """Return the CPUs that this process may use: its affinity, and the quota of its control groups."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(cpus=(), limit=os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0)
    return Cores(cpus=_in_order(allowed, root / "sys/devices/system"), limit=min([float(len(allowed)), *_quotas(root)]))


def _in_order(allowed: set[int], system: Path) -> tuple[int, ...]:
    nodes: dict[int, int] = {}
    for folder in system.glob("node/node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            nodes |= dict.fromkeys(_numbers((folder / "cpulist").read_text()), int(folder.name[4:]))
    return tuple(sorted(allowed, key=lambda cpu: (nodes.get(cpu, math.inf), _core(cpu, system), cpu)))


def _core(cpu: int, system: Path) -> int:
    """Return the lowest CPU of the same core."""
    try:
        return min(_numbers((system / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text()))
    except (OSError, ValueError):
        return cpu


def _quotas(root: Path) -> Iterator[float]:
    """Return the quotas of this process's control groups and of their parents."""
    for folder in control_groups.folders("cpu", root):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if (folder / "cpu.max").exists():
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:
                yield quota / period


def divide(tasks: Sequence[str], cores: Cores, setting: str = "share") -> Division:
    """Return the CPUs and threads of each task of a run; `wanted` is "share", "all" or the number of threads for each task."""
    # A parameter server answers each worker and the coordinator: with fewer threads TensorFlow's clusters have stopped.
    least = len(tasks) + 1 if cluster.has_servers(tasks) else _LEAST_INTER
    shares = {task: Share() for task in tasks}
    if setting == "share" and len(tasks) > 1:
        shares |= _equal(tasks, cores)
    elif setting not in ("share", "all"):
        shares = {task: Share(threads=min(int(setting), cores.count)) for task in tasks}
    return Division(cores=cores, shares=shares, least_inter=least)


def _equal(tasks: Sequence[str], cores: Cores) -> dict[str, Share]:
    computing = _computing(tasks)
    # The others mostly wait, and may do so on any CPU.
    shares = {task: Share(threads=max(1, int(cores.limit / len(tasks)))) for task in tasks}
    if len(computing) == 1:
        return {**shares, computing[0]: Share()}
    # Under a quota, other containers may use the same CPUs: which ones are free is the kernel's decision.
    confines = bool(cores.cpus) and not cores.has_quota
    own = parts(cores.cpus, len(computing)) if confines else [()] * len(computing)
    threads = max(1, int(cores.limit / len(computing)))
    own_shares = [_share(cpus, threads, cores) for cpus in own]
    return {**shares, **dict(zip(computing, own_shares, strict=True))}


def within_quota(cores: Cores) -> dict[str, str]:
    """Return the variables of a task that is alone under a quota: TensorFlow looks at the CPUs only. Empty without one."""
    threads = str(cores.count)
    return {INTRA: threads, INTER: str(max(cores.count, _LEAST_INTER)), OPENMP: threads} if cores.has_quota else {}


def _share(cpus: tuple[int, ...], threads: int, cores: Cores) -> Share:
    if not cpus or len(cpus) == len(cores.cpus):
        return Share(threads=threads)
    return Share(cpus=cpus, threads=len(cpus))


def _computing(tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks that compute all the time: not servers, the coordinator of their workers, or an evaluator."""
    if not cluster.has_servers(tasks):
        return cluster.in_step(tasks)
    return tuple(task for task in tasks[1:] if cluster.role_of(task) == "worker") or tuple(tasks[:1])


def parts(cpus: Sequence[int], number: int) -> list[tuple[int, ...]]:
    """Divide CPUs into parts with equal numbers of exclusive CPUs; all parts share the remainder."""
    size = len(cpus) // number
    return [(*cpus[index * size : (index + 1) * size], *cpus[size * number :]) for index in range(number)]


def _words(share: Share) -> str:
    if share.cpus:
        return f"has {_named(share.cpus)}"
    return f"has {counted(share.threads, 'thread')}" if share.threads else "may use all"


def _named(cpus: Sequence[int]) -> str:
    return f"{'CPU' if len(cpus) == 1 else 'CPUs'} {spans(cpus)}"


@contextlib.contextmanager
def confined(cpus: Iterable[int]) -> Iterator[None]:
    """Let the processes that the calling thread starts in the block use these CPUs only; none for all."""
    before = os.sched_getaffinity(0) if cpus else set[int]()
    # The allowed CPUs may have changed, and a sandbox may forbid the call: without it the processes are only slower.
    with contextlib.suppress(OSError):
        if before:
            os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if before:
                os.sched_setaffinity(0, before)


def widen() -> None:
    """Let the calling thread, and threads that it starts, use all CPUs of the run, unless the program has chosen its own."""
    own, _, whole = os.environ.get(VARIABLE, "").partition("/")
    # A quota or another process may have changed the allowed CPUs.
    with contextlib.suppress(OSError, ValueError):
        if own and os.sched_getaffinity(0) == _numbers(own):
            os.sched_setaffinity(0, _numbers(whole))


def own_part() -> int:
    """Return how many CPUs this task is confined to, 0 for no limit."""
    own = os.environ.get(VARIABLE, "").partition("/")[0]
    return len(_numbers(own)) if own else 0


def _numbers(text: str) -> set[int]:
    """Return the numbers of "0-3,8"."""
    numbers = set[int]()
    for span in filter(None, text.strip().split(",")):
        first, _, last = span.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def spans(numbers: Iterable[int]) -> str:
    """Return "0-3,8" for these numbers."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
