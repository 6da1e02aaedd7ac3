"""A drill on the emulated Vertex AI: it also takes away containers, machines and a region, and never in a real cloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO

import sdk
from sdk.backends.vertex import disturb
from sdk.clock import SystemClock
from sdk.drill import kills, run_drill, runs
from sdk.job.payload import Drill, Kill, KillTarget
from sdk.testing.vertex import Cloud

PLACES = ("us-central1:spot", "europe-west4:standard")
# It does what checkpoints do in a training, and ends after 30 steps in one attempt.
PROGRAM = """
import os, time
import sdk
from sdk.records.kills import KillRecords
from sdk.runtime.hooks.auto_checkpoint import KillPoints
from sdk.job.layout import RunPaths
from sdk.job.payload import Payload
from sdk.storage.registry import open_store

ctx, attempt = sdk.context(), int(os.environ["PODLIFT_ATTEMPT"])
paths = RunPaths(os.environ["PODLIFT_RUN"])
with open(paths.payload(attempt)) as file:
    payload = Payload.from_json(file.read())
points = KillPoints(KillRecords(paths, open_store(payload.bucket_url)), attempt, ctx.task, payload.drill.kills)
for step in range(1, 31):
    print("at", step, end=" ", flush=True)
    points.reached("epoch")
    points.reached("step", step)
    ctx.report({}, step=step)
    time.sleep(0.05)
    if ctx.should_stop():
        raise SystemExit(75)
"""
TRAINING = """
import sdk
import tensorflow as tf
weights = tf.Variable([1.0, 2.0])
data = tf.data.Dataset.range(40).map(lambda i: tf.cast(i, tf.float32)).shuffle(40, seed=3).batch(4)
ckpt = sdk.context().checkpoint(weights=weights, data=data)
ckpt.restore()
for epoch in range(ckpt.epoch, 3):
    for batch in ckpt.data:
        weights.assign(weights * 0.9 + tf.reduce_sum(batch) * tf.random.uniform([]))
        ckpt.step()
"""


def at(step: int, what: KillTarget, point: Any = "step") -> Kill:
    return Kill(task="chief-0", point=point, number=step, what=what)


@pytest.mark.full
def test_each_kill_takes_away_what_it_names_and_the_run_goes_on(podlift_vertex: Cloud, project: Path) -> None:
    (project / "train.py").write_text(PROGRAM)
    wanted = (at(5, "process"), at(6, "agent"), at(7, "machine"), at(8, "region"), at(40, "process", "epoch"))
    plan = replace(sdk.plan("train.py", backend=podlift_vertex.backend(places=PLACES)), drill=Drill(seed=1))
    run, status = runs.train(runs.with_kills(plan, wanted), "killed", SystemClock())
    assert status.state is sdk.State.SUCCEEDED, run.why()
    found = runs.done(run.plan)
    # In the sixth attempt, the task has counted the epochs of those before.
    assert [(index, done["attempt"], done["step"]) for index, done in sorted(found.items())] == [
        (0, 1, 5),
        (1, 2, 6),
        (2, 3, 7),
        (3, 4, 8),
        (4, 5, found[4]["step"]),
    ]
    assert status.attempts == 6
    jobs = [
        job
        for region in ("us-central1", "europe-west4")
        for job in podlift_vertex.jobs().list_custom_jobs(
            parent=f"projects/{podlift_vertex.project}/locations/{region}", timeout=30
        )
    ]
    # The second one loses its machine, the third one gets none in its region.
    jobs.sort(key=lambda job: int(job.labels["podlift-job"]))
    assert [job.job_spec.scheduling.strategy.name for job in jobs] == ["SPOT"] * 3 + ["STRATEGY_UNSPECIFIED"]
    assert "job 3 ended (stockout)" in " ".join(run.why().split())
    assert podlift_vertex.ask("GET", "/_faults")["faults"] == [], "the drill leaves no rule"
    assert kills.missed(wanted, found) == ()


def test_an_emulator_that_disturbs_its_jobs_already_is_refused_before_anything_starts(
    podlift_vertex: Cloud, project: Path
) -> None:
    (project / "train.py").write_text("print(1)")
    podlift_vertex.faults({"api": "vertex", "kind": "stockout", "times": 3})
    for words in (["chief-0@step:1:agent"], ["random:2"]):
        with pytest.raises(sdk.InputError, match="already disturbs its jobs by fault rules"):
            run_drill("train.py", kills=words, backend=podlift_vertex.backend())
    assert len(podlift_vertex.ask("GET", "/_faults")["faults"]) == 1
    assert sdk.runs(root=f"gs://{podlift_vertex.bucket}/podlift") == []


def test_the_rules_of_one_run_wait_for_the_lines_of_its_tasks(podlift_vertex: Cloud, project: Path) -> None:
    (project / "train.py").write_text("print(1)")
    plan = sdk.plan("train.py", workers=3, backend=podlift_vertex.backend(), name="some.run".replace(".", "-"))
    wanted = [replace(at(3, "machine"), task="worker-1"), at(4, "process"), at(5, "region")]
    first, *region = disturb.rules(plan, wanted)
    about = {"api": "vertex", "display_name": f"^{plan.run_id}$".replace("-", r"\-")}
    line = r"^podlift:\ drill:\ worker\-1@step:3:machine$"
    assert first == {
        **about,
        "writer": "workerpool1-1",
        "log": line,
        "kind": "preempt",
        "replica": "workerpool1-1",
        "times": 1,
    }
    assert [(rule["kind"], rule["writer"], rule["times"]) for rule in region] == [
        ("kill", "workerpool0-0", 1),
        ("stockout", "workerpool0-0", 3),
    ]


@pytest.mark.full
def test_the_command_drills_a_training_in_emulated_containers(podlift_vertex: Cloud, project: Path) -> None:
    (project / "train.py").write_text(TRAINING)
    words = [
        "--backend",
        "vertex",
        "--vertex-project",
        podlift_vertex.project,
        "--vertex-bucket",
        podlift_vertex.bucket,
    ]
    words += ["--vertex-image", "podlift/emulated", "--vertex-places", ",".join(PLACES), "--checkpoint-every", "5steps"]
    for kill in ("chief-0@step:7", "chief-0@step:12:agent", "chief-0@step:17:machine", "chief-0@step:23:region"):
        words += ["--kill", kill]
    command = [sys.executable, "-m", "sdk", "drill", "--json", *words, "train.py"]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"], told["weights_equal"]) == (0, "passed", True), (
        f"{done.stdout} {done.stderr}"
    )
    assert [kill["what"] for kill in told["kills"]] == ["process", "agent", "machine", "region"]
    assert (told["steps"], told["attempts"], told["kills_missed"]) == (30, 5, [])
    assert [kill["step"] for kill in told["kills"]][:2] == [7, 12]
    assert all(url.startswith(f"gs://{podlift_vertex.bucket}/") for url in told["runs"].values())
    assert "is over (killed)" in done.stderr
