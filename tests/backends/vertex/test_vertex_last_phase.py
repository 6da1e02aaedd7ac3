"""The last phase of a run in containers: its model is registered and evaluated before the job ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from support import LIMIT_S, until

import sdk
from sdk.model_registry.models import Model
from sdk.records.recorder import read_events
from sdk.storage.registry import open_store
from sdk.testing.vertex import Cloud

# It writes the model to the bucket, as TensorFlow does with the same address.
PROGRAM = """
import os, sys, sdk
from sdk.storage.registry import open_store
ctx = sdk.context()
if ctx.is_chief:
    open_store(os.environ["AIP_MODEL_DIR"].rstrip("/")).put_new("weights", [sys.argv[1].encode()])
    ctx.report({"loss": 0.5}, step=7)
print("trained", flush=True)
"""
QUALITY = """
import os, time
from pathlib import Path
from sdk.storage.registry import open_store
def measure(model, data):
    text = Path(model, "weights").read_text()
    print("measures", text, data, "TF_CONFIG" in os.environ, flush=True)
    store = open_store(data.replace("/test/", "/signals"))
    while text == "0.7" and "go" not in [stat.key for stat in store.list("")]:
        time.sleep(0.1)
    return {"accuracy": float(text)}
"""


def submit(cloud: Cloud, write, weights: str, **more: Any) -> sdk.Run:
    write("train.py", PROGRAM)
    write("quality.py", QUALITY)
    gate = sdk.Gate(evaluate="quality:measure", data="test", metric="accuracy")
    job = sdk.Job(
        "train.py",
        args=[weights],
        inputs={"test": data_of(cloud)},
        model="digits",
        gate=gate,
        retry=sdk.Retry(infrastructure=2, preemptions=None),
        **more,
    )
    return sdk.submit(job, backend=cloud.backend())


def data_of(cloud: Cloud) -> str:
    return f"gs://{cloud.bucket}/test/"


def phases(run: sdk.Run) -> Iterator[psutil.Process]:
    """Yield the processes of the last phase as this machine sees them."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if words[-1:] == ["last_phase"] and f"/runs/{run.id}/" in words[-3]:
                yield process


def evaluating(cloud: Cloud, run: sdk.Run) -> psutil.Process:
    until(lambda: any("measures 0.7" in line.text for line in run.logs()), lambda: run.why())
    return next(phases(run))


@pytest.mark.full
def test_containers_promote_a_model_and_a_lost_container_repeats_only_the_last_phase(cloud, write) -> None:
    store = open_store(data_of(cloud).rstrip("/"))
    store.put_new("rows", [b"1,2"])
    run = submit(cloud, write, "0.5", resources=sdk.Resources(workers=2))
    status = run.wait(LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED, run.why()
    assert str(status.registered).startswith("version 1 of 'digits' was promoted: The first model"), run.why()
    texts = [line.text for line in run.logs(task="chief-0")]
    assert f"measures 0.5 {data_of(cloud)} False" in texts
    model = Model(run.plan.root, "digits")
    assert (model.champion().record.run, dict(model.champion().metrics)) == (run.id, {"loss": 0.5})

    better = submit(cloud, write, "0.7")
    evaluating(cloud, better)
    # The machine is gone, and the service starts the container again.
    assert cloud.preempt(cloud._newest_job(better))
    until(lambda: len([line for line in better.logs() if "measures 0.7" in line.text]) == 2, lambda: better.why())
    open_store(data_of(cloud).replace("/test/", "/signals")).put_new("go", [b""])
    status = better.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1), better.why()
    assert len([line for line in better.logs() if line.text == "trained"]) == 1
    assert len(read_events(better.plan.paths, ("entry",))) == 1
    assert [each.record.run for each in model.versions()] == [run.id, better.id]
    assert [(move.before, move.champion) for move in model.history()] == [(0, 1), (1, 2)]


@pytest.mark.full
def test_a_run_in_containers_can_be_cancelled_in_its_last_phase(cloud, write) -> None:
    open_store(data_of(cloud).rstrip("/")).put_new("rows", [b"1,2"])
    run = submit(cloud, write, "0.7")
    evaluating(cloud, run)
    run.cancel()
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED, run.why()
    assert Model(run.plan.root, "digits").history() == ()
