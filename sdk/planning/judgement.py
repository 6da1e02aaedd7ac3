"""The gate of a model on this machine: a judgement that is rehearsed or repeated."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping

from ..errors import InputError, Problems, RunNotFoundError
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..model_registry.evidence import Evidence
from ..model_registry.models import ModelVersion
from ..runtime import evaluation, last_phase
from . import references, remote
from .prepare import planned
from .settings.merge import UNNAMED, Destination, Settings, gather
from .trial import payload_of, variables

_STDERR = 2
# The settings of a project that matter to its gate; others may need a machine or a service.
_ABOUT_GATES = ("entry", "inputs", "env", "model")


def judge(version: ModelVersion, *, promote: bool = False) -> Evidence:
    """Evaluate a version and the champion here, decide, and with `promote` act on the decision.

    The gate comes from the project in the current folder, if its settings have one for this model, else from the version's run.
    The function's output goes to the standard error, and its errors, with TensorFlow's log, only if an evaluation fails.

    Raises:
        InputError: there is no gate, or its code or data cannot be found.
    """
    plan = _of_this_folder(version, os.environ) or _of_its_run(version, os.environ)
    model, number = version.model, version.number
    # No variable silences all that TensorFlow writes there when it is imported.
    with payload_of(plan) as payload, tempfile.TemporaryFile() as errors:
        options = evaluation.ProcessOptions(env=variables(plan), output=_STDERR, errors=errors.fileno())
        if promote:
            before = {each.id for each in version.evidence()}
            last_phase.judge(model.root, model.name, number, payload, uuid.uuid4().hex, options)
            # The clock of another machine may have been ahead.
            judged = [each for each in version.evidence() if each.id not in before][-1]
        else:
            judged = last_phase.rehearse(model.root, model.name, number, payload, options)
        if not judged.metrics or (judged.champion and not judged.champion_metrics):
            errors.seek(0)
            with open(_STDERR, "wb", closefd=False) as stderr:
                shutil.copyfileobj(errors, stderr)
    return judged


def _of_this_folder(version: ModelVersion, environ: Mapping[str, str]) -> Plan | None:
    """Return a plan with the code and the gate of the project here; None if its settings have no gate for this model."""
    problems, place = Problems(), Destination(backend="local", root=version.model.root)
    settings = gather(UNNAMED, {}, place, environ, problems)
    problems.raise_if_any()
    if not settings.values.get("gate_evaluate") or settings.values.get("model") not in (None, version.model.name):
        return None
    if "entry" not in settings.values:
        settings = gather(version.record.program, {}, place, environ, problems)
    plan = planned(_about_gates(settings), environ, problems, starting=False)
    # Without the setting, the name of the run is that of the model.
    return plan if plan.model == version.model.name else None


def _about_gates(settings: Settings) -> Settings:
    kept = (*_ABOUT_GATES, "backend", "root", "name")
    return settings.without([name for name in settings.values if name not in kept and not _is_of(name, "gate", "code")])


def _is_of(name: str, *groups: str) -> bool:
    return name.startswith(tuple(f"{group}_" for group in groups))


def _of_its_run(version: ModelVersion, environ: Mapping[str, str]) -> Plan:
    record, model = version.record, version.model
    no_gate = f"The model {model.name!r} has no gate: the settings of this folder name none for it, and"
    following = (
        'Next: name a function in the project\'s file: [gate] evaluate = "quality:measure" (docs/how-to/models.md).'
    )
    try:
        plan = references.attached(RootPaths(model.root).run(record.run).url, record.run, environ)
    except RunNotFoundError:
        raise InputError(f"{no_gate} its run {record.run} was removed. {following}") from None
    if plan.job.gate.evaluate is None:
        raise InputError(f"{no_gate} its run {record.run} had none. {following}")
    if plan.local:
        remote.fetch_code(plan)
    return plan
