"""A drill on the emulated Vertex AI: it also takes away containers, machines and a region, and never in a real cloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO

import sdk
from sdk.backends.vertex.job import disturb
from sdk.drill import run_drill
from sdk.job.payload import Kill

PLACES = ("us-central1:spot", "europe-west4:standard")
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


def test_a_drill_refuses_an_emulator_with_fault_rules_before_anything_starts(cloud, project) -> None:
    (project / "train.py").write_text("print(1)")
    cloud.faults({"api": "vertex", "kind": "stockout", "times": 3})
    for words in (["chief-0@step:1:agent"], ["random:2"]):
        with pytest.raises(sdk.InputError, match="already disturbs its jobs by fault rules"):
            run_drill("train.py", kills=words, backend=cloud.backend())
    assert len(cloud.ask("GET", "/_faults")["faults"]) == 1
    assert sdk.runs(root=f"gs://{cloud.bucket}/podlift") == []


def test_the_rules_of_one_run_wait_for_the_lines_of_its_tasks(cloud, project) -> None:
    (project / "train.py").write_text("print(1)")
    plan = sdk.plan("train.py", workers=3, backend=cloud.backend(), name="some-run")
    kills = [
        Kill(task="worker-1", point="step", number=3, what="machine"),
        Kill(task="chief-0", point="step", number=4, what="process"),
        Kill(task="chief-0", point="step", number=5, what="region"),
    ]
    first, *region = disturb.rules(plan, kills)
    assert first == {
        "api": "vertex",
        "display_name": f"^{plan.run_id}$".replace("-", r"\-"),
        "writer": "workerpool1-1",
        "log": r"^podlift:\ drill:\ worker\-1@step:3:machine$",
        "kind": "preempt",
        "replica": "workerpool1-1",
        "times": 1,
    }
    assert [(rule["kind"], rule["writer"], rule["times"]) for rule in region] == [
        ("kill", "workerpool0-0", 1),
        ("stockout", "workerpool0-0", 3),
    ]


@pytest.mark.full
def test_the_command_drills_a_training_in_emulated_containers(cloud, project) -> None:
    (project / "train.py").write_text(TRAINING)
    place = ["--vertex-project", cloud.project, "--vertex-bucket", cloud.bucket, "--vertex-image", "podlift/emulated"]
    words = ["--backend", "vertex", *place, "--vertex-regions", ",".join(PLACES), "--checkpoint-every", "5steps"]
    for kill in ("chief-0@step:7", "chief-0@step:12:agent", "chief-0@step:17:machine", "chief-0@step:23:region"):
        words += ["--kill", kill]
    command = [sys.executable, "-m", "sdk", "drill", "--json", *words, "train.py"]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"], told["weights_equal"]) == (0, "passed", True), done
    assert [kill["what"] for kill in told["kills"]] == ["process", "agent", "machine", "region"]
    assert (told["steps"], told["attempts"], told["kills_missed"]) == (30, 5, [])
    assert [kill["step"] for kill in told["kills"]][:2] == [7, 12]
    assert cloud.ask("GET", "/_faults")["faults"] == [], "the drill leaves no rule"
    assert all(url.startswith(f"gs://{cloud.bucket}/") for url in told["runs"].values())
    assert "is over (killed)" in done.stderr
