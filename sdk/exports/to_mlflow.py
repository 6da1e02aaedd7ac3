"""MLflow: an experiment, a run in it, its params, tags and metrics, by MlflowClient.

A run is found again by its tag `podlift.url`. Metrics that its history has already, by step and time, are not logged again.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from ..errors import InputError
from ..logs import logger
from ..status import State
from ..text import without_passwords
from .exported import ExportedRun

_T = TypeVar("_T")
_log = logger("exports")
# Limits of MLflow for names, values and requests.
_LONGEST_NAME, _LONGEST_PARAM, _LONGEST_TAG, _BATCH = 250, 500, 5000, 100
_ROOM = _LONGEST_NAME - len("_9999")
_REFUSED = re.compile(r"[^\w./: -]")
_SERVER = (
    "Next: set MLFLOW_TRACKING_URI to your server, or pip install mlflow, which has databases too. For a folder, which MLflow "
    "no longer develops, also set MLFLOW_ALLOW_FILE_STORE=true."
)
_ENDED = {State.SUCCEEDED: "FINISHED", State.CANCELLED: "KILLED"}


def write(run: ExportedRun, into: str | None) -> str:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient()
        experiment = _experiment(client, into or os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.label)
    except MlflowException as error:
        if "unsupported URI" in str(error) or "MLFLOW_ALLOW_FILE_STORE" in str(error):
            raise InputError(f"MLflow cannot write there: {str(error).splitlines()[0][:300]} {_SERVER}") from error
        raise
    names = Names()
    there = _run(client, experiment, run)
    logged, ident = there.data.params, there.info.run_id
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in run.params.items()}
    params = {names.of(name): text[:_LONGEST_PARAM] for name, text in texts.items()}
    tags = {Names().of(name): value[:_LONGEST_TAG] for name, value in run.tags.items()}
    for batch in _batches([Param(*item) for item in params.items() if item[0] not in logged], _BATCH):
        client.log_batch(ident, params=batch)
    for batch in _batches([RunTag(*item) for item in tags.items()], _BATCH):
        client.log_batch(ident, tags=batch)
    # A metric may have the name of a param.
    names = Names()
    for points in _batches(_missing(client, ident, run, names), _BATCH):
        client.log_batch(ident, metrics=[Metric(name, value, time, step) for name, value, time, step in points])
    if run.ended is not None:
        client.set_terminated(ident, _ENDED.get(run.state, "FAILED"), int(run.ended * 1000))
    elif there.info.status != "RUNNING":
        client.update_run(ident, "RUNNING")
    server = without_passwords(client.tracking_uri).rstrip("/")
    return f"{server}/#/experiments/{experiment}/runs/{ident}" if server.startswith("http") else f"{server} run {ident}"


class Names:
    """Names that MLflow takes. Of two that would be the same, the later one gets a number."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def of(self, name: str) -> str:
        if name not in self._found:
            # They are paths too: no absolute one, no "..", none that is written in two ways.
            parts = _REFUSED.sub("_", name[:_LONGEST_NAME]).split("/")
            plain = "/".join(part for part in parts if part.strip(".")) or "_"
            allowed, number = plain, 1
            while allowed in self._found.values():
                number += 1
                allowed = f"{plain[:_ROOM]}_{number}"
            if allowed != name:
                _log.warning(f"MLflow does not take the name {name!r}: it is {allowed!r} there.")
            self._found[name] = allowed
        return self._found[name]


def _experiment(client: Any, name: str) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return str(client.create_experiment(name))
    if experiment.lifecycle_stage != "active":
        raise InputError(f"The experiment {name!r} was deleted in MLflow. Next: restore it, or --into another one.")
    return str(experiment.experiment_id)


def _run(client: Any, experiment: str, run: ExportedRun) -> Any:
    """Return the run of an earlier export, or a new one."""
    quoted = run.url.replace("'", "\\'")
    runs = client.search_runs([experiment], f"tags.`podlift.url` = '{quoted}'", max_results=1)
    if runs:
        return runs[0]
    tags = {"podlift.url": run.url}
    return client.create_run(experiment, start_time=int(run.created * 1000), run_name=run.id, tags=tags)


def _missing(client: Any, ident: str, run: ExportedRun, names: Names) -> Iterator[tuple[str, float, int, int]]:
    """Yield name, value, milliseconds and step of all that the run's history in MLflow does not hold yet."""
    there: dict[str, Counter[tuple[int, int]]] = {}
    for point in run.points:
        time = int(point.time * 1000)
        for name, value in point.metrics.items():
            allowed = names.of(name)
            if allowed not in there:
                history = client.get_metric_history(ident, allowed)
                there[allowed] = Counter((metric.step, metric.timestamp) for metric in history)
            if there[allowed][point.step, time]:
                there[allowed][point.step, time] -= 1
            else:
                yield allowed, value, time, point.step


def _batches(values: Iterable[_T], size: int) -> Iterator[list[_T]]:
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch
