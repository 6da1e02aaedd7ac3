"""The summary of an ended run, for lists of runs, cached in one file.

The supervisor writes it once, after its last record, together with the mtime of the folder of records. The summary is valid
while that mtime is unchanged. Any added or removed record invalidates it, including a resume, so it never has to be
deleted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

from ..errors import CorruptRunError
from ..job import arguments
from ..job.layout import RunPaths
from ..job.policies import metric_and_mode
from ..job.wire import decode
from ..status import Failure, Reason, Registered, State, Status
from ..storage import posix
from ..text import clipped
from .events import fold
from .metric_file import MetricRecord
from .recorder import last_attempt, last_step, metrics_of, read_account, read_events, read_file

_T = TypeVar("_T")
# Parsed JSON, and records of metrics.
_Data = Mapping[str, Any]

VERSION = 1
_STATES, _REASONS = {value.value: value for value in State}, {value.value: value for value in Reason}
_DECODE = json.JSONDecoder().raw_decode
# Larger ones (a function may return a long value) are not written, because a list of runs reads one for each run.
_MAX_BYTES = 100_000


# Shown in a list if the job names no metric.
_DEFAULT_METRICS = ("val_loss", "loss")
# The heights of a small curve, from low to high, and one that is no number; how many there are of them.
HEIGHTS, GAP, _WIDTH = "0123456789abcdefghijklmnopqrstuvwxyz", "-", 40
# Records from which the rate is known.
_RECORDS = 20
_MOST_LABELS = 20
_MOST_ARGUMENTS, _LONGEST_ARGUMENT = 30, 100


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The columns of a list of runs in addition to the status."""

    backend: str = ""  # "" if the plan does not name it
    emulator: str = ""  # of a copy of a run in a bucket: the emulator's address, "" for none
    place: str = ""  # of such a copy: the backend and the emulator, if any
    metrics: dict[str, float | None] = field(default_factory=dict)  # last values by name
    metric: str = ""  # name of the metric to show, or ""
    best: float | None = None  # the best value of that metric
    curve: str = ""  # its shape: a character of HEIGHTS, or GAP, for each part of the time
    steps: int | None = None  # training steps of the run, including earlier attempts
    rate: float | None = None  # steps in a second
    entry: str = ""  # the program
    tasks: int = 0
    accelerator: str = ""
    labels: list[str] = field(default_factory=list)  # of its jobs in a cloud: "team=vision"
    args: dict[str, str] = field(default_factory=dict)  # of its program, by name


# Fields that most summaries omit: a list decodes 10,000 of them.
_USUAL = asdict(Status(state=State.PENDING, reason=Reason.SUBMITTED))
_USUALLY_SHOWN = asdict(Shown())


class Summary(NamedTuple):
    """One row of a list of runs."""

    status: Status
    shown: Shown


def columns_of(paths: RunPaths) -> Shown:
    """Return the columns of a run in a list, from its local plan and metrics. Damaged parts are left out."""
    plan: _Data = {}
    records: list[MetricRecord] = []
    steps = rate = None
    damage = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, CorruptRunError)
    with suppress(*damage):
        plan = json.loads(read_file(paths.plan))
        for name in sorted(posix.list_names(os.path.dirname(paths.attempt(1)))):
            if name.isdecimal():
                of_attempt = metrics_of(paths, int(name), plan["tasks"])
                records += [{**record, "attempt": int(name)} for record in of_attempt]
    with suppress(*damage):
        steps, rate = _pace(paths, plan["tasks"][0], records)
    metrics: dict[str, float | None] = {}
    for record in records:
        metrics.update(record["metrics"])
    job = plan.get("job") or {}
    best_metric, mode = metric_and_mode((job.get("checkpoints") or {}).get("best") or "")
    metric = main_metric(metrics, best_metric)
    values = [value for record in records if metric in record["metrics"] and _fits(value := record["metrics"][metric])]
    numbers = [value for value in values if value is not None]
    mode = mode if metric == best_metric else metric_and_mode(metric)[1]
    return Shown(
        backend=str(plan.get("backend", "")),
        metrics=metrics,
        metric=metric,
        best=(max if mode == "max" else min)(numbers, default=None),
        curve=shape(values),
        steps=steps,
        rate=rate,
        **_about(plan, job),
    )


def main_metric(metrics: _Data, preferred: str = "") -> str:
    """Return the metric that a list shows: `preferred`, val_loss, loss, else the first by name; "" for none."""
    return next((name for name in (preferred, *_DEFAULT_METRICS, *sorted(metrics)) if name in metrics), "")


def _about(plan: _Data, job: _Data) -> _Data:
    """Return the columns from a plan, without missing parts."""
    about = dict[str, object]()
    with suppress(TypeError, AttributeError, KeyError):
        labels = (plan.get("backend_options") or {}).get("labels") or {}
        about["tasks"] = len(plan["tasks"])
        about["accelerator"] = str((job.get("resources") or {}).get("accelerator") or "")
        about["labels"] = [f"{name}={value}" for name, value in sorted(labels.items())][:_MOST_LABELS]
        if "args" not in ((job.get("code") or {}).get("allow_secret") or ()):
            argument_pairs = list(arguments.named(job.get("args")).items())[:_MOST_ARGUMENTS]
            about["args"] = {name: clipped(value, _LONGEST_ARGUMENT) for name, value in argument_pairs}
        function = plan.get("function")
        about["entry"] = f"{plan['target']}:{function}" if function else str(plan["target"])
    return about


