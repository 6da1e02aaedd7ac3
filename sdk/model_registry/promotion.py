"""From a new version to a promotion: evaluation, decision, evidence, and the move of the champion.

It may be interrupted after every step, and repeated: stored evidence about a version counts, and the champion
moves only from the one of the comparison.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import CorruptObjectError, InputError
from ..job.gates import Gate
from ..status import Registered
from . import evidence, lineage
from .decision import Decision, Evaluation, decide
from .evidence import Evidence
from .models import ModelVersion
from .records import VersionData

# How often a version is compared with a new champion before a person is asked.
MOST_COMPARISONS = 3
_OUTCOMES = {"promote": "promoted", "keep": "kept", "ask": "asks"}
# Evaluates the models in these folders on the data at a location, in this order.
Evaluate = Callable[[Sequence[str], str], Sequence[Evaluation]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How a gate evaluates."""

    gate: Gate
    data: str  # the location of the gate's data, "" for none
    evaluate: Evaluate
    now: Callable[[], float]
    judgement: str = ""  # the id of a repeated judgement, for which earlier evidence does not count


def rehearse(version: ModelVersion, trial: Trial) -> Evidence:
    """Evaluate a version and the champion, and decide; nothing is written or promoted."""
    return _measured(version, version.model.record()[0].champion, trial, lineage.data_of(trial.data))


def judge(version: ModelVersion, trial: Trial) -> Registered:
    """Evaluate a version and the champion, decide, and promote the version if the gate says so."""
    model = version.model
    for _ in range(MOST_COMPARISONS):
        record, _ = model.record()
        if not trial.judgement and any(move.champion == version.number for move in record.moves):
            # An interrupted phase came this far, or a person was faster.
            return _registered(version, "promoted", "it has become the champion")
        evaluation = _compared(version, record.champion, trial)
        if evaluation.outcome != "promote":
            return _registered(version, _OUTCOMES[evaluation.outcome], evaluation.reason)
        try:
            model.promote(version.number, expect=evaluation.champion, note=evaluation.reason)
            return _registered(version, "promoted", evaluation.reason)
        except InputError:
            if model.record()[0].champion == evaluation.champion:
                raise
    reason = f"The champion was replaced {MOST_COMPARISONS} times while this version was compared with it"
    decision = Decision(outcome="ask", reason=reason)
    champion, data = model.record()[0].champion, lineage.data_of(trial.data)
    unknown, judgement = Evaluation(), trial.judgement
    evaluation = evidence.of(
        decision, version.record, champion, trial.gate, data, trial.now(), unknown, None, judgement
    )
    evidence.write(model.store, evaluation)
    return _registered(version, "asks", reason)


def _registered(version: ModelVersion, outcome: str, reason: str) -> Registered:
    return Registered(model=version.model.name, version=version.number, outcome=outcome, reason=reason)


def _compared(version: ModelVersion, champion: int, trial: Trial) -> Evidence:
    """Return the evidence about a version and a champion: the stored one, else from an evaluation now."""
    store, name, data = version.model.store, version.model.name, lineage.data_of(trial.data)
    evidence_id = evidence.evidence_id(version.number, champion, trial.gate, data, trial.judgement)
    stored = evidence.find(store, name, version.number, evidence_id)
    return evidence.write(store, _measured(version, champion, trial, data)) if stored is None else stored


def _measured(version: ModelVersion, champion: int, trial: Trial, data: VersionData) -> Evidence:
    """Return the evidence of an evaluation now, which is not stored."""
    challenger, champions = _evaluated(version, champion, trial)
    problem = f"the data cannot be read: {data.problem}" if data.problem else ""
    if not problem and lineage.data_of(trial.data).digest != data.digest:
        problem = f"the data at {trial.data} changed meanwhile"
    if problem:
        challenger = Evaluation(problem=problem)
    decision = decide(trial.gate, challenger, champions)
    gate, judgement = trial.gate, trial.judgement
    return evidence.of(decision, version.record, champion, gate, data, trial.now(), challenger, champions, judgement)


def _evaluated(version: ModelVersion, champion: int, trial: Trial) -> tuple[Evaluation, Evaluation | None]:
    """Return the function's evaluations of the version and of the champion, None without one."""
    # A folder of their own for each comparison: the function may have written to the last ones.
    with tempfile.TemporaryDirectory(prefix="podlift-model-") as folder:
        own, problem = _fetched(version, folder)
        if problem:
            return Evaluation(problem=problem), None
        theirs = ""
        if champion:
            try:
                theirs, problem = _fetched(version.model.version(champion), folder)
            except (CorruptObjectError, InputError) as error:
                problem = str(error)
        evaluations = trial.evaluate([own, *filter(None, [theirs])], trial.data)
    if not champion:
        return evaluations[0], None
    return evaluations[0], Evaluation(problem=problem) if problem else evaluations[1]


def _fetched(version: ModelVersion, folder: str) -> tuple[str, str]:
    """Download a version, and return its folder and the problem of its files."""
    try:
        return version.download(f"{folder}/version-{version.number}"), ""
    except CorruptObjectError as error:
        return "", str(error)
