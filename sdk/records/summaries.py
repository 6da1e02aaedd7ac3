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
from typing import Any

from ..errors import CorruptRunError
from ..spec.layout import RunPaths
from ..spec.wire import decode
from ..status import Failure, Reason, Registered, State, Status
from ..storage import posix
from .events import fold
from .recorder import metrics_of, read_events, read_file

VERSION = 1
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


@dataclass(frozen=True, kw_only=True)
class Summary:
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
        text = json.dumps({**about, "status": asdict(status), "shown": asdict(shown(paths))}).encode()
        if status.state is not State.LOST and len(text) <= _MAX_BYTES and _changed_ns(paths) == changed_ns:
            # An old one, from before a resume, is invalid.
            with suppress(FileNotFoundError):
                os.unlink(paths.summary)
            posix.put_passing(paths.summary, text)


def read(paths: RunPaths) -> Summary | None:
    """Return the summary, or None if the records have to be read."""
    try:
        data = json.loads(read_file(paths.summary))
        if (
            data["version"] != VERSION
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


def _status(data: dict[str, Any]) -> Status:
    failure = data["failure"]
    found = tuple(data.get("findings", ()))
    registered = decode(Registered, data["registered"]) if data.get("registered") else None
    read = {
        "registered": registered,
        "state": State(data["state"]),
        "reason": Reason(data["reason"]),
        "findings": found,
    }
    return Status(**{**data, **read, "failure": None if failure is None else Failure(**failure)})
