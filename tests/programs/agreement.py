"""A training program like anybody's: it makes its own strategies (`strategies.py`) and knows nothing of who starts it.

Run with the strategies, one after the other in one process, and the names of cases; every case is a tiny model with fixed data,
weights and order, so that any number of tasks and replicas with the same global batch has to give the same numbers.
The results of a strategy, or a task of a "cluster", are in `$AIP_MODEL_DIR/<its name>/<case>.npz` (weights, predictions) and
`<case>.json` (history, evaluation).

Usage: python agreement.py STRATEGY[,STRATEGY...] CASE...
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import strategies
import tensorflow as tf

BATCH = 40  # 20/20 on two tasks, 14/13/13 on three
SIZES = {"even": 120, "uneven": 110, "sample_weight": 110, "tiny_last": 81, "weighted_tiny_last": 81}
WEIGHTED = {"sample_weight", "weighted_tiny_last"}
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


# --- Data and models ----------------------------------------------------------------------------------------------


def numbers(size, features=6, outputs=2):
    random = np.random.default_rng(3)
    x = random.normal(size=(size, features)).astype("float32")
    y = (x @ random.normal(size=(features, outputs)) + 0.1 * random.normal(size=(size, outputs))).astype("float32")
    weight = random.integers(0, 4, size=size).astype("float32")  # with zeros
    return x, y, weight


def images(size):
    random = np.random.default_rng(4)
    x = random.normal(size=(size, 8, 8, 1)).astype("float32")
    return x, random.integers(0, 3, size=size), random.uniform(0, 2, size=size).astype("float32")


def dense_sgd(**compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", "metrics": ["mae"]} | compiled)
    return model


def conv_adam():
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def in_batches(arrays, size=BATCH):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size)


def fitted(model, data, predict_on=None, **options):
    """The usual end of a case: train, then look at everything that Keras reports."""
    history = model.fit(data, epochs=2, verbose=0, **options).history
    seen = {"history": history, "weights": model.get_weights()}
    seen["evaluate"] = model.evaluate(data, verbose=0, return_dict=True)
    if predict_on is not None:
        seen["predict"] = model.predict(predict_on, batch_size=BATCH, verbose=0)
    return seen


# --- The table: {dense_sgd, conv_adam} x {fit, loop} x SIZES ------------------------------------------------------


def by_fit(strategy, make, data, shape):
    with strategy.scope():
        model = make()
    arrays = data(SIZES[shape])
    arrays = arrays if shape in WEIGHTED else arrays[:2]
    return fitted(model, in_batches(arrays), predict_on=arrays[0])


def by_loop(strategy, make, data, shape):
    """The custom loop of TensorFlow's tutorials: per-example losses over the size of the full global batch."""
    with strategy.scope():
        model = make()
        optimizer, loss = model.optimizer, keras.losses.get(model.loss)
    x, y, weight = data(SIZES[shape])
    weight = weight if shape in WEIGHTED else np.ones_like(weight)

    @tf.function
    def train_step(batch):
        def on_replica(batch):
            x, y, weight = batch
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(loss(y, model(x, training=True)) * weight) / BATCH
            optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
            return value

        return strategy.reduce("SUM", strategy.run(on_replica, args=(batch,)), axis=None)

    batches = strategy.experimental_distribute_dataset(in_batches((x, y, weight)))
    history = {"loss": [float(train_step(batch)) for _ in range(2) for batch in batches]}
    return {"history": history, "weights": model.get_weights()}


def by(run, make, data, shape):
    return lambda strategy: run(strategy, make, data, shape)


CASES |= {
    f"{make.__name__}-{how}-{shape}": by(run, make, data, shape)
    for make, data in ((dense_sgd, numbers), (conv_adam, images))
    for how, run in {"fit": by_fit, "loop": by_loop}.items()
    for shape in SIZES
    # In a custom loop, the gradient of max pooling over no examples ends the process.
    if (make, how) != (conv_adam, "loop") or not shape.endswith("tiny_last")
}


