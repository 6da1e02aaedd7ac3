"""The summary of a run that has ended: what a list of runs shows of it, in one file instead of all its records.

It is written once, by the supervisor, behind its last record, and says when the folder of the records had changed last. It
is believed as long as that is still so: a record that was added or taken away since makes it worthless, as resuming the run
does, and nobody has to remember to remove it. The truth of a run stays the set of its records.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import CorruptRunError
from ..spec.layout import RunPaths
from ..status import Failure, Reason, State, Status
from ..storage import posix
from .events import fold
from .recorder import read_events, read_file, read_metrics

VERSION = 1
# A list of runs reads one of these for each: what is larger, as a function's long value makes it, stays in the records.
_MAX_BYTES = 100_000


# Which metric a list shows, where the job names none.
_USUAL = ("val_loss", "loss")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a list shows of a run beside its status.

    Args:
        backend: who runs it; "" where the plan does not say.
        metrics: the last value of every metric, by name.
        metric: the name of the one to show; "" for none.
    """

    backend: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict)
    metric: str = ""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One line of a list of runs."""

    status: Status
    shown: Shown


def shown(paths: RunPaths) -> Shown:
    """Return what a list shows of a run, from its plan and its metrics as they lie here; damage leaves out what it hits."""
    plan: dict[str, Any] = {}
    metrics: dict[str, float | None] = {}
    with suppress(
        OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, CorruptRunError
    ):
        plan = json.loads(read_file(paths.plan))
        for name in sorted(posix.list_names(os.path.dirname(paths.attempt(1)))):
            if name.isdigit():
                for record in read_metrics(paths.metrics(int(name), str(plan["tasks"][0]))):
                    metrics.update(record["metrics"])
    asked = ((plan.get("job") or {}).get("checkpoints") or {}).get("best") or ""
    metric = next((name for name in (asked.rpartition(":")[2], *_USUAL, *sorted(metrics)) if name in metrics), "")
    return Shown(backend=str(plan.get("backend", "")), metrics=metrics, metric=metric)


def write(paths: RunPaths) -> None:
    """Write the summary of a run whose final record is there; a run that has none is only read more slowly.

    Args:
        paths: the run. Nobody may add records any more.
    """
    # What keeps it from being written, a full disk or damage, is not the run's fault: its verdict is written already.
    with suppress(OSError, ValueError, TypeError, CorruptRunError):
        changed_ns = _changed_ns(paths)
        status = fold(read_events(paths), supervisor_alive=False)
        about = {"version": VERSION, "run_id": paths.run_id, "records_changed_ns": changed_ns}
        text = json.dumps({**about, "status": asdict(status), "shown": asdict(shown(paths))}).encode()
        if status.state is not State.LOST and len(text) <= _MAX_BYTES and _changed_ns(paths) == changed_ns:
            # That of an earlier end, before the run was resumed, is worthless.
            with suppress(FileNotFoundError):
                os.unlink(paths.summary)
            posix.put_passing(paths.summary, text)


def read(paths: RunPaths) -> Summary | None:
    """Return what the records of a run say, without reading them; None where they have to be read."""
    try:
        data = json.loads(read_file(paths.summary))
        if (
            data["version"] != VERSION
            or data["run_id"] != paths.run_id
            or data["records_changed_ns"] != _changed_ns(paths)
        ):
            return None
        # That of an earlier podlift has the status only.
        beside = Shown(**data["shown"]) if "shown" in data else shown(paths)
        return Summary(status=_status(data["status"]), shown=beside)
    # A damaged summary is none.
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _changed_ns(paths: RunPaths) -> int:
    return os.stat(paths.events).st_mtime_ns


def _status(data: dict[str, Any]) -> Status:
    failure = data["failure"]
    found = tuple(data.get("findings", ()))
    read = {"state": State(data["state"]), "reason": Reason(data["reason"]), "findings": found}
    return Status(**{**data, **read, "failure": None if failure is None else Failure(**failure)})
