"""Programs for GPUs run unmodified in local mode, and give the numbers of one device with the same global batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agreements import assert_as_one
from support import PROGRAMS, TRAINING_S, needs

import sdk
from sdk import backends

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.tensorflow
needs("tensorflow")

SCRIPT = PROGRAMS / "agreement.py"
QUICK = ["dense_sgd-fit-weighted_tiny_last", "dense_sgd-loop-uneven"]
# A dense network, other numbers of replicas and other strategies are in the matrix. Adam divides by roots of tiny numbers.
RARER = [
    *(f"conv_adam-fit-{shape}" for shape in ("even", "uneven", "sample_weight", "tiny_last", "weighted_tiny_last")),
    *(f"conv_adam-loop-{shape}" for shape in ("even", "uneven", "sample_weight")),
    *[
        "clipped_gradients",
        "compiled",
        "accumulated_gradients",
        "averages_for_weights",
        "own_train_step",
        "class_weights",
        "fewer_examples_than_tasks",
        "executions",
        "executions_of_endless_data",
        "loop_of_steps",
    ],
]


def trained(folder, accelerator, strategies, cases):
    job = sdk.Job(SCRIPT, args=[strategies, *cases], resources=sdk.Resources(accelerator=accelerator))
    return Path(sdk.submit(job, root=folder).result(TRAINING_S).model_dir)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("quick"), "a100:2", "one,mirrored-2,central_storage-2,multi_worker-2", QUICK)


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["mirrored-2", "central_storage-2", "multi_worker-2"])
@pytest.mark.parametrize("case", QUICK)
def test_two_replicas_give_the_losses_and_weights_of_one_device(quick, case, strategy):
    assert_as_one(quick / "one", quick / strategy, case, 1e-6)


@pytest.fixture(scope="module")
def rarer(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("rarer"), "a100:4", "one,mirrored-4", RARER)


@pytest.mark.full
@pytest.mark.parametrize("case", RARER)
def test_four_replicas_give_the_numbers_of_one_device_in_the_rarer_cases(rarer, case):
    assert_as_one(rarer / "one", rarer / "mirrored-4", case, 2e-5)


# --- Questions and settings of programs, and mistakes -----------------------------------------------------------------


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    job = sdk.Job(PROGRAMS / "gpu_stand_in.py", resources=sdk.Resources(accelerator="a100:4"))
    run = sdk.submit(job, root=tmp_path_factory.mktemp("asked"))
    seen = json.loads(Path(run.result(300).model_dir, "seen.json").read_text())
    return seen, [line.text for line in run.logs(task="chief-0")], run.status().findings


@pytest.mark.shows("A program for an a100:4 or a v5e-8 runs on stand-ins")
@pytest.mark.fidelity("gpu-devices", "local")
def test_a_program_finds_its_gpus_and_its_settings_for_them_count(asked):
    seen = asked[0]
    assert seen["physical"] == [f"/physical_device:GPU:{index}" for index in range(4)]
    # Three are visible, and one of them is two.
    assert seen["logical"] == seen["local"] == [f"/device:GPU:{index}" for index in range(4)]
    assert seen["cpus"] == ["/device:CPU:0"]
    assert seen["growth"] == [True]
    assert seen["placed"].endswith("CPU:2")
    assert (seen["details"], seen["memory"]) == ("NVIDIA A100 (a stand-in)", ["current", "peak"])
    assert (seen["replicas"], seen["multi worker"], seen["central storage"]) == (2, 4, 4)


def test_tensorflow_refuses_the_same_for_gpus_and_for_their_stand_in(asked):
    assert asked[0]["late"] == "RuntimeError: Physical devices cannot be modified after being initialized"
    assert asked[0]["no limit"] == "Setting memory limit is required for GPU virtual devices"


def test_keras_computes_with_kernels_that_cpus_have(asked):
    assert asked[0]["channels first"] == [1, 3, 6, 6]
    assert asked[0]["recurrent"] == [1, 4]
    assert np.isfinite(asked[0]["mixed"]).all()


def test_the_log_names_the_stand_in_and_the_division_of_a_batch(asked):
    said = "\n".join(asked[1])
    assert "a100:4 is a stand-in here: 4 logical CPU devices of this machine in each task" in said
    assert said.count("NCCL runs as RING here") == 1
    assert "a batch of 8 examples: 4 on each of 2 replicas" in said


def test_mistakes_with_a_strategy_are_findings_with_the_change_to_make(asked):
    uneven, variable, fit = asked[2]
    assert "A batch of 5 examples is not a multiple of 2 replicas, which get 1 x 3 and 1 x 2 examples." in uneven
    assert "Next: a batch of 4 or 6." in uneven
    assert "was made outside strategy.scope(): each of the 2 replicas of a task changes the same one" in variable
    assert "fit() trains 'sequential_3' without the strategy of 2 replicas" in fit
    for text in (variable, fit, asked[0]["outside"]):
        assert "Next: make the model, its optimizer and its metrics, and call compile(), inside" in text
    assert asked[0]["outside"].startswith("ValueError: The variable 'sequential_3/dense_3/kernel")


def test_only_stand_ins_have_a_variable_for_onednn_and_the_jobs_own_value_wins(write):
    write("train.py", "print(1)")

    def value(**options):
        (task,) = backends.load("local").render(sdk.plan("train.py", **options)).body["tasks"]
        return task["env"].get("TF_ENABLE_ONEDNN_OPTS")

    assert (value(accelerator="a100"), value(accelerator="v5e-1"), value()) == ("1", "1", None)
    assert value(accelerator="a100", env={"TF_ENABLE_ONEDNN_OPTS": "0"}) == "0"


LATE = """
    import tensorflow as tf

    batch = 8 * tf.constant(2)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""


def test_a_strategy_after_the_first_operation_is_refused_with_the_line_of_that(write, root):
    write("late.py", LATE)
    run = sdk.submit("late.py", workers=2, root=root)
    status = run.wait(120)
    assert status.failure is not None
    assert (
        "MultiWorkerMirroredStrategy comes too late: TensorFlow was started before it, in late.py:4. Next: make it"
        in (status.failure.message)
    )


FEWER = """
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    import tensorflow as tf

    print("replicas", tf.distribute.MirroredStrategy().num_replicas_in_sync)
"""


@pytest.mark.full
def test_a_program_that_hides_gpus_has_fewer(write, root):
    write("fewer.py", FEWER)
    run = sdk.submit("fewer.py", accelerator="a100:4", root=root)
    run.result(120)
    assert "replicas 2" in [line.text for line in run.logs()]


@pytest.mark.full
def test_multi_worker_strategies_use_one_cpu_without_the_cure_that_is_still_needed():
    text = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
print("replicas", tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=True)
    assert "replicas 1" in done.stdout