# --- What else people pass to compile and fit ---------------------------------------------------------------------


@case
def arrays_and_validation(strategy):
    x, y, weight = numbers(130)
    with strategy.scope():
        model = dense_sgd(weighted_metrics=["mse"])
    held_out = (x[107:], y[107:], weight[107:])
    history = model.fit(
        x[:107], y[:107], sample_weight=weight[:107], batch_size=BATCH, shuffle=False, epochs=2, verbose=0,
        validation_data=held_out,
    ).history  # fmt: skip
    seen = {"history": history, "weights": model.get_weights()}
    seen["evaluate"] = model.evaluate(x, y, batch_size=BATCH, sample_weight=weight, verbose=0, return_dict=True)
    return seen


@case
def repeated_data(strategy):
    with strategy.scope():
        model = dense_sgd()
    data = in_batches(numbers(110)[:2]).repeat()
    history = model.fit(data, epochs=2, steps_per_epoch=4, verbose=0).history
    return {"history": history, "weights": model.get_weights()}


def in_executions(steps=None):
    """Three steps in an execution where there are several replicas; with `steps`, of endless data, in epochs of so many."""

    def run(strategy):
        with strategy.scope():
            each = 3 if strategy.num_replicas_in_sync > 1 else 1
            model = dense_sgd(optimizer=keras.optimizers.Adam(0.01), steps_per_execution=each)
        x, y, _ = numbers(110)
        data = in_batches((x, y), 20)
        data = data.repeat() if steps else data
        history = model.fit(data, epochs=2, steps_per_epoch=steps, verbose=0).history
        return {
            "history": history,
            "weights": model.get_weights(),
            "evaluate": model.evaluate(data, steps=steps, verbose=0, return_dict=True),
            "predict": model.predict(data.map(lambda x, y: x), steps=steps, verbose=0),
            "shown": np.array([int(model.optimizer.iterations.numpy())]),
        }

    return run


CASES |= {"executions": in_executions(), "executions_of_endless_data": in_executions(5)}


@case
def loop_of_steps(strategy):
    """A step that is a function, called by a loop that is one too, or by Python: the sums of a replica in it."""

    @tf.function
    def step(value):
        def on_replica():
            return tf.distribute.get_replica_context().all_reduce("MEAN", tf.identity(value))

        return strategy.experimental_local_results(strategy.run(on_replica))[0]

    def loop():
        total = 0.0
        for number in tf.range(3):
            if number != 1:
                total += step(tf.cast(number, tf.float32))
        return total

    return {"history": {}, "weights": [], "shown": np.array([float(loop()), float(tf.function(loop)())])}


@case
def static_batches(strategy):
    with strategy.scope():
        model = dense_sgd(weighted_metrics=["mse"])
    data = tf.data.Dataset.from_tensor_slices(numbers(120)).batch(60, drop_remainder=True)
    return fitted(model, data)


@case
def class_weights(strategy):
    with strategy.scope():
        model = conv_adam()
    data = in_batches(images(107)[:2])
    history = model.fit(data, class_weight={0: 1.0, 1: 3.0, 2: 0.5}, epochs=2, verbose=0).history
    return {"history": history, "weights": model.get_weights()}


@case
def two_outputs_and_regularizers(strategy):
    keras.utils.set_random_seed(5)
    with strategy.scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(4, activation="tanh", kernel_regularizer="l2")(inputs)
        model = keras.Model(inputs, [keras.layers.Dense(2, name="a")(hidden), keras.layers.Dense(1, name="b")(hidden)])
        model.compile("sgd", loss=["mse", "mae"], loss_weights=[1.0, 0.5], metrics=[["mae"], ["mse"]])
    x, y, _ = numbers(81)
    return fitted(model, in_batches((x, (y, y[:, :1]))), predict_on=None)


