"""Code that only Keras 2 accepts is named before the run where its source shows it, and at the failure otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import LONG_LIMIT_S, needs

import sdk
from sdk.checks import keras2

BEGIN = """
import os
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

x, y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")

def build():
    model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    return model

model = build()
"""
# Each fails with Keras 3, and runs with tf_keras.
REJECTED = {
    "a legacy optimizer": "tf.keras.optimizers.legacy.Adam(0.1)",
    "lr of an optimizer": "tf.keras.optimizers.Adam(lr=0.1)",
    "experimental preprocessing": "layers.experimental.preprocessing.Rescaling(1 / 255)",
    "an import from experimental": "from tensorflow.keras.layers.experimental import preprocessing",
    "an import of a layer": "from tensorflow.keras.layers import DenseFeatures",
    "an experimental callback": "tf.keras.callbacks.experimental.BackupAndRestore('backup')",
    "the learning phase": "tf.keras.backend.learning_phase()",
    "a schedule": "tf.keras.experimental.CosineDecay(0.1, 10)",
    "workers of fit": "model.fit(x, y, verbose=0, workers=2)",
    "multiprocessing of fit": "model.fit(x, y, verbose=0, use_multiprocessing=False)",
    "workers of evaluate": "model.evaluate(x, y, verbose=0, workers=2)",
    "workers of predict": "model.predict(x, verbose=0, workers=2)",
    "fit_generator": "model.fit_generator(iter([(x, y)]), steps_per_epoch=1, verbose=0)",
    "Horovod's compile": "model.compile('sgd', 'mse', experimental_run_tf_function=False)",
    "a folder": "model.save('folder')",
    "a folder of a variable": "path = os.path.join('exported', '1')\nmodel.save(path)",
    "Vertex AI's folder": "os.environ['AIP_MODEL_DIR'] = 'aip'\nmodel.save(os.environ['AIP_MODEL_DIR'])",
    "a folder by a function": "tf.keras.models.save_model(model, 'saved')",
    "weights": "model.save_weights('weights/my')",
    "weights in h5": "model.save_weights('weights.h5')",
    "the latest checkpoint": (
        "tf.train.Checkpoint(model).save('ck/w')\nlatest = tf.train.latest_checkpoint('ck')\nmodel.load_weights(latest)"
    ),
    "a checkpoint": "tf.keras.callbacks.ModelCheckpoint('ckpt-{epoch}')",
    "a checkpoint of weights": "tf.keras.callbacks.ModelCheckpoint('cp.ckpt', save_weights_only=True)",
    "a period": "tf.keras.callbacks.ModelCheckpoint('cp.keras', period=2)",
    "gradients of TensorBoard": "tf.keras.callbacks.TensorBoard('logs', write_grads=True)",
    "the rate of an optimizer": "print(model.optimizer.lr)",
    "minimize": "model.optimizer.minimize(lambda: tf.reduce_mean(model(x)), model.trainable_variables)",
    "aggregation of gradients": (
        "pairs = [(tf.zeros_like(v), v) for v in model.trainable_variables]\n"
        "model.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=True)"
    ),
    "reset_states of a metric": "seen = tf.keras.metrics.Mean()\nseen.reset_states()",
    "reset_metrics": "model.train_on_batch(x, y, reset_metrics=False)",
    "a batch's shape": "layers.LSTM(2, batch_input_shape=(1, 2, 3))",
    "a fused layer": "layers.BatchNormalization(fused=True)",
    "weights of a layer": "layers.Dense(2, input_shape=(4,), weights=[np.ones((4, 2)), np.ones(2)])",
    "a reduction": (
        "loss = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.AUTO)\nloss(np.ones(2), np.ones(2))"
    ),
    "a function on a tensor": (
        "inputs = tf.keras.Input((4,))\nhidden = layers.Dense(4)(inputs)\ntf.keras.Model(inputs, tf.reshape(hidden, (-1, 2)))"
    ),
    "a function on two tensors": (
        "def joined():\n    a = tf.keras.Input((4,))\n    b = layers.Dense(4)(a)\n    return tf.concat([a, b], 1)\njoined()"
    ),
    "the name of a weight": (
        "class Layer(layers.Layer):\n    def build(self, shape):\n        self.k = self.add_weight('k', shape=(4, 2))\n"
        "    def call(self, x):\n        return tf.matmul(x, self.k)\nLayer()(x)"
    ),
    "a model of one's own": (
        "class Mine(tf.keras.Model):\n    def __init__(self):\n        super().__init__()\n        self.d = layers.Dense(2)\n"
        "    def call(self, x):\n        return self.d(x)\n"
        "mine = Mine()\nmine(x)\nmine.save('mine')"
    ),
}  # fmt: skip
# Each runs with Keras 3: a finding would be a false alarm.
HARMLESS = {
    "a model file": "model.save('m.keras')\nmodel.save('m.h5')\nmodel.save_weights('m.weights.h5')",
    "a path that is unknown": "path = os.path.join('x', os.getcwd())\nif os.path.exists('nowhere'): model.save(path)",
    "files of other libraries": "np.save('array', x)\ntf.saved_model.save(model, 'saved')\nmodel.export('exported')",
    "an attempt": "try:\n    tf.keras.optimizers.legacy.Adam(0.1)\nexcept ImportError:\n    tf.keras.optimizers.Adam(0.1)",
    "a test of the version": (
        "if int(tf.keras.__version__[0]) < 3:\n    model.fit(x, y, workers=2)\nelse:\n    model.fit(x, y, verbose=0)"
    ),
    "a checkpoint of a loop": "tf.train.Checkpoint(model=model).save('ck/x')",
    "keywords of others": "class Trainer:\n    def fit(self, **given): pass\nTrainer().fit(use_multiprocessing=True)",
    "a name of one's own": "class Options: lr = 0.1\noptimizer = Options()\nprint(optimizer.lr)",
    "layers on arrays": "h = layers.Dense(4)(x)\nprint(tf.reshape(h, (-1, 2)))",
    "a lambda": "h = tf.keras.Input((4,))\nh = layers.Lambda(lambda h: tf.reshape(h, (-1, 2)))(h)",
    "functions in call": (
        "class Layer(layers.Layer):\n    def call(self, inputs):\n        return tf.reshape(inputs, (-1, 2))\n"
        "inputs = tf.keras.Input((4,))\ntf.keras.Model(inputs, Layer()(inputs))"
    ),
    "a tensor that is an array later": "h = tf.keras.Input((4,))\nh = np.ones((2, 2))\ntf.reshape(h, (4,))",
    "what Keras 3 kept": (
        "tf.keras.losses.SparseCategoricalCrossentropy(reduction=tf.keras.losses.Reduction.NONE)\n"
        "tf.keras.preprocessing.image.ImageDataGenerator()\nlayers.Dense(2, input_shape=(4,))\n"
        "tf.keras.callbacks.ModelCheckpoint('c.weights.h5', save_weights_only=True)\nlayers.Embedding(3, 2, input_length=3)\n"
        "tf.keras.metrics.Mean().reset_state()\nmodel.optimizer.learning_rate = 0.1"
    ),
    "the type of an optimizer": "isinstance(model.optimizer, tf.keras.optimizers.Optimizer)",
}  # fmt: skip

RUN = """
import json, os, sys, traceback
cases = json.load(open(sys.argv[1]))
found = {}
for name, text in cases.items():
    space = {"__name__": "case"}
    exec(compile(cases["begin"], "begin", "exec"), space)
    try:
        exec(compile(text, "case", "exec"), space)
        found[name] = ""
    except BaseException:
        found[name] = traceback.format_exc()
