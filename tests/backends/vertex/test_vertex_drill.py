"""Trainings on an emulated Vertex AI, and drills, which also take away containers, machines and a region."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from support import LONG_LIMIT_S as LIMIT_S
from support import PROGRAMS, REPO, made

import sdk
from sdk.backends.vertex.job import disturb
from sdk.drill import run_drill
from sdk.drill.comparison import compare_ends, end_of
from sdk.job.layout import RunPaths
from sdk.job.payload import Drill, Kill
from sdk.testing.vertex import Cloud

DIGITS = REPO / "jobs" / "digits" / "train.py"
EPOCHS = 20
# Tasks on several machines agree on steps that are up to five seconds ahead.
AGREED_S = 6.0


def start(cloud: Cloud, epochs: int) -> sdk.Run:
    """Submit the digits, with everything that is random decided: two of these are the same training."""
    settings = {"workers": 3, "checkpoint_every": "50steps", "retry_infrastructure": 3, "retry_preemptions": None}
    plan = sdk.plan(DIGITS, args=["--epochs", str(epochs)], backend=cloud.backend(), **settings)
    return sdk.submit(replace(plan, drill=Drill(seed=7)))


def objects(cloud: Cloud, run: sdk.Run) -> set[str]:
    """Return the names of all objects of the bucket, objects of the run without its directory."""
    place = run.url.partition("://")[2].partition("/")[2] + "/"
    return {blob.name.removeprefix(place) for blob in cloud.client().list_blobs(cloud.bucket)}


def undisturbed(cloud: Cloud) -> tuple[sdk.Run, int]:
    """Return a run and its number of epochs, with which another run can be preempted in the third epoch."""
    run = start(cloud, EPOCHS)
    assert run.result(LIMIT_S).metrics["val_accuracy"] is not None
    times = [record["time"] for record in run.metrics()]
    each_s = (times[-1] - times[1]) / (len(times) - 2)
    epochs = max(EPOCHS, 4 + int(AGREED_S / each_s))
    if epochs > EPOCHS:
        run = start(cloud, epochs)
        assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    return run, epochs


@pytest.mark.tensorflow
@pytest.mark.full
def test_a_preempted_cluster_ends_with_the_weights_of_an_undisturbed_one(cloud, tmp_path) -> None:
    whole, epochs = undisturbed(cloud)
    assert len(whole.metrics()) == epochs
    there = objects(cloud, whole)
    assert f"podlift/bundles/{whole.plan.code.digest}.tar" in there
    assert {"plan.json", "jobs/0001.launch_spec.json", "jobs/0001.intent.json", "jobs/0001.created.json"} <= there
    assert {"attempts/0001/membership.json", "events/0001.chief-0.000001.entry.json", "model/digits.keras"} <= there
    (job,) = made(cloud)
    assert (job.labels["podlift-run"], job.labels["podlift-job"]) == (whole.id, "1")
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    whole.download(tmp_path / "home")
    assert (tmp_path / "home" / "model" / "digits.keras").stat().st_size > 10_000

    cloud.forget_requests()
    cloud.faults({"api": "vertex", "kind": "preempt", "replica": "workerpool1-0", "log": f"Epoch 2/{epochs}"})
    run = start(cloud, epochs)
    sent = [each["object"] for each in cloud.requests().recent if each["operation"] == "objects.insert"]
    assert run.plan.code.digest == whole.plan.code.digest
    assert [name for name in sent if "/bundles/" in name] == [], "the same code is not uploaded again"
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2)
    why = " ".join(run.why().split())
    assert "The machine of workerpool1-0 is being taken away." in why
    assert "attempt 1 ended (" in why.partition("attempt 2 started, continues at step")[0]
    there = objects(cloud, run)
    assert {"attempts/0001/membership.json", "attempts/0002/membership.json"} <= there
    assert any(name.startswith("events/0002.worker-1.") for name in there)
    assert [entry.step for entry in run.checkpoints()][-1] == 24 * epochs
    ends = [end_of(RunPaths(each.url)) for each in (whole, run)]
    assert compare_ends(ends[0], ends[1]) == ([], [])  # type: ignore[arg-type]
    second = [line.text for line in run.logs(task="chief-0", attempt=2)]
    assert not any(f"Epoch 1/{epochs}" in line for line in second), "it went on where it was"


@pytest.mark.tensorflow
@pytest.mark.full
def test_an_evaluator_goes_on_when_the_chief_is_preempted_and_ends_with_the_training(write, cloud) -> None:
    write("train.py", (PROGRAMS / "evaluated.py").read_text())
    chief = "workerpool0-0"
    # Once: the chief prints it after its second step.
    cloud.faults({"api": "vertex", "kind": "preempt", "replica": chief, "writer": chief, "log": '"sum"'})
    saves = {"checkpoint_every": "2steps", "checkpoint_keep_last": 20, "checkpoint_on_busy": "block"}
    limits = {"timeout": LIMIT_S, "limit_grace": 30, "retry_infrastructure": 3, "retry_preemptions": None}
    about = {"args": ["loop", "0.2"], "evaluator": True, **saves, **limits}
    run = sdk.submit("train.py", backend=cloud.backend(), **about)
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    steps = [record["step"] for record in run.metrics() if "val_sum" in record]
    assert steps == sorted(set(steps)) and {2, 4, 6, 8} <= set(steps), "each checkpoint once"
    assert "evaluator: the training has ended" in "\n".join(line.text for line in run.logs(task="evaluator-0"))


def losses(run: sdk.Run, word: str) -> dict[str, float]:
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    return {line.task: float(line.text.split()[1]) for line in run.logs() if line.text.startswith(f"{word} ")}


@pytest.mark.tensorflow
@pytest.mark.full
def test_every_container_begins_with_the_champion_of_the_bucket(cloud) -> None:
    def submitted(**settings: object) -> sdk.Run:
        backend = cloud.backend()
        return sdk.submit(PROGRAMS / "warm_started.py", backend=backend, model="digits", workers=2, **settings)  # type: ignore[arg-type]

    first = submitted()
    (loss,) = {round(each, 5) for each in losses(first, "last").values()}
    registry = sdk.models(first.plan.root)
    registry.add(first.url, model="digits")
    registry["digits"].promote("latest")
    second = submitted(warm_start="champion")
    assert second.plan.initial.version == 1
    found = losses(second, "first")
    assert set(found) == {"chief-0", "worker-0"}
    assert list(found.values()) == [pytest.approx(loss, rel=1e-4)] * 2


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