def masked(strategy, **compiled):
    keras.utils.set_random_seed(6)
    with strategy.scope():
        recurrent = keras.layers.LSTM(4, return_sequences=True)
        model = keras.Sequential([keras.Input((7, 3)), keras.layers.Masking(), recurrent, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), **{"loss": "mse", "metrics": ["mae"]} | compiled)
    random = np.random.default_rng(7)
    x = random.normal(size=(81, 7, 3)).astype("float32")
    for row, length in enumerate(random.integers(1, 8, size=81)):
        x[row, length:] = 0
    return fitted(model, in_batches((x, x.sum(axis=2, keepdims=True))), predict_on=x)


CASES["masked_loss"] = masked
CASES["masked_mean_with_sample_weight"] = lambda strategy: masked(
    strategy, loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
)


def mean_squared(reduction):
    return lambda: {"loss": keras.losses.MeanSquaredError(reduction=reduction)}


def stepped_by(make, *options, **more):
    return lambda: {"optimizer": make(*options, **more)}


def scaled(**options):
    return lambda: {
        "optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, **options), initial_scale=2.0**127)
    }


SGD, ADAMW = keras.optimizers.SGD, keras.optimizers.AdamW
ACCUMULATED = {"weight_decay": 0.1, "global_clipnorm": 0.3, "gradient_accumulation_steps": 2, "use_ema": True}
COMPILED = {
    "mean_with_sample_weight": mean_squared("mean_with_sample_weight"),
    "sum_reduction": lambda: mean_squared("sum")() | {"optimizer": SGD(0.002)},
    "loss_function_that_returns_a_number": lambda: {"loss": lambda y, p: tf.reduce_mean(tf.square(y - p))},
    "clipped_gradients": stepped_by(SGD, 0.1, global_clipnorm=0.3),
    "loss_scale": scaled(),
    "averaged_weights": stepped_by(ADAMW, 0.01, use_ema=True),
    "accumulated_gradients": stepped_by(ADAMW, 0.01, **ACCUMULATED),
    "accumulated_scaled_gradients": scaled(gradient_accumulation_steps=2),
    "averages_for_weights": stepped_by(SGD, 0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
    "compiled": lambda: {"jit_compile": True},
    "eager": lambda: {"run_eagerly": True},
}


def by_compiled(name):
    def run(strategy):
        with strategy.scope():
            model = dense_sgd(**COMPILED[name]())
        x, y, weight = numbers(120 if name == "compiled" else 81)
        weighted = name in ("mean_with_sample_weight", "sum_reduction")
        arrays = (x, y, weight) if weighted else (x, y)
        return fitted(model, in_batches(arrays), predict_on=x if name == "eager" else None)

    return run


CASES |= {name: by_compiled(name) for name in COMPILED}


@case
def accumulated_rows(strategy):
    words = np.random.default_rng(5).integers(0, 8, size=(81, 3))
    with strategy.scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(8, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
        model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse", metrics=["mae"])
    return fitted(model, in_batches((words, numbers(81)[1])))


def normalized(synchronized):
    def run(strategy):
        keras.utils.set_random_seed(8)
        with strategy.scope():
            norm = keras.layers.BatchNormalization(synchronized=synchronized)
            layers = [keras.layers.Dense(5, use_bias=False), norm, keras.layers.Dense(2)]
            model = keras.Sequential([keras.Input((6,)), *layers])
            model.compile(keras.optimizers.SGD(0.05), "mse")
        x, y, _ = numbers(82)
        return fitted(model, in_batches((x, y)), predict_on=x)

    return run


CASES |= {"batch_norm": normalized(False), "synchronized_batch_norm": normalized(True)}


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, activation="tanh")
        self.last = keras.layers.Dense(2)

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(y, self(x))
        return {"own": loss, "constant": 0.5}


@case
def own_train_step(strategy):
    keras.utils.set_random_seed(9)
    with strategy.scope():
        model = OwnStep()
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    model.fit(in_batches(numbers(81)[:2]), epochs=2, verbose=0)
    return {"history": {}, "weights": model.get_weights()}


@case
def single_batches(strategy):
    """Every task passes the same batch; each is trained on as if one task had it."""
    x, y, weight = numbers(41)
    with strategy.scope():
        model = dense_sgd()
    logs = [model.train_on_batch(x[:n], y[:n], weight[:n], return_dict=True) for n in (40, 17, 40)]
    logs.append(model.test_on_batch(x, y, return_dict=True))
    history = {name: [float(log[name]) for log in logs] for name in logs[0]}
    return {"history": history, "weights": model.get_weights(), "predict": model.predict_on_batch(x)}


@case
def fewer_examples_than_tasks(strategy):
    with strategy.scope():
        model = conv_adam()
    x, y, _ = images(1)
    seen = fitted(model, in_batches((x, y)), predict_on=x)
    seen["predict_seven"] = model.predict(images(7)[0], batch_size=3, verbose=0)
    return seen


TYPES = ["float32", "bfloat16", "float16", "float64", "bool", "complex64", "complex128"]
TYPES += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


class OfEveryType(keras.Model):
    """Returns a structure with tensors of every type, ragged and sparse ones, text and nested ones; or a part of it."""

    def __init__(self, *parts):
        super().__init__()
        self.dense, self.parts = keras.layers.Dense(3), parts

    def call(self, x):
        return self.dense(x)

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        found = self(x)
        first = tf.cast(tf.round(x[:, 0] * 10), tf.int64)
        lengths = tf.abs(first) % 4
        made = {name: tf.cast(first if name.startswith("u") else tf.round(found * 10), name) for name in TYPES}
        made["bool"] = found > 0
        made["text"] = tf.strings.join([tf.as_string(first), tf.fill(tf.shape(first), "\0\u00e4")])
        made["ragged"] = tf.RaggedTensor.from_row_lengths(tf.repeat(first, lengths), lengths)
        made["ragged_text"] = tf.strings.as_string(tf.RaggedTensor.from_tensor(tf.abs(found), lengths=lengths % 3), 2)
        made["sparse"] = tf.sparse.from_dense(tf.nn.relu(found))
        made["nested"] = {"a": (found, [found[:, :1], found[:, 0]])}
        return {name: made[name] for name in self.parts or made}


def as_numbers(outputs):
    """Return what `predict` returned as arrays of numbers by name, types included."""
    seen = {}
    for path, value in outputs.items() if isinstance(outputs, dict) else enumerate(outputs):
        if isinstance(value, (dict, tuple, list)):
            seen |= {f"{path} {name}": array for name, array in as_numbers(value).items()}
            continue
        seen[f"{path} kind"] = np.frombuffer(str(value.dtype).encode(), "u1")
        if isinstance(value, tf.RaggedTensor):
            seen[f"{path} rows"], value = value.row_lengths().numpy(), value.flat_values.numpy()
        elif isinstance(value, tf.SparseTensor):
            value = tf.sparse.to_dense(value).numpy()
        if value.dtype == object:
            value = np.array(value.ravel(), "S12").view("u1").reshape([*value.shape, 12])
        seen[f"{path}"] = value if value.dtype.kind in "biufc" else value.astype("float32")
    return seen


def predicted(**by_way):
    seen = {f"predict {way} {name}": v for way, outputs in by_way.items() for name, v in as_numbers(outputs).items()}
    return {"history": {}, "weights": [], **seen}


def typed(strategy, *parts, **compiled):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = OfEveryType(*parts)
        model.compile("sgd", "mse", **compiled)
    return model


@case
def predictions_of_every_type(strategy):
    model = typed(strategy)
    x = numbers(81)[0]
    return predicted(all=model.predict(x, batch_size=BATCH, verbose=0), few=model.predict(x[:1], verbose=0))


@case
def predictions_of_one_batch(strategy):
    model = typed(strategy)
    x = numbers(32)[0]
    whole = model.predict(x, verbose=0)
    alone = model.predict_on_batch(x) if is_first() else None  # concerns no other task
    one, other = model.predict_on_batch(x), model.predict_on_batch(x[:17])
    assert alone is None or np.array_equal(alone["float32"], one["float32"])
    return predicted(whole=whole, one=one, other=other)


@case
def predictions_in_other_ways(strategy):
    """Several steps in an execution, eagerly, data of unknown size, a number of steps, and the rows that callbacks see."""
    x = numbers(110)[0]
    found, shown = {}, []
    each = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda _, logs: shown.append(np.array(logs["float32"])))

    def rows():
        yield from np.split(x, [20, 50, 53])

    def unknown():
        shape = tf.TensorSpec([None, 6], tf.float32)
        return tf.data.Dataset.from_generator(rows, output_signature=shape)

    for name, options in {"plain": {}, "several": {"steps_per_execution": 2}, "eager": {"run_eagerly": True}}.items():
        model = typed(strategy, "float32", "text", **options)
        found[f"{name}_arrays"] = model.predict(x, batch_size=BATCH, verbose=0)
        found[f"{name}_again"] = model.predict(in_batches(x), verbose=0)
        found[f"{name}_unknown"] = model.predict(unknown(), verbose=0)
        found[f"{name}_steps"] = model.predict(in_batches(x).repeat(), steps=4, verbose=0)
    model = typed(strategy, "float32")
    model.predict(x, batch_size=BATCH, verbose=0, callbacks=[each])
    return predicted(**found) | {f"predict shown {index}": rows for index, rows in enumerate(shown)}


