"""Evaluates models where `Gate(where="keeper")` asks for it: after the run, on the machine of a keeper or of a server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ..records.events import REGISTERED
from ..records.recorder import read_events
from ..records.sync.index import FILES_RETRY
from ..runtime import last_phase, task_main
from ..spec.layout import RootPaths, RunPaths
from ..spec.plan import Plan
from ..spec.wire import decode
from ..status import Registered, State, Status
from ..storage import own_folders
from ..storage.registry import open_files

_TRIES = 3


def is_due(plan: Plan, status: Status) -> bool:
    """Return whether the model of a run has to be evaluated here."""
    gate, known = plan.job.gate, status.registered
    registered = known is not None and known.outcome == "registered" and status.state is State.SUCCEEDED
    return registered and gate.evaluate is not None and gate.where == last_phase.KEEPER


@dataclass(kw_only=True)
class _Evaluation:
    """The process that evaluates the model of one run."""

    process: subprocess.Popen[bytes]
    folder: str
    tries: int


class Judge:
    """Evaluates the models of runs, each in a process of its own, so that a server goes on meanwhile."""

    def __init__(self) -> None:
        self._evaluations: dict[str, _Evaluation] = {}

    def judged(self, plan: Plan, attempt: int, registered: Registered) -> Registered | None:
        """Return what has become of the model of a run, which is registered; None while it is being evaluated."""
        known = self._evaluations.get(plan.run_id)
        if known is None:
            self._evaluations[plan.run_id] = _started(plan, attempt, 1)
            return None
        code = known.process.poll()
        if code is None:
            return None
        del self._evaluations[plan.run_id]
        paths = RunPaths(known.folder)
        found, why = read_events(paths, (REGISTERED,)), last_phase.failure_of(paths, code)
        own_folders.discard(known.folder)
        if code == 0 and found:
            return decode(Registered, found[-1].data)
        if known.tries < _TRIES:
            self._evaluations[plan.run_id] = _started(plan, attempt, known.tries + 1)
            return None
        return replace(registered, reason=f"it could not be evaluated: {why}")

    def close(self) -> None:
        """End all evaluations; the next server begins them again."""
        while self._evaluations:
            each = self._evaluations.popitem()[1]
            each.process.kill()
            each.process.wait()
            own_folders.discard(each.folder)


def _started(plan: Plan, attempt: int, tries: int) -> _Evaluation:
    paths = RunPaths(tempfile.mkdtemp(prefix="podlift-gate-"))
    in_bucket, vendor = "://" in plan.root, Path(task_main.__file__).parents[3] / "vendor"
    bundle = plan.bundle
    if in_bucket:
        folder, _, name = RootPaths(plan.root).bundle(plan.code.digest).rpartition("/")
        bundle = f"{paths.url}/bundle.tar"
        open_files(folder, retry=FILES_RETRY).download(name, bundle)
    Path(paths.events).mkdir()
    payload = replace(
        plan.payload(attempt),
        run_url=paths.url,
        bundle=bundle,
        bucket_url=plan.url if in_bucket else "",
        vendor=str(vendor) if vendor.is_dir() else "",
    )
    file = paths.last_phase(attempt)
    Path(file).parent.mkdir(parents=True)
    Path(file).write_text(payload.to_json())
    here = plan.capabilities.runs_here and not plan.job.code.isolated
    python = plan.facts.executable if here and Path(plan.facts.executable).exists() else sys.executable
    own = {name: value for name, value in plan.job.env.items() if isinstance(value, str)}
    process = subprocess.Popen(
        [python, str(Path(task_main.__file__)), file, plan.tasks[0], "last_phase", last_phase.KEEPER, plan.root],
        # A keeper computes on its CPU, also where a training has the GPU.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **own, "PODLIFT_PARENT": str(os.getpid())},
        cwd=paths.url,
        stdin=subprocess.DEVNULL,
    )
    return _Evaluation(process=process, folder=paths.url, tries=tries)
