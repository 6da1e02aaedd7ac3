"""The plan of a job with GPUs on this machine: the stand-in, the division of a batch, the GPUs of each task."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sdk
from sdk.backends.local.checks import of_local
from sdk.checks import Facts, errors
from sdk.process import task_environment

FACTS = Facts(
    python="3.11.7", executable="python", tensorflow="2.21.0", keras="3.15.1", tf_keras=None, cpus=2, isolation=None
)


@pytest.fixture
def script(write) -> str:
    write("train.py", "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n")
    return "train.py"


def visible(plan: sdk.Plan) -> list[str]:
    addresses = dict.fromkeys(plan.tasks, "localhost:1")
    environments = (task_environment.environment(plan, 1, task, addresses, "/tmp/t") for task in plan.members)
    return [variables["CUDA_VISIBLE_DEVICES"] for variables in environments]


def findings(job: sdk.Job, facts: Facts, target: sdk.Local) -> list[str]:
    return [finding.message for finding in of_local(job, facts, target=target)]


def job(**resources: object) -> sdk.Job:
    return sdk.Job("train.py", resources=sdk.Resources(**resources))  # type: ignore[arg-type]


def test_a_plan_names_the_stand_in_and_the_division_of_a_batch_and_cpus_need_neither(script: str) -> None:
    plan = sdk.plan(script, accelerator="a100:4", workers=2)
    text = str(plan)
    assert "2 x a100:4 (a stand-in: 4 logical CPU devices): chief-0, worker-0" in text
    divided = "256 examples in a batch are 128 for each task and 32 on each replica. Use multiples of 8"
    assert f"8 with a synchronous strategy: {divided}" in text
    assert "40 GiB for each replica; here they share" in text
    assert (visible(plan), plan.fresh) == (["-1,-1", "-1,-1"], ""), "tasks are forked"
    alone = sdk.plan(script)
    assert visible(alone) == ["-1"]
    assert "replicas" not in str(alone), "one needs no line"


def test_a_plan_for_the_cloud_has_its_gpus(script: str) -> None:
    text = str(sdk.plan(script, accelerator="l4:2", backend=sdk.Vertex(project="my-project", bucket="my-bucket")))
    assert "1 x l4:2: chief-0" in text
    assert "2 with a synchronous strategy: 64 examples in a batch are 32 on each." in text
    assert "24 GiB for each replica\n" in text


def test_real_gpus_are_divided_among_the_tasks_and_parameter_servers_have_none(write) -> None:
    write("train.py", "import tensorflow as tf\nprint(tf.distribute.ParameterServerStrategy)\n")
    plan = sdk.plan("train.py", accelerator="l4:2", workers=2, ps=1)
    real = replace(plan, target=sdk.Local(gpus="real"))
    assert real.target.real_gpus
    gpus = dict(zip(plan.tasks, visible(real), strict=True))
    assert gpus == {"chief-0": "0,1", "worker-0": "2,3", "ps-0": "-1"}


def test_real_gpus_are_used_only_when_asked_and_if_there_are_enough() -> None:
    four = replace(FACTS, gpus=4)
    unused = "The 4 GPUs of this machine stay unused: local_gpus='real' uses them."
    assert unused in findings(job(accelerator="l4:2"), four, sdk.Local())
    used = "Each task has 2 GPUs of this machine, of the type that is here."
    assert used in findings(job(accelerator="l4:2", workers=2), four, sdk.Local(gpus="real"))
    for asked, said in (
        ({"accelerator": "l4:4", "workers": 2}, "needs 8 GPUs of this machine, 4 for each task. Received: 4 GPUs"),
        ({}, "is for an accelerator with GPUs. Received: accelerator='cpu'"),
    ):
        refused = errors(of_local(job(**asked), four, target=sdk.Local(gpus="real")))
        assert refused == [f"local_gpus='real' {said}. Nearest: local_gpus='stand-in'."]


def test_many_replicas_on_few_cpus_are_a_warning() -> None:
    slow = "16 replicas share 2 CPUs: each step takes about 8 times as long."
    assert slow in findings(job(accelerator="h200:8", workers=2), FACTS, sdk.Local())
    assert slow not in findings(job(accelerator="h200:8"), FACTS, sdk.Local())


def test_a_variable_of_the_shell_asks_for_fewer_replicas(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_GPU_REPLICAS", "2")
    notes = [finding.message for finding in sdk.plan(script, accelerator="a100:8").findings]
    assert "PODLIFT_GPU_REPLICAS=2: each task has 2 replicas instead of 8." in notes
    monkeypatch.setenv("PODLIFT_GPU_REPLICAS", "9")
    with pytest.raises(sdk.InputError, match=r"a100:8: 1 to 8\. Received: '9'\. Nearest: PODLIFT_GPU_REPLICAS=8"):
        sdk.plan(script, accelerator="a100:8")