@case
def predictions_whose_batches_differ_in_shape(strategy):
    """Keras returns a ragged tensor; a part of a batch is as wide as its batch."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((None, 6)), keras.layers.Dense(2)])
    x = numbers(90)[0]

    def batches():
        for size, width in ((12, 2), (7, 3), (1, 4)):
            yield x[: size * width].reshape([size, width, 6])

    data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None, None, 6], tf.float32))
    return predicted(all=[model.predict(data, verbose=0)])


@case
def evaluations_one_after_the_other(strategy):
    """Of data in another order each time, of fewer batches, and of a model that was not built; one device has no strategy."""
    x, y, _ = numbers(110)
    keras.utils.set_random_seed(9)
    strategy = strategy if strategy.num_replicas_in_sync > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=["mae"])
    data = in_batches((x, y))
    kinds = {"first": data, "again": data, "arrays": (x, y), "some": data.take(2)}
    seen = {}
    for name, given in kinds.items():
        options = {"x": given[0], "y": given[1], "batch_size": BATCH} if isinstance(given, tuple) else {"x": given}
        found = model.evaluate(**options, verbose=0, return_dict=True)
        seen |= {f"{name} {metric}": value for metric, value in found.items()}
    seen |= {f"steps {n}": v for n, v in model.evaluate(data, steps=2, verbose=0, return_dict=True).items()}
    each = model.fit(data, epochs=2, verbose=0, validation_data=data.shuffle(9, seed=3), validation_steps=2).history
    return {"history": each, "weights": model.get_weights(), "evaluate": seen}


@case
def logs_that_one_task_reads(strategy):
    """Reading the logs of a step concerns nobody else: the others neither wait, nor train on something else."""
    found = {}
    for readers in ("all", "one", "nobody"):
        with strategy.scope():
            model = dense_sgd()
        shown = []
        each = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs, to=shown: to.append(float(logs["loss"]))
        )
        reads = readers == "all" or (readers == "one" and is_first())
        history = model.fit(in_batches(numbers(81)[:2]), epochs=2, verbose=0, callbacks=[each] if reads else [])
        found[readers] = (shown, history.history, model.get_weights())
    shown, history, weights = found["all"]
    assert found["one"][0] == (shown if is_first() else [])
    for _, other, others in (found["one"], found["nobody"]):
        assert other == history
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(others, weights, strict=True))
    return {"history": history, "weights": weights, "shown": np.array(shown)}


@case
def sums_of_a_step(strategy):
    """How many numbers each sum over all tasks has in a step of `fit`, on data with a last batch that may be smaller."""
    from tensorflow.python.distribute import cross_device_utils

    launcher, sizes = cross_device_utils.CollectiveReplicaLauncher, [[]]
    original = launcher.all_reduce

    def all_reduce(self, values, *args, **options):
        if not tf.executing_eagerly():
            sizes[-1].append(int(np.prod(values.shape)))
        return original(self, values, *args, **options)

    launcher.all_reduce = all_reduce
    try:
        with strategy.scope():
            model = dense_sgd()
        stepped = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: sizes.append([]))
        model.fit(in_batches(numbers(120)[:2]), verbose=0, callbacks=[stepped])
    finally:
        launcher.all_reduce = original
    # A function may be traced several times before its first step.
    return {"history": {}, "weights": [], "shown": np.array(sorted(set(sizes[0])))}


# --- Two models with parts of different size on their replicas ----------------------------------------------------


class Summed(keras.optimizers.AdamW):
    """Adds up the parts of an embedding's gradient first, as replicas of a TPU do: Keras squares them one by one."""

    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(grad) for grad in grads], trainable_variables)


