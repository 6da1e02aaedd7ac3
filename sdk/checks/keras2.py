"""Uses that tf_keras (Keras 2) accepts and Keras 3 rejects: names, arguments, file names, and the errors of Keras 3.

Measured with Keras 3.15 and tf_keras 2.21: tests/packaging/test_keras2.py runs a program for each rule with both.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ADVICE = "code_keras='legacy' (--code-keras legacy)"

# Names below `tf.keras` that Keras 3 does not have; a name stands for all that is below it.
GONE = _words(
    "callbacks.BaseLogger callbacks.experimental constraints.RadialConstraint experimental "
    "layers.AbstractRNNCell layers.DenseFeatures layers.LocallyConnected1D layers.LocallyConnected2D layers.experimental "
    "backend.function backend.in_test_phase backend.in_train_phase backend.learning_phase backend.learning_phase_scope "
    "backend.placeholder backend.print_tensor backend.set_learning_phase "
    "metrics.MeanRelativeError metrics.MeanTensor metrics.experimental models.experimental models.model_from_config "
    "optimizers.experimental utils.GeneratorEnqueuer utils.OrderedEnqueuer utils.SequenceEnqueuer "
    "utils.SidecarEvaluator utils.experimental utils.to_ordinal utils.warmstart_embedding_matrix "
    "applications.regnet applications.resnet_rs"
)

# Arguments that Keras 3 does not have, by the name below `tf.keras`. "layers.": of every layer.
ARGUMENTS: dict[str, frozenset[str]] = {
    name: _words(words)
    for name, words in {
        "optimizers.": "lr is_legacy_optimizer",
        "layers.": "batch_input_shape",
        "layers.BatchNormalization": "fused virtual_batch_size",
        "layers.CategoryEncoding": "max_tokens",
        "layers.Dense": "weights",
        "layers.GRU": "time_major",
        "layers.IntegerLookup": "max_values",
        "layers.LSTM": "time_major",
        "callbacks.ModelCheckpoint": "period options load_weights_on_restart",
        "callbacks.TensorBoard": "write_grads batch_size embeddings_layer_names",
    }.items()
}

# The same, of methods; "model.fit" is `fit` of a model.
METHOD_ARGUMENTS: dict[str, frozenset[str]] = {
    name: _words(words)
    for name, words in {
        "model.compile": "distribute experimental_run_tf_function experimental_steps_per_execution sample_weight_mode "
        "target_tensors",
        "model.evaluate": "max_queue_size use_multiprocessing workers",
        "model.fit": "max_queue_size use_multiprocessing workers",
        "model.predict": "max_queue_size use_multiprocessing workers",
        "model.save_weights": "save_format",
        "model.test_on_batch": "reset_metrics",
        "model.train_on_batch": "reset_metrics",
        "optimizer.apply_gradients": "experimental_aggregate_gradients name skip_gradients_aggregation",
    }.items()
}
# These words occur nowhere else: they are recognized whatever the method belongs to.
UNMISTAKABLE = _words(
    "experimental_aggregate_gradients experimental_run_tf_function experimental_steps_per_execution max_queue_size "
    "skip_gradients_aggregation use_multiprocessing"
)

# Attributes that Keras 3 does not have.
ATTRIBUTES: dict[str, frozenset[str]] = {
    "metric": frozenset({"reset_states"}),
    "model": frozenset({"evaluate_generator", "fit_generator", "predict_generator", "reset_states", "state_updates"}),
    "optimizer": frozenset({"get_scaled_loss", "lr", "minimize"}),
}

# Functions of TensorFlow that a functional model of Keras 2 may call on its tensors.
TENSOR_FUNCTIONS = re.compile(
    r"(abs|add|add_n|argmax|cast|clip_by_value|concat|cumsum|divide|einsum|exp|expand_dims|gather|greater|identity|less|"
    r"linalg\.\w+|math\.\w+|matmul|maximum|minimum|multiply|nn\.\w+|norm|one_hot|ones_like|pad|pow|rank|reduce_\w+|"
    r"repeat|reshape|reverse|round|shape|sigmoid|sign|slice|split|sqrt|square|squeeze|stack|stop_gradient|"
    r"strided_slice|strings\.\w+|subtract|tanh|tile|transpose|unstack|where|zeros_like|image\.\w+)"
)

MODEL_FILES = (".keras", ".h5", ".hdf5")
CHECKPOINT_FILES = (".keras", ".h5")
WEIGHT_FILES = (".weights.h5",)

_METRICS = r"\w*(?:Accuracy|AUC|Mean|Sum|Precision|Recall|Error|Entropy|Crossentropy|Score|IoU)\w*"
_OPTIMIZERS = r"Adam\w*|Ada\w+|SGD|RMSprop|Nadam|Ftrl|Lion|Lamb|Muon|LossScaleOptimizer"
# Messages that only Keras 3 has for such a program.
_ERRORS = re.compile(
    r"`keras\.optimizers\.legacy` is not supported in Keras 3"
    r"|A KerasTensor cannot be used as input to a TensorFlow function"
    r"|Argument\(s\) not recognized: \{'(?:lr|is_legacy_optimizer|jit_compile)'"
    r"|Arguments not recognized: \{'(?:workers|use_multiprocessing|max_queue_size)'"
    r"|Invalid filepath extension for saving\. Please add either a `\.keras`"
    r"|The `save_format` argument is deprecated in Keras 3"
    r"|The filename must end in `\.weights\.h5`"
    r"|The filepath provided must end in `\.keras`"
    r"|When using `save_weights_only=True` in `ModelCheckpoint`, the filepath provided must end in"
    r"|Keras 3 only supports V3 `\.keras` files"
    r"|(?:Trainer|TensorFlowTrainer|BaseOptimizer|Model|ModelCheckpoint|TensorBoard|Layer|Discretization)"
    r"\.(?:__init__|fit|compile|predict|evaluate|train_on_batch|test_on_batch|apply_gradients|save_weights|add_weight)\(\) "
    r"got an unexpected keyword argument '(?:bins|batch_size|distribute|embeddings_layer_names|experimental_\w+|"
    r"load_weights_on_restart|max_queue_size|name|options|period|reset_metrics|sample_weight_mode|save_format|"
    r"skip_gradients_aggregation|synchronization|aggregation|target_tensors|use_multiprocessing|use_resource|workers|"
    r"write_grads)'"
    r"|Unrecognized keyword arguments passed to \w+: \{'(?:batch_input_shape|batch_size|dynamic|fused|max_tokens|"
    r"time_major|virtual_batch_size|weights)'"
    rf"|'(?:{_OPTIMIZERS})' object has no attribute '(?:lr|minimize|get_scaled_loss)'"
    rf"|'(?:{_METRICS})' object has no attribute 'reset_states'"
    r"|'(?:Sequential|Functional|Model)' object has no attribute "
    r"'(?:\w+_generator|reset_states|state_updates|updates|train_tf_function)'"
    r"|`name` must be passed as a keyword argument\. Received: add_weight\("
    r"|Invalid value for argument `reduction`\. .*Received: reduction=auto"
    r"|Could not interpret optimizer identifier: <tensorflow\.python\.training"
    # Of Keras 3.15, and not of all before it: no warning.
    r"|module '(?:keras\._tf_keras\.keras|tensorflow\.keras)\.(?:losses|metrics)' has no attribute '(?:kl_div|log_cosh|mean_)"
)
_MISSING_NAME = re.compile(
    r"module '(?:keras\._tf_keras\.keras|tensorflow\.keras|keras)((?:\.\w+)*)' has no attribute '(\w+)'"
)
_NOT_IMPORTED = re.compile(
    r"cannot import name '(\w+)' from '(?:keras\._tf_keras\.keras|tensorflow\.keras|keras)((?:\.\w+)*)'"
)
_MISSING_MODULE = re.compile(r"No module named 'tensorflow\.keras\.([\w.]+)'")


def is_gone(name: str) -> bool:
    """True for "layers.experimental.preprocessing.Rescaling": Keras 3 does not have it, below `tf.keras`."""
    parts = name.split(".")
    return any(".".join(parts[:depth]) in GONE for depth in range(1, len(parts) + 1))


def explanation(error: str) -> str:
    """Return the next step after an error that Keras 3 raises and Keras 2 does not, "" for others; `error` has its message."""
    # A loop of the program's own raises the second one, too, and Keras 2 does not help it.
    served = "pass this dataset to" in error and "/keras/src/" in error
    if not (served or _ERRORS.search(error) or any(map(is_gone, _missing(error)))):
        return ""
    return (
        "Keras 3 rejects this, and Keras 2 accepts it; tf.keras is Keras 3 since TensorFlow 2.16. Either change the program, "
        f"or run it with {ADVICE}, which makes tf.keras Keras 2; a program that imports keras itself has to import it from "
        "TensorFlow then (from tensorflow import keras)."
    )


def _missing(error: str) -> list[str]:
    names = [f"{module}.{name}".lstrip(".") for module, name in _MISSING_NAME.findall(error)]
    names += [f"{module}.{name}".lstrip(".") for name, module in _NOT_IMPORTED.findall(error)]
    return names + _MISSING_MODULE.findall(error)
