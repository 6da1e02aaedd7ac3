"""Evaluates models where `Gate(where="keeper")` asks for it: on the machine of the server or keeper, after the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ..planning import remote
from ..planning.roots import in_bucket
from ..records.events import PHASE_FAILED, REGISTERED
from ..records.recorder import read_events
from ..runtime import task_main
from ..spec.layout import RunPaths
from ..spec.plan import Plan
from ..spec.wire import decode
from ..status import Registered

_TRIES = 3


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
        found = read_events(RunPaths(known.folder), (REGISTERED, PHASE_FAILED))
        shutil.rmtree(known.folder, ignore_errors=True)
        if code == 0 and found:
            return decode(Registered, found[-1].data)
        if known.tries < _TRIES:
            self._evaluations[plan.run_id] = _started(plan, attempt, known.tries + 1)
            return None
        why = str(found[-1].data.get("message")) if found else f"its process ended with {code}"
        return replace(registered, reason=f"it could not be evaluated: {why}")

    def close(self) -> None:
        """End all evaluations; the next server begins them again."""
        while self._evaluations:
            each = self._evaluations.popitem()[1]
            each.process.kill()
            each.process.wait()
            shutil.rmtree(each.folder, ignore_errors=True)


def _started(plan: Plan, attempt: int, tries: int) -> _Evaluation:
    plan = remote.with_local_folder(plan, os.environ)
    if plan.local:
        remote.fetch_code(plan)
    paths = RunPaths(tempfile.mkdtemp(prefix="podlift-gate-"))
    Path(paths.events).mkdir()
    vendor = Path(task_main.__file__).parents[3] / "vendor"
    payload = replace(
        plan.payload(attempt),
        run_url=paths.url,
        bucket_url=plan.url if in_bucket(plan.root) else "",
        vendor=str(vendor) if vendor.is_dir() else "",
    )
    file = paths.last_phase(attempt)
    Path(file).parent.mkdir(parents=True)
    Path(file).write_text(payload.to_json())
    here = plan.capabilities.runs_here and not plan.job.code.isolated
    python = plan.facts.executable if here and Path(plan.facts.executable).exists() else sys.executable
    own = {name: value for name, value in plan.job.env.items() if isinstance(value, str)}
    process = subprocess.Popen(
        [python, str(Path(task_main.__file__)), file, plan.tasks[0], "last_phase", "keeper"],
        env={**os.environ, **own, "PODLIFT_PARENT": str(os.getpid())},
        cwd=paths.url,
        stdin=subprocess.DEVNULL,
    )
    return _Evaluation(process=process, folder=paths.url, tries=tries)