json.dump(found, open(sys.argv[2], "w"))
"""


def warned(write, body: str, **settings: object) -> list[str]:
    write("train.py", BEGIN + body + "\n")
    findings = sdk.plan("train.py", **settings).findings  # type: ignore[arg-type]
    return [finding.message for finding in findings if finding.message.startswith("Keras 3 rejects")]


@pytest.mark.parametrize("name", REJECTED)
def test_a_program_of_keras_2_is_told_about_it_with_the_line(name: str, write) -> None:
    (message,) = warned(write, REJECTED[name])
    assert "train.py:" in message and "--code-keras legacy" in message


@pytest.mark.parametrize("name", HARMLESS)
def test_a_program_of_keras_3_raises_no_alarm(name: str, write) -> None:
    assert warned(write, HARMLESS[name]) == []


def test_lines_are_named_in_their_order_and_counted(write) -> None:
    (message,) = warned(write, "\n".join(["model.save('folder')"] * 5))
    line = BEGIN.count("\n") + 1
    first = f"train.py:{line} writes 'folder', which Keras 3 accepts only as a .keras or .h5 file; train.py:{line + 1} "
    assert first in message and "; and 2 more lines. Next: " in message
    assert "import from TensorFlow" not in message


def test_imports_from_keras_itself_have_to_come_from_tensorflow(write) -> None:
    write("train.py", "import keras\nkeras.optimizers.legacy.Adam(0.1)\n")
    (message,) = [finding.message for finding in sdk.plan("train.py").findings if "Keras 3" in finding.message]
    assert "from tensorflow import keras" in message


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"code_keras": "legacy"}, ""),
        ({"env": {"TF_USE_LEGACY_KERAS": "1"}}, ""),
        ({}, "os.environ['TF_USE_LEGACY_KERAS'] = '1'\n"),
    ],
)
def test_with_keras_2_nothing_is_said(write, settings: dict[str, object], line: str) -> None:
    assert warned(write, line + REJECTED["a folder"], **settings) == []


@pytest.mark.parametrize(
    "error",
    [
        "AttributeError: 'Namespace' object has no attribute 'lr'",
        "AttributeError: module 'tensorflow.keras.layers' has no attribute 'Dens'",
        "TypeError: Trainer.fit() got an unexpected keyword argument 'epoch'",
        "ModuleNotFoundError: No module named 'experimental'",
        "ValueError: Shapes (None, 10) and (None, 1) are incompatible",
    ],
)
def test_other_errors_are_not_explained_by_keras(error: str) -> None:
    assert keras2.explanation(error) == ""
    ray = "AttributeError: module 'keras._tf_keras.keras.losses' has no attribute 'mean_squared_error'"
    assert "--code-keras legacy" in keras2.explanation(ray), "of Ray Train's quick start"


@pytest.mark.full
@pytest.mark.tensorflow
def test_the_statements_about_both_libraries_are_true(tmp_path: Path) -> None:
    needs("tensorflow", "keras", "tf_keras")
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "cases.json").write_text(json.dumps({"begin": BEGIN, **REJECTED, **HARMLESS}))
    tracebacks = {}
    for legacy in ("0", "1"):
        folder = tmp_path / legacy
        folder.mkdir()
        command = [sys.executable, "../run.py", "../cases.json", "found.json"]
        env = {**os.environ, "TF_USE_LEGACY_KERAS": legacy, "TF_CPP_MIN_LOG_LEVEL": "3"}
        subprocess.run(command, cwd=folder, env=env, check=True, timeout=LONG_LIMIT_S, capture_output=True)
        tracebacks[legacy] = json.loads((folder / "found.json").read_text())
    assert [name for name in REJECTED if not tracebacks["0"][name]] == [], "Keras 3 accepts them now"
    rejected = {name: tracebacks["1"][name] for name in REJECTED if tracebacks["1"][name]}
    assert rejected == {}, "Keras 2 rejects them, too"
    assert {name: tracebacks["0"][name] for name in HARMLESS if tracebacks["0"][name]} == {}
    explained = {tracebacks["0"][name]: keras2.explanation(tracebacks["0"][name]) for name in REJECTED}
    assert [each for each, said in explained.items() if "--code-keras legacy" not in said] == []
