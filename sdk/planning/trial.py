"""The trial of a gate before a run: its function is called once for the champion."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from ..checks import Finding
from ..errors import PodliftError
from ..job.findings import note, warning
from ..job.gates import Gate, Guard
from ..job.plan import Plan
from ..logs import logger
from ..model_registry.decision import Evaluation
from ..model_registry.lineage import data_of
from ..model_registry.models import Model, ModelVersion
from ..packaging import bundle
from ..packaging.audit.installed import Installed
from ..runtime import evaluation
from ..storage import cache
from ..text import and_more, duration

_log = logger("planning")
# A plan is waited for: TensorFlow takes seconds to load, and an evaluation of minutes is left to the run.
LIMIT_S = 60.0
_NAMED = 10


def variables(plan: Plan) -> dict[str, str]:
    """Return the variables of the job that are stored in its plan; the function has the caller's others."""
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if plan.job.code.keras == "legacy" else {}
    return {**legacy, **{name: value for name, value in plan.job.env.items() if isinstance(value, str)}}


@contextmanager
def payload_of(plan: Plan) -> Iterator[str]:
    """Yield the path of a payload whose code is the root's archive, or one that is packed for it alone."""
    with tempfile.TemporaryDirectory(prefix="podlift-gate-") as folder:
        stored = plan.bundle if os.path.exists(plan.bundle) else f"{folder}/code.tar"
        bundle.write(bundle.of(plan), Path(plan.code.project), Path(stored))
        path = Path(folder, "payload.json")
        path.write_text(replace(plan.payload(1), bundle=stored).to_json())
        yield str(path)


def findings(plan: Plan, environ: Mapping[str, str]) -> list[Finding]:
    """Call the function of a plan's gate for the champion, and return the result; without a champion there is none."""
    gate = plan.job.gate
    if gate.evaluate is None or gate.data not in plan.inputs or plan.job.code.isolated:
        return []
    try:
        number = Model(plan.root, plan.model).record()[0].champion
        return [_finding(plan, Model(plan.root, plan.model).version(number), environ)] if number else []
    except PodliftError as error:
        return [note(f"gate_evaluate: {gate.evaluate} was not tried on the champion. {error}")]


def _finding(plan: Plan, champion: ModelVersion, environ: Mapping[str, str]) -> Finding:
    gate, about = plan.job.gate, f"version {champion.number} of {champion.model.name!r}, the champion"
    result = _tried(plan, champion, about, environ)
    elsewhere = "ModuleNotFoundError" in result.problem and not plan.capabilities.runs_here
    if elsewhere or evaluation.NOT_DONE in result.problem:
        return note(f"gate_evaluate: {gate.evaluate} was not tried on {about}: {result.problem}")
    problem = result.problem or _missing(gate, result)
    if problem:
        return warning(
            f"gate_evaluate: {gate.evaluate} fails on {about}: {problem} Next: mend it, and podlift models evaluate "
            f"{champion.model.name} {champion.number}"
        )
    metrics_text = ", ".join(f"{name} {value:.6g}" for name, value in sorted(result.metrics.items()))
    return note(f"{gate.evaluate} measured {about}: {metrics_text}")


def _missing(gate: Gate, result: Evaluation) -> str:
    """Return the sentence about the metrics that the gate needs and its function did not return, "" if there are none."""
    needed = {gate.measured, *(Guard.parse(text).metric for text in gate.guards)}
    absent, returned = sorted(needed - {*result.metrics}), and_more(sorted(result.metrics), _NAMED)
    return f"it returned no {', '.join(map(repr, absent))}, but {returned}." if absent else ""


def _tried(plan: Plan, champion: ModelVersion, about: str, environ: Mapping[str, str]) -> Evaluation:
    """Return the evaluation of the champion; a success with the same code, model and data is not repeated."""
    gate = plan.job.gate
    data = plan.inputs[str(gate.data)]
    before = _cached(plan, champion, environ)
    with suppress(OSError, ValueError, AttributeError):
        if before is not None:
            return Evaluation(metrics={name: float(value) for name, value in json.loads(before.read_text()).items()})
    _log.info(f"the function {gate.evaluate} of the gate is tried on {about}, for at most {duration(LIMIT_S)}")
    with payload_of(plan) as payload, tempfile.TemporaryDirectory(prefix="podlift-model-") as folder:
        model, home = champion.download(f"{folder}/model"), f"{folder}/evaluation"
        request = evaluation.Request(function=str(gate.evaluate), models=(model,), data=data, home=home)
        # The accelerator may be in use.
        env, no = {**variables(plan), "CUDA_VISIBLE_DEVICES": "-1"}, subprocess.DEVNULL
        options = evaluation.ProcessOptions(env=env, output=no, errors=no, limit_s=LIMIT_S)
        (result,) = evaluation.evaluate(payload, plan.tasks[0], request, options)
    if before is not None and not result.problem:
        with suppress(OSError):
            before.parent.mkdir(parents=True, exist_ok=True)
            before.write_text(json.dumps(dict(result.metrics)))
    return result


def _cached(plan: Plan, champion: ModelVersion, environ: Mapping[str, str]) -> Path | None:
    gate = plan.job.gate
    versions = {name: Installed().versions.get(name) for name in ("tensorflow", "keras")}
    code = [plan.code.digest, gate.evaluate, platform.python_version(), versions, asdict(plan.job)["env"]]
    about = [*code, champion.record.manifest, asdict(data_of(plan.inputs[str(gate.data)]))]
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    try:
        return cache.cache_folder(environ) / "gates" / f"{key}.json"
    except RuntimeError:
        return None  # no home folder: nothing is cached
