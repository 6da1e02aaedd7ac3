"""Two and three tasks give the numbers of one, through Keras's own `fit`, `evaluate` and `predict`.

The rarer cases run on three tasks; two, and a dense network, are in the matrix of strategies, too.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import task_processes
from agreements import assert_as_one, assert_same_on_all_tasks, results
from support import LONG_LIMIT_S, PROGRAMS, REPO

import sdk

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.tensorflow

SCRIPT = PROGRAMS / "agreement.py"
QUICK = ["dense_sgd-fit-weighted_tiny_last", "dense_sgd-loop-uneven"]
OF_STEPS = ["logs_that_one_task_reads", "sums_of_a_step"]
FULL = [
    *(f"conv_adam-fit-{shape}" for shape in ("even", "uneven", "sample_weight", "tiny_last")),
    *(f"conv_adam-loop-{shape}" for shape in ("even", "uneven", "sample_weight")),
    # In the matrix of strategies, each replica of a loop has examples.
    *(f"dense_sgd-loop-{shape}" for shape in ("sample_weight", "tiny_last")),
    *[
        "arrays_and_validation",
        "repeated_data",
        "static_batches",
        "class_weights",
        "two_outputs_and_regularizers",
        "masked_loss",
        "masked_mean_with_sample_weight",
        "mean_with_sample_weight",
        "sum_reduction",
        "loss_function_that_returns_a_number",
        "clipped_gradients",
        "loss_scale",
        "averaged_weights",
        "compiled",
        "accumulated_gradients",
        "accumulated_scaled_gradients",
        "accumulated_rows",
        "averages_for_weights",
        "synchronized_batch_norm",
        "own_train_step",
        "eager",
        "fewer_examples_than_tasks",
        "executions",
        "executions_of_endless_data",
        "loop_of_steps",
        "single_batches",
        "predictions_of_every_type",
        "predictions_of_one_batch",
        "predictions_in_other_ways",
        "predictions_whose_batches_differ_in_shape",
        "evaluations_one_after_the_other",
    ],
]
UNLIKE_ONE_TASK = ["batch_norm"]


def tolerance(case):
    """Adam divides by roots of tiny numbers, and recurrent layers and moments add up in another order."""
    exact = case.startswith("dense_sgd") or case in ("static_batches", "repeated_data", "sum_reduction")
    return 2e-6 if exact else 2e-5


def run_tasks(folder, count, cases, timeout_s=300):
    run = sdk.submit(sdk.Job(SCRIPT, args=["cluster", *cases], resources=sdk.Resources(workers=count)), root=folder)
    found = sorted(path for path in Path(run.result(timeout_s).model_dir).iterdir() if path.is_dir())
    log = "\n".join(line.text for line in run.logs(task="chief-0"))
    assert ("keras-multi-worker" in log) == (count > 1), "the log names the cure"
    if "executions" in cases:
        assert log.count("patch steps-per-execution") == (count > 1), "the log names the cure once, where it is needed"
    return found


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return {n: run_tasks(tmp_path_factory.mktemp(f"quick{n}"), n, QUICK) for n in (1, 2)}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    cases = FULL + UNLIKE_ONE_TASK + OF_STEPS
    return {n: run_tasks(tmp_path_factory.mktemp(f"full{n}"), n, cases, timeout_s=LONG_LIMIT_S) for n in (1, 3)}


@pytest.mark.shows("Keras 3 `model.fit` fails under")
@pytest.mark.shows("The log names each workaround")
@pytest.mark.parametrize("case", QUICK)
def test_all_tasks_report_and_end_with_the_same_numbers_as_one(quick, case):
    assert_same_on_all_tasks(quick[2], case)
    assert_as_one(quick[1][0], quick[2][0], case, tolerance(case))


@pytest.mark.full
def test_a_callback_of_one_task_reads_the_logs_of_all_tasks_and_changes_nothing(full):
    assert_same_on_all_tasks(full[3], "logs_that_one_task_reads")


@pytest.mark.full
def test_a_step_on_finite_data_asks_for_its_batch_and_the_size_of_it_in_one_sum(full):
    """Beside 47 gradients, two numbers that are shown, and the question for the batch that shows the types."""
    for folder in full[3]:
        assert results(folder, "sums_of_a_step")["shown"].tolist() == [1, 2, 3, 47]


@pytest.mark.full
@pytest.mark.parametrize("case", FULL)
def test_all_tasks_agree_with_one_in_the_rarer_cases_too(full, case):
    assert_same_on_all_tasks(full[3], case)
    assert_as_one(full[1][0], full[3][0], case, tolerance(case))


@pytest.mark.full
def test_a_replica_without_examples_leaves_batch_normalization_alone(full):
    assert_same_on_all_tasks(full[3], "batch_norm")
    for name, value in results(full[3][0], "batch_norm").items():
        assert np.all(np.isfinite(value)), name


@pytest.mark.full
def test_keras_without_the_cure_still_fails_so_the_cure_is_still_needed(tmp_path):
    outcomes = task_processes.run(SCRIPT, ["cluster", *QUICK[:1]], tmp_path, 2, patched=False, timeout_s=120)
    assert any("PerReplica" in output for code, output in outcomes if code)


# --- Without any cluster ------------------------------------------------------------------------------------------

PRELUDE = """
import os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
from sdk.runtime.patches import install
from sdk.runtime.patches.keras_multi_worker import PATCH
from sdk import logs
lines = []
heard = logs.heard(lines.append)
heard.__enter__()
"""


def program(text):
    """Run a program in another process; it fails by an assertion."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(text)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


def test_it_imports_neither_tensorflow_nor_keras_itself():
    program("""
        import sys
        install([PATCH])
        assert not {"tensorflow", "keras"} & set(sys.modules)
    """)