def attention(strategy, dtype="float32", **clipping):
    keras.utils.set_random_seed(11)
    layers = keras.layers
    with strategy.scope():
        letters = keras.Input((7,), dtype="int32")
        x = layers.Embedding(17, 8, dtype=dtype)(letters)
        seen = layers.LayerNormalization(dtype=dtype)(x)
        # A bias of keys changes no score: its gradient is noise.
        heads = layers.MultiHeadAttention(2, 4, use_bias=False, flash_attention=False, dtype=dtype)
        x = x + heads(seen, seen, use_causal_mask=True)
        x = x + layers.Dense(8, activation="gelu", dtype=dtype)(layers.LayerNormalization(dtype=dtype)(x))
        model = keras.Model(letters, layers.Dense(17)(x))
        optimizer = Summed(0.002, epsilon=1e-4, **clipping)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    text = np.random.default_rng(12).integers(0, 17, size=(81, 8)).astype("int32")
    return fitted(model, in_batches((text[:, :-1], text[:, 1:])), predict_on=text[:, :-1])


def attending(options):
    return lambda strategy: attention(strategy, **options)


ATTENTIONS = {
    "adamw": {},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "clipnorm": {"clipnorm": 0.05},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
}
CASES |= {f"attention_{name}": attending(options) for name, options in ATTENTIONS.items()}


# --- Running and writing ------------------------------------------------------------------------------------------


def task_name():
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "alone", "index": 0})
    return f"{task['type']}-{task['index']}"


def is_first():
    return task_name() in ("alone-0", "chief-0")


def write(folder, strategy, names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        print(f"case {name}", flush=True)
        seen = CASES[name](strategy)
        arrays = {part: value for part, value in seen.items() if part.startswith("predict") or part == "shown"}
        arrays |= {f"weights {index}": value for index, value in enumerate(seen["weights"])}
        np.savez(folder / f"{name}.npz", **arrays)
        report = {part: seen[part] for part in ("history", "evaluate") if part in seen}
        (folder / f"{name}.json").write_text(json.dumps(report, default=float))
        keras.backend.clear_session()


def main(by, names):
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    for name in by.split(","):
        folder = Path(os.environ["AIP_MODEL_DIR"]) / (task_name() if name == "cluster" else name)
        write(folder, strategies.made(name), names)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(CASES))
