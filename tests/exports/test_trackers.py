"""Exports to the real MLflow, W&B and Trackio, each installed into a separate environment, without their services."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign import Foreign
from page_runs import page_run

from sdk.job.layout import RunPaths

pytestmark = [pytest.mark.full, pytest.mark.process]

RECORDS = [
    {"step": 10, "time": 1_795_193_570.0, "metrics": {"loss": 1.5, "acc(top 5)": 0.5}},
    {"step": 20, "time": 1_795_193_580.0, "metrics": {"loss": None, "acc(top 5)": 0.625}},
    {"step": 20, "time": 1_795_193_590.0, "metrics": {"loss": 0.25, "huge": 10**400}},
]
LATER = {"step": 30, "time": 1_795_193_600.0, "metrics": {"loss": 0.125}}

# Each prints the content of the tracker, by its public calls, as JSON: a list of runs.
READ_MLFLOW = """
import json
from mlflow import MlflowClient
client, found = MlflowClient(), []
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        ident = run.info.run_id
        points = {name: [[each.step, each.timestamp, each.value] for each in client.get_metric_history(ident, name)]
                  for name in run.data.metrics}
        found.append({"project": experiment.name, "name": run.info.run_name, "state": run.info.status,
                      "params": run.data.params, "tags": run.data.tags, "points": points})
print(json.dumps(found))
"""
READ_TRACKIO = """
import glob, json, os, sqlite3, contextlib, sys
with contextlib.redirect_stdout(sys.stderr):
    import trackio
    runs = list(trackio.Api().runs("digits"))
found = []
for run in runs:
    (path,) = glob.glob(os.path.join(os.environ["TRACKIO_DIR"], "digits*.db"))
    rows = sqlite3.connect(path).execute("select step, metrics from metrics where run_id = ? order by id", (run.id,))
    found.append({"name": run.name, "params": run.config, "points": [[step, json.loads(text)] for step, text in rows]})