@pytest.mark.full
def test_it_is_applied_to_this_keras_before_anything_starts_the_runtime():
    program("""
        install([PATCH])
        import keras
        import tensorflow as tf
        assert len(lines) == 1 and "keras#20585" in lines[0] and "not applied" not in lines[0], lines
        from tensorflow.python.eager import context
        assert not context.context()._initialized
    """)


@pytest.mark.full
def test_a_keras_that_was_cured_already_is_left_alone():
    program("""
        import keras.src.backend.tensorflow.trainer as trainer
        assert PATCH.needed(trainer)
        stock_reduce, stock_build = trainer.reduce_per_replica, trainer.TensorFlowTrainer._maybe_symbolic_build
        def reduce_per_replica(values, strategy, reduction):
            return trainer.tree.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)
        def build(self, iterator=None, data_batch=None):
            *_, batches = next(iter(iterator))
            first = lambda value: self.distribute_strategy.experimental_local_results(value)[0]
            self._symbolic_build(data_batch=trainer.tree.map_structure(first, next(batches)))
        trainer.reduce_per_replica = reduce_per_replica
        assert PATCH.needed(trainer), "half a cure"
        trainer.TensorFlowTrainer._maybe_symbolic_build = build
        assert not PATCH.needed(trainer)
        trainer.reduce_per_replica = stock_reduce
        assert PATCH.needed(trainer), "the other half"
        trainer.reduce_per_replica = reduce_per_replica
        install([PATCH])
        assert trainer.reduce_per_replica is reduce_per_replica and not lines
    """)


@pytest.mark.full
def test_an_unknown_keras_or_tensorflow_is_not_patched_and_the_log_reports_that():
    program("""
        import keras.src.backend.tensorflow.trainer as trainer, keras.src.version as version
        stock, known = trainer.reduce_per_replica, version.__version__
        for version.__version__, trainer.tf.__version__ in (("3.7.0", "2.18.0"), ("3.16.0", "2.21.0"), (known, "2.22.0")):
            install([PATCH])
        assert len(lines) == 3 and all("not applied" in line for line in lines), lines
        assert trainer.reduce_per_replica is stock
    """)


@pytest.mark.full
def test_one_device_computes_the_same_as_without_the_cure():
    text = """
        import keras, numpy as np, sys
        import tensorflow as tf
        strategies = [tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0"])]
        def numbers():
            for strategy in strategies:
                keras.utils.set_random_seed(1)
                with strategy.scope():
                    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
                    model.compile(keras.optimizers.SGD(0.1, clipnorm=0.1), "mse", metrics=["mae"])
                x = np.arange(33, dtype="float32").reshape(11, 3) / 10
                history = model.fit(x, x[:, :2], batch_size=4, epochs=2, shuffle=False, verbose=0).history
                yield history, model.get_weights(), model.predict(x, verbose=0)
        stock = list(numbers())
        install([PATCH])
        assert lines
        for before, after in zip(stock, numbers()):
            assert before[0] == after[0]
            np.testing.assert_array_equal(np.concatenate([w.ravel() for w in before[1]]),
                                          np.concatenate([w.ravel() for w in after[1]]))
            np.testing.assert_array_equal(before[2], after[2])
    """
    program(text)


@pytest.mark.full
@pytest.mark.parametrize(
    ("moment", "method", "expected"),
    [
        (
            "end",
            "evaluate",
            "worker-0 had ended before with exit code 0, but chief-0 was in evaluate, which every task",
        ),
        ("callback", "predict", "Tasks that train together did different things at the same time"),
    ],
)
def test_a_method_that_the_chief_alone_calls_is_named_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, method: str, expected: str
) -> None:
    monkeypatch.delenv("PODLIFT_RETRY_INFRASTRUCTURE", raising=False)
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent(f"""
        import keras
        import numpy as np
        import sdk
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x, y = np.ones((64, 4)), np.ones((64, 1))

        def alone(epoch=1, logs=None):
            if sdk.context().is_chief and epoch == 1:
                model.{method}(x)

        callback = keras.callbacks.LambdaCallback(on_epoch_end=alone)
        model.fit(x, y, epochs=4, verbose=0, callbacks=[callback] if "{moment}" == "callback" else [])
        alone()
    """)
    )
    run = sdk.submit(program, workers=2, root=tmp_path / "pods")
    status = run.wait(120)
    assert (status.state, status.attempts) == (sdk.State.FAILED, 1), run.why()
    assert expected in status.failure.message
    assert (
        f"call {method} in every task" in status.failure.message
        or "in every task, in the same order" in status.failure.message
    )


@pytest.mark.full
def test_predict_of_legacy_keras_returns_every_type_and_row_in_order(tmp_path: Path) -> None:
    pytest.importorskip("tf_keras")
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent("""
        import numpy as np
        import sdk
        import tensorflow as tf
        import tf_keras as keras

        strategy = sdk.context().strategy
        x = np.arange(20, dtype="float32")[:, None]
        for dtype in ("bool", "bfloat16", "uint8"):
            with strategy.scope():
                model = keras.Sequential([keras.layers.Lambda(lambda value: tf.cast(value - 9, dtype), input_shape=(1,))])
            found = model.predict(x, batch_size=4, verbose=0)
            print("FOUND", dtype, np.asarray(found).astype("float32").ravel().tolist())
    """)
    )
    found = []
    for workers in (1, 2):
        run = sdk.submit(program, workers=workers, root=tmp_path / "pods")
        run.result(120)
        found.append([line.text for line in run.logs(task="chief-0") if line.text.startswith("FOUND")])
    assert len(found[0]) == 3 and found[0] == found[1]
