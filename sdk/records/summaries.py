"""The summary of an ended run: what a list of runs shows, cached in one file.

The supervisor writes it once, after its last record, together with the mtime of the folder of records. The summary is valid
while that mtime is unchanged. Any added or removed record invalidates it, including a resume, so it never has to be
deleted.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ..errors import CorruptRunError
from ..spec.layout import RunPaths
from ..spec.wire import decode
from ..status import Failure, Reason, Registered, State, Status
from ..storage import posix
from .events import fold
from .recorder import metrics_of, read_events, read_file

VERSION = 1
_STATES, _REASONS = {each.value: each for each in State}, {each.value: each for each in Reason}
_USUAL = asdict(Status(state=State.PENDING, reason=Reason.SUBMITTED))
_DECODE = json.JSONDecoder().raw_decode
# Larger ones (a function may return a long value) are not written, because a list of runs reads one for each run.
_MAX_BYTES = 100_000


# Shown in a list if the job names no metric.
_DEFAULT_METRICS = ("val_loss", "loss")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a list of runs shows in addition to the status."""

    backend: str = ""  # "" if the plan does not name it
    metrics: dict[str, float | None] = field(default_factory=dict)  # last values by name
    metric: str = ""  # name of the metric to show, or ""


class Summary(NamedTuple):
    """One row of a list of runs."""

    status: Status
    shown: Shown


def shown(paths: RunPaths) -> Shown:
    """Return what a list shows of a run, from its local plan and metrics. Damaged parts are left out."""
    plan: dict[str, Any] = {}
    metrics: dict[str, float | None] = {}
    with suppress(
        OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, CorruptRunError
    ):
        plan = json.loads(read_file(paths.plan))
        for name in sorted(posix.list_names(os.path.dirname(paths.attempt(1)))):
            if name.isdecimal():
                for record in metrics_of(paths, int(name), plan["tasks"]):
                    metrics.update(record["metrics"])
    wanted = ((plan.get("job") or {}).get("checkpoints") or {}).get("best") or ""
    metric = next(
        (name for name in (wanted.rpartition(":")[2], *_DEFAULT_METRICS, *sorted(metrics)) if name in metrics), ""
    )
    return Shown(backend=str(plan.get("backend", "")), metrics=metrics, metric=metric)


def write(paths: RunPaths) -> None:
    """Write the summary of a run that has its final record. Without a summary, reading is only slower."""
    # A full disk or damage must not fail the run: its verdict is already recorded.
    with suppress(OSError, ValueError, TypeError, CorruptRunError):
        changed_ns = _changed_ns(paths)
        status = fold(read_events(paths), supervisor_alive=False)
        about = {"version": VERSION, "run_id": paths.run_id, "records_changed_ns": changed_ns}
        data = {**about, "status": _told(status), "shown": asdict(shown(paths))}
        text = json.dumps(data, separators=(",", ":")).encode()
        if status.state is not State.LOST and len(text) <= _MAX_BYTES and _changed_ns(paths) == changed_ns:
            # An old one, from before a resume, is invalid.
            with suppress(FileNotFoundError):
                os.unlink(paths.summary)
            posix.put_passing(paths.summary, text)


def read(paths: RunPaths) -> Summary | None:
    """Return the summary, or None if the records have to be read."""
    try:
        text = read_file(paths.summary).decode()
        # Not json.loads, which looks for the encoding and for white space first: a list decodes 10,000 of them.
        data, end = _DECODE(text)
        if (
            end != len(text)
            or data["version"] != VERSION
            or data["run_id"] != paths.run_id
            or data["records_changed_ns"] != _changed_ns(paths)
        ):
            return None
        # Older summaries hold only the status.
        listed = Shown(**data["shown"]) if "shown" in data else shown(paths)
        return Summary(status=_status(data["status"]), shown=listed)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _changed_ns(paths: RunPaths) -> int:
    return os.stat(paths.events).st_mtime_ns


def _told(status: Status) -> dict[str, Any]:
    """Return the fields that differ from their defaults: a list decodes 10,000 of them."""
    # These three are always there, as an older podlift expects.
    always = ("state", "reason", "failure")
    return {name: value for name, value in asdict(status).items() if name in always or value != _USUAL[name]}


def _status(data: dict[str, Any]) -> Status:
    failure, registered = data["failure"], data.get("registered")
    data["state"], data["reason"] = _STATES[data["state"]], _REASONS[data["reason"]]
    data["failure"] = None if failure is None else Failure(**failure)
    data["registered"] = decode(Registered, registered) if registered else None
    data["findings"] = tuple(data.get("findings", ()))
    if not data.keys() <= _USUAL.keys():
        raise TypeError("a summary with unknown fields")
    # Not its __init__, which sets every field of a frozen dataclass by a call: a list makes 10,000 of them.
    made = object.__new__(Status)
    vars(made).update(_USUAL, timings={}, restarted_alone={})
    vars(made).update(data)
    return made
