"""Containers of a job, from the loader's first word to the exit code: real processes, and a storage on loopback."""

from __future__ import annotations

from .cloud import BUCKET, Cloud

HELLO = """
import os, sdk, sys
ctx = sdk.context()
print("task", ctx.task, ctx.dirs.model, os.environ["AIP_MODEL_DIR"], sys.argv[1:])
open("left.txt", "w").write("left")
ctx.report({"loss": 0.5}, step=1)
"""


def test_one_container_runs_the_program_and_leaves_its_records_in_the_bucket(cloud: Cloud, write) -> None:
    write("train.py", HELLO)
    plan = cloud.plan("train.py", args=["--epochs", "2"])
    container = cloud.start(plan, cloud.order(plan))
    assert container.code() == 0, container.said
    assert f"task chief-0 {plan.url}/model {plan.url}/model/ ['--epochs', '2']" in container.said
    kinds = [event.kind for event in cloud.events(plan, "attempt_started", "entry", "first_step", "done", "exited", "collected")]
    assert kinds == ["attempt_started", "entry", "first_step", "done", "exited", "collected"]
    blobs = {blob.name.removeprefix(f"podlift/runs/{plan.run_id}/") for blob in cloud.gcs.client().list_blobs(BUCKET)}
    assert {"outputs/work/left.txt", "attempts/0001/claim.json"} <= blobs
    assert any(name.startswith("attempts/0001/metrics/chief-0.jsonl/") for name in blobs)
    assert list(cloud.folder.glob("tmp-0/*")) == []