print(json.dumps(found))
"""
# W&B has no public reader of its offline files; this is LevelDB's log format, after a head of seven bytes.
READ_WANDB = """
import glob, json, struct
from wandb.proto import wandb_internal_pb2 as messages
BLOCK, found = 32768, []
for path in sorted(glob.glob("wandb/offline-run-*/*.wandb")):
    data, at, whole = open(path, "rb").read(), 7, b""
    run = {"params": {}, "points": [], "summary": {}, "code": None}
    while at < len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind not in (1, 4):
            continue
        record, whole = messages.Record.FromString(whole), b""
        key = lambda item: item.key or "/".join(item.nested_key)
        if record.HasField("run"):
            run |= {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
            run["params"] |= {key(each): json.loads(each.value_json) for each in record.run.config.update}
        if record.HasField("config"):
            run["params"] |= {key(each): json.loads(each.value_json) for each in record.config.update}
        if record.HasField("history"):
            run["points"].append({key(each): json.loads(each.value_json) for each in record.history.item})
        if record.HasField("summary"):
            run["summary"] |= {key(each): json.loads(each.value_json) for each in record.summary.update}
        if record.HasField("exit"):
            run["code"] = record.exit.exit_code
    found.append(run)
print(json.dumps(found))
"""


@pytest.fixture
def run(root: Path) -> RunPaths:
    return page_run(root, "digits-aaaaaa", RECORDS)


def go_on(run: RunPaths) -> None:
    """Report one more record."""
    with Path(run.metrics(1, "chief-0")).open("a") as file:
        file.write(json.dumps(LATER | {"epoch": 2}) + "\n")


@pytest.mark.parametrize("store", ["folder", "sqlite"])
def test_mlflow_has_a_run_once_with_its_params_tags_and_history(store: str, tmp_path: Path, run) -> None:
    # What MLflow's own databases need besides mlflow-skinny.
    tracker = Foreign(tmp_path, "mlflow-skinny", *(["sqlalchemy", "alembic"] if store == "sqlite" else []))
    address = {"folder": f"file://{tmp_path}/mlruns", "sqlite": f"sqlite:///{tmp_path}/mlflow.db"}[store]
    tracker.variables = {"MLFLOW_TRACKING_URI": address, "MLFLOW_ALLOW_FILE_STORE": "true"}
    first = tracker.export("mlflow", "digits-aaaaaa")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(f"digits-aaaaaa {address} run ")
    assert "does not take the name 'acc(top 5)': it is 'acc_top 5_' there" in first.stderr
    tracker.export("mlflow", "digits-aaaaaa")
    (found,) = tracker.read(READ_MLFLOW)
    assert (found["project"], found["name"], found["state"]) == ("digits", "digits-aaaaaa", "FINISHED")
    assert found["params"]["podlift.workers"] == "2" and found["tags"]["podlift.url"] == run.url
    loss, times = found["points"]["loss"], [int(record["time"] * 1000) for record in RECORDS]
    assert [each[:2] for each in loss] == [[10, times[0]], [20, times[1]], [20, times[2]]]
    assert loss[0][2] == 1.5 and loss[1][2] != loss[1][2] and loss[2][2] == 0.25
    assert found["points"]["acc_top 5_"] == [[10, times[0], 0.5], [20, times[1], 0.625]]
    assert found["points"]["huge"][0][2] > 1e308
    go_on(run)
    assert tracker.export("mlflow", "digits-aaaaaa").returncode == 0
    (found,) = tracker.read(READ_MLFLOW)
    assert [each[0] for each in found["points"]["loss"]] == [10, 20, 20, 30]


def test_mlflow_without_a_usable_store_names_the_setting(tmp_path: Path, run) -> None:
    tracker = Foreign(tmp_path, "mlflow-skinny")
    for address in ("nowhere://host/db", f"file://{tmp_path}/mlruns"):
        tracker.variables = {"MLFLOW_TRACKING_URI": address}
        refused = tracker.export("mlflow", "digits-aaaaaa")
        assert refused.returncode == 2, refused.stderr
        assert "Next: set MLFLOW_TRACKING_URI to your server" in refused.stderr


def test_wandb_has_an_offline_run_once_which_the_next_export_replaces(tmp_path: Path, run) -> None:
    tracker = Foreign(tmp_path, "wandb")
    tracker.variables = {"WANDB_MODE": "offline"}
    first = tracker.export("wandb", "digits-aaaaaa")
    assert first.returncode == 0, first.stderr
    assert "Next: wandb sync " in first.stderr
    go_on(run)
    second = tracker.export("wandb", "digits-aaaaaa")
    assert second.returncode == 0 and second.stdout != first.stdout, second.stderr
    (found,) = tracker.read(READ_WANDB)
    assert (found["project"], found["name"], found["code"]) == ("digits", "digits-aaaaaa", 0)
    assert found["params"]["podlift.workers"] == 2 and found["params"]["podlift.state"] == "SUCCEEDED"
    points = found["points"]
    assert [point["podlift/step"] for point in points] == [10, 20, 20, 30]
    assert [point["_timestamp"] for point in points] == [record["time"] for record in (*RECORDS, LATER)]
    assert points[0]["acc(top 5)"] == 0.5 and points[2]["loss"] == 0.25 and found["summary"]["loss"] == 0.125
    assert tracker.export("wandb", "digits-aaaaaa", "--into", "mine").returncode == 0
    assert {each["project"] for each in tracker.read(READ_WANDB)} == {"digits", "mine"}
    tracker.variables = {"WANDB_MODE": "disabled"}
    refused = tracker.export("wandb", "digits-aaaaaa")
    assert refused.returncode == 2 and "WANDB_MODE=disabled" in refused.stderr
    tracker.variables = {"WANDB_MODE": "online"}
    refused = tracker.export("wandb", "digits-aaaaaa")
    assert refused.returncode == 3 and "Weights & Biases did not take all of digits-aaaaaa" in refused.stderr


def test_trackio_has_a_run_once_and_keeps_runs_of_others(tmp_path: Path, root: Path, run) -> None:
    tracker = Foreign(tmp_path, "trackio")
    tracker.variables = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    other = page_run(root, "digits-bbbbbb", [])
    for _ in range(2):
        done = tracker.export("trackio", "digits-aaaaaa", "digits-bbbbbb")
        assert done.returncode == 0, done.stderr
        shown = [f"{name} trackio show --project digits" for name in ("digits-aaaaaa", "digits-bbbbbb")]
        assert done.stdout.splitlines() == shown
        go_on(run)
    found = {each["name"]: each for each in tracker.read(READ_TRACKIO)}
    assert len(tracker.read(READ_TRACKIO)) == 2 and found["digits-bbbbbb"]["params"]["podlift.url"] == other.url
    points = found["digits-aaaaaa"]["points"]
    assert [step for step, _ in points] == [10, 20, 20, 30] and points[0][1]["loss"] == 1.5
    assert points[1][1]["loss"] == "NaN" and points[2][1]["huge"] == "Infinity"
    assert found["digits-aaaaaa"]["params"]["final/loss"] == 0.125
    tracker.variables |= {"TRACKIO_SPACE_ID": "me/space"}
    refused = tracker.export("trackio", "digits-aaaaaa")
    assert refused.returncode == 2 and "TRACKIO_SPACE_ID" in refused.stderr