def _fits(value: object) -> bool:
    """Return whether a value of a metric is a number, or None for one that is not finite."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value))


def shape(values: Sequence[float | None], width: int = _WIDTH) -> str:
    """Return a curve as few characters: the mean of each stretch, as a character of HEIGHTS."""
    count = min(len(values), width)
    stretches = [values[len(values) * at // count : len(values) * (at + 1) // count] for at in range(count)]
    stretch_values = [[value for value in stretch if value is not None] for stretch in stretches]
    means = [sum(value / len(stretch) for value in stretch) if stretch else None for stretch in stretch_values]
    numbers = [mean for mean in means if mean is not None]
    if not numbers:
        return GAP * count
    low, high = min(numbers), max(numbers)
    # A flat curve is in the middle. Divided first: the difference of two numbers may be none.
    tall = high / 2 - low / 2
    scaled = [None if mean is None else (mean / 2 - low / 2) / tall if tall > 0 else 0.5 for mean in means]
    return "".join(GAP if height is None else HEIGHTS[round(height * (len(HEIGHTS) - 1))] for height in scaled)


def step_s(records: Sequence[_Data]) -> float | None:
    """Return the seconds of a training step that the last records of one attempt show; None if they show none."""
    steps = [(record["time"], record["step"]) for record in records[-_RECORDS:] if _counts(record, records[-1])]
    if not steps:
        return None
    (first_time, first), (last, step) = steps[0], steps[-1]
    if not first or not step or step <= first or last <= first_time:
        return None
    return float((last - first_time) / (step - first))


def _counts(record: _Data, last: _Data) -> bool:
    # Steps that a program reports itself may count anything.
    same = record.get("attempt") == last.get("attempt")
    same = same and (record.get("epoch") is None) == (last.get("epoch") is None)
    return same and "time" in record and record.get("step") is not None


def _pace(paths: RunPaths, task: str, records: Sequence[MetricRecord]) -> tuple[int | None, float | None]:
    """Return the steps of a run, and how many are done in a second."""
    attempt = last_attempt(paths)
    step = last_step(paths, attempt, task) if attempt else None
    each_s = step_s(records)
    account = read_account(paths.progress(attempt, task)) if attempt and each_s is None else None
    spent = account.step + account.input_wait if account else 0.0
    rate = account.steps / spent if account and account.steps and spent > 0 else None
    last = next((record["step"] for record in reversed(records) if record.get("step")), None)
    return step or last, 1 / each_s if each_s else rate


def write(paths: RunPaths, summary: Summary | None = None) -> None:
    """Write the summary of a run that has its final record, or the one that is known. Without one, reading is only slower."""
    # A full disk or damage must not fail the run: its verdict is already recorded.
    with suppress(OSError, ValueError, TypeError, CorruptRunError):
        changed_ns = _changed_ns(paths)
        status = summary.status if summary else fold(read_events(paths), supervisor_alive=False)
        about = {"version": VERSION, "run_id": paths.run_id, "records_changed_ns": changed_ns}
        columns = asdict(summary.shown if summary else columns_of(paths))
        rows = {name: value for name, value in columns.items() if value != _USUALLY_SHOWN[name]}
        data = {**about, "status": _non_default_fields(status), "shown": rows}
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
        # Not json.loads, which first detects the encoding and skips white space: a list decodes 10,000 of them.
        data, end = _DECODE(text)
        if (
            end != len(text)
            or data["version"] != VERSION
            or data["run_id"] != paths.run_id
            or data["records_changed_ns"] != _changed_ns(paths)
        ):
            return None
        return Summary(status=_status(data["status"]), shown=_listed(data["shown"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _changed_ns(paths: RunPaths) -> int:
    return os.stat(paths.events).st_mtime_ns


def _non_default_fields(status: Status) -> _Data:
    """Return the fields that differ from their defaults."""
    always = ("state", "reason")
    return {name: value for name, value in asdict(status).items() if name in always or value != _USUAL[name]}


def _status(data: dict[str, Any]) -> Status:
    failure, registered = data.get("failure"), data.get("registered")
    data["state"], data["reason"] = _STATES[data["state"]], _REASONS[data["reason"]]
    data["failure"] = None if failure is None else Failure(**failure)
    data["registered"] = decode(Registered, registered) if registered else None
    data["findings"] = tuple(data.get("findings", ()))
    if not data.keys() <= _USUAL.keys():
        raise TypeError("a summary with unknown fields")
    return frozen(Status, {**_USUAL, "timings": {}, "restarted_alone": {}, **data})


def _listed(data: dict[str, object]) -> Shown:
    if not data.keys() <= _USUALLY_SHOWN.keys():
        raise TypeError("a summary with unknown fields")
    return frozen(Shown, {**_USUALLY_SHOWN, "metrics": {}, "labels": [], "args": {}, **data})


def frozen(kind: type[_T], fields: Mapping[str, object]) -> _T:
    """Return an object of a frozen dataclass with these fields, which are all that it has."""
    # Not its __init__, which sets every field by a call: a list makes 30,000 of them.
    instance = object.__new__(kind)
    vars(instance).update(fields)
    return instance
