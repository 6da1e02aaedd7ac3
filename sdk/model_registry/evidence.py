"""Why a gate promoted a version, kept the champion or asked: written once beside the version.

    records/<model>/evidence/000001/<id>.json     one evaluation of version 1

The id follows from the version, the gate, the data and the champion: repeating an interrupted evaluation finds the first one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ..errors import CorruptObjectError, MissingError
from ..ids import digest_of
from ..job.gates import Gate
from ..storage.store import Store, create
from .decision import Decision, Evaluation, GuardResult, Outcome
from .records import FORMAT, VersionData, VersionRecord, account, decoded

_KEY = re.compile(r"records/[^/]+/evidence/(\d{6,})/[^/]+\.json")
_ID_LENGTH = 16


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One evaluation of a version by a gate, and what followed from it."""

    id: str
    model: str
    number: int  # of the version
    run: str  # id of the run that made the version
    champion: int  # number of the version that it was compared with, 0 for none
    gate: Gate
    outcome: Outcome
    reason: str
    gain: float | None = None  # over the champion, above 0 for better
    metrics: Mapping[str, float | None] = field(default_factory=dict)  # None for a number that is not finite
    champion_metrics: Mapping[str, float | None] = field(default_factory=dict)
    guards: tuple[GuardResult, ...] = ()
    data: VersionData
    time: float
    by: str
    version: int = FORMAT


def key_of(model: str, number: int = 0, evidence_id: str = "") -> str:
    """Return the key of a record; without an id or a number, the common beginning of the keys of a version or of a model."""
    version = number and f"{number:06d}/{evidence_id and f'{evidence_id}.json'}"
    return f"records/{model}/evidence/{version or ''}"


def number_in(key: str) -> int:
    """Return the number of the version in the key of a record, 0 for another key."""
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else 0


def by_time(evidence: Evidence) -> tuple[float, str]:
    """Return the place of an evaluation among the others of its version."""
    return evidence.time, evidence.id


def evidence_id(number: int, champion: int, gate: Gate, data: VersionData, judgement: str = "") -> str:
    """Return the id of an evaluation: the same version, champion, gate and data give the same one in the same judgement."""
    about = [number, champion, asdict(gate), data.location, data.digest, *filter(None, [judgement])]
    return digest_of(json.dumps(about, sort_keys=True).encode())[:_ID_LENGTH]


def of(
    decision: Decision,
    version: VersionRecord,
    champion: int,
    gate: Gate,
    data: VersionData,
    time: float,
    challenger: Evaluation,
    champions: Evaluation | None,
    judgement: str = "",
) -> Evidence:
    return Evidence(
        id=evidence_id(version.number, champion, gate, data, judgement),
        model=version.model,
        number=version.number,
        run=version.run,
        champion=champion,
        gate=gate,
        outcome=decision.outcome,
        reason=decision.reason,
        gain=_finite(decision.gain),
        metrics={name: _finite(value) for name, value in challenger.metrics.items()},
        champion_metrics={name: _finite(value) for name, value in champions.metrics.items()} if champions else {},
        guards=decision.guards,
        data=data,
        time=time,
        by=account(),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def write(store: Store, evidence: Evidence) -> Evidence:
    """Write evidence, and return the stored one: the first of several about the same evaluation."""
    key = key_of(evidence.model, evidence.number, evidence.id)
    data = json.dumps(asdict(evidence), sort_keys=True).encode()
    return evidence if create(store, key, data) else read(store, key)


def find(store: Store, model: str, number: int, evidence_id: str) -> Evidence | None:
    """Return the evidence of this id, None if there is none."""
    try:
        return read(store, key_of(model, number, evidence_id))
    except MissingError:
        return None


def of_version(store: Store, model: str, number: int) -> list[Evidence]:
    """Return all evidence about a version, the oldest first."""
    return sorted(
        (read(store, stat.key) for stat in store.list(key_of(model, number)) if number_in(stat.key)), key=by_time
    )


def read(store: Store, key: str) -> Evidence:
    """Return the evidence of a key."""
    where = f"{store.url}/{key}"
    try:
        return decoded(Evidence, bytes(store.get(key)), where)
    except CorruptObjectError as error:
        raise CorruptObjectError(
            f"The evidence of a gate cannot be read: {error} Nothing was changed. Next: remove {where}; podlift models promote "
            "promotes a version without it."
        ) from error
