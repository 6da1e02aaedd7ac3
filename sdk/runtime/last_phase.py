"""The last phase of a run: the model of the trained program becomes a version, and its gate decides about it.

It is a process of its own in the first task's place, on the same machine: once the program's process is gone, and with it
all memory of an accelerator. The supervisor or the agent of a container starts it (`execution/phase.py`). It may be killed at
any moment and repeated: there is one version for each run, and what was decided is not decided again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from .. import logs
from ..clock import SystemClock
from ..errors import InputError, PodliftError
from ..job.layout import RunPaths
from ..job.payload import Payload
from ..model_registry import evidence, lineage, promotion
from ..model_registry.decision import Evaluation
from ..model_registry.models import Model, ModelVersion
from ..records.events import PHASE, PHASE_FAILED, REGISTERED
from ..records.plans import read_plan
from ..records.recorder import Recorder, metrics_of, read_events
from ..records.sync.index import SyncedRun
from ..status import EXIT_INFRASTRUCTURE, Registered, State
from . import bootstrap, evaluation

_log = logs.logger("runtime")
_MODEL = "model"


def main(payload_path: str, task: str, home: str) -> int:
    """Execute the phase, and return its exit code, 0 if it needs no repetition."""
    bootstrap.die_with_parent()
    logs.start()
    payload = Payload.from_json(Path(payload_path).read_bytes())
    if payload.vendor:
        sys.path.append(payload.vendor)
    recorder = Recorder(RunPaths(payload.run_url), PHASE, payload.attempt, SystemClock(), continued=True)
    try:
        with tempfile.TemporaryDirectory(prefix="podlift-") as folder:
            version = _version(payload, folder)
        registered = Registered(model=payload.model, version=version.number)
        if payload.gate.evaluate is not None:
            registered = judge(version.model.root, payload.model, version.number, payload_path)
    except InputError as error:
        # The training has succeeded, and another try would find the same.
        registered = Registered(model=payload.model, outcome="none", reason=str(error))
    except PodliftError as error:
        _log.error(str(error))
        recorder.record(PHASE_FAILED, message=str(error))
        return EXIT_INFRASTRUCTURE
    recorder.record(REGISTERED, **asdict(registered))
    _log.info(str(registered))
    return 0


def judge(
    root: str,
    model: str,
    version: int,
    payload_path: str,
    judgement: str = "",
    options: evaluation.ProcessOptions = evaluation.INHERITED,
) -> Registered:
    """Evaluate a version and the champion, decide, and promote the version if the gate says so.

    The payload is that of a task: it has the gate, the place of its data, and the code with its function. Earlier evidence
    counts, unless a repeated judgement has an id.
    """
    with _trial(payload_path, judgement, options) as trial:
        return promotion.judge(Model(root, model).version(version), trial)


def rehearse(
    root: str, model: str, version: int, payload_path: str, options: evaluation.ProcessOptions
) -> evidence.Evidence:
    """Evaluate a version and the champion as `judge` does, and decide; nothing is written or promoted."""
    with _trial(payload_path, "", options) as trial:
        return promotion.rehearse(Model(root, model).version(version), trial)


@contextmanager
def _trial(payload_path: str, judgement: str, options: evaluation.ProcessOptions) -> Iterator[promotion.Trial]:
    payload = Payload.from_json(Path(payload_path).read_bytes())
    gate = payload.gate
    with tempfile.TemporaryDirectory(prefix="podlift-") as folder:

        def evaluate(models: Sequence[str], data: str) -> Sequence[Evaluation]:
            home = f"{folder}/evaluation"
            request = evaluation.Request(function=str(gate.evaluate), models=tuple(models), data=data, home=home)
            return evaluation.evaluate(payload_path, payload.tasks[0], request, options)

        data, now = payload.inputs[gate.data] if gate.data else "", SystemClock().now
        yield promotion.Trial(gate=gate, data=data, evaluate=evaluate, now=now, judgement=judgement)


def _version(payload: Payload, folder: str) -> ModelVersion:
    """Return the version of the run, which is created if it does not exist."""
    paths = RunPaths(payload.run_url)
    root = RunPaths(payload.bucket_url).root if payload.bucket_url else read_plan(paths).root
    model = Model(root, payload.model)
    if (version := model.of_run(payload.run_id, _MODEL)) is not None:
        return version
    skipped = _skipped(paths)
    if payload.bucket_url:
        # Its tasks share no folder: the program wrote the model to the bucket, and earlier containers their metrics.
        paths, skipped = _copy(payload, folder), []
    plan = read_plan(paths, root)
    outputs = lineage.Outputs(folder=paths.outputs, skipped=skipped)
    state, metrics = State.SUCCEEDED.value, _last_metrics(paths, payload)
    notes = [str(event.data.get("text")) for event in read_events(paths, ("finding",))]
    return model.add(
        lineage.candidate(plan, outputs, _MODEL, run_url=plan.url, state=state, metrics=metrics, findings=notes)
    )


def _skipped(paths: RunPaths) -> list[tuple[str, str]] | None:
    """Return the files that were not collected, and why; None without a collection."""
    last = max(read_events(paths, ("collected",)), key=lambda event: event.attempt, default=None)
    return None if last is None else [(str(path), str(reason)) for path, reason in last.data["skipped"]]


def _copy(payload: Payload, folder: str) -> RunPaths:
    """Download the files of the version."""
    paths = RunPaths(f"{folder}/run")
    copy = SyncedRun(paths, payload.bucket_url, SystemClock())
    copy.pull_plan()
    copy.refresh(payload.tasks, logs=True)
    copy.download([_MODEL])
    os.makedirs(paths.outputs)
    if os.path.isdir(paths.model):
        os.rename(paths.model, paths.outputs_model)
    return paths


def _last_metrics(paths: RunPaths, payload: Payload) -> dict[str, float | None]:
    last: dict[str, float | None] = {}
    for attempt in range(1, payload.attempt + 1):
        for record in metrics_of(paths, attempt, payload.tasks):
            last.update(record["metrics"])
    return last
