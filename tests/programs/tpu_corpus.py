"""Programs for a TPU, by "bad/NAME" and "good/NAME": the expected findings of a preflight are marked at the end of their lines.

`# refused: RULE` or `# warning: RULE` must be found there.
"""

import textwrap

TPU = """
import tempfile
import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
"""
DATA = """
data = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.ones([2048, 128])))
data = data.batch(512, drop_remainder=True)
"""
WEIGHTS = """
with strategy.scope():
    weights = tf.Variable(tf.ones([128, 128]))
"""
LEARN = """
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
weights.assign_sub(0.01 * tape.gradient(loss, weights))
"""
TRAIN = """
@tf.function
def train(iterator):
    strategy.run(step, args=next(iterator))

iterator = iter(strategy.experimental_distribute_dataset(data))
for _ in range(4):
    train(iterator)
"""


def loop(before: str = "", *, after: str = "", head: str = "", data: str = DATA, train: str = TRAIN) -> str:
    """Return a program with a custom loop: `before` and `after` the update of the weights, its step does this."""
    step = "def step(x, y):\n" + textwrap.indent("\n".join(map(textwrap.dedent, (before, LEARN, after))), "    ")
    return "\n".join([TPU, data, WEIGHTS, textwrap.dedent(head), step, train])


def fit(model: str, *, loss: str = "'mse'", data: str = DATA, run: str = "model.fit(data, epochs=2)") -> str:
    """Return a program that fits what `model` makes, in the scope of its strategy."""
    made = textwrap.indent(textwrap.dedent(model), "    ")
    compiled = f"    model.compile(keras.optimizers.Adam(1e-3), {loss}, steps_per_execution=2)"
    return "\n".join([TPU, textwrap.dedent(data), "with strategy.scope():", made, compiled, run])


def of_one(one: str, batch: int = 128) -> str:
    return f"data = tf.data.Dataset.from_tensors({one}).repeat(1024).batch({batch}, drop_remainder=True)"


DENSE = "model = keras.Sequential([keras.Input([128]), keras.layers.Dense(128)])"
CLASSES = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
# Text may be read beforehand, in the input pipeline.
TEXTS = """
texts = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.fill([2048], "a b c")))
data = texts.map(lambda x, text: (x, tf.cast(tf.strings.length(text), tf.float32) * tf.ones([128])))
data = data.batch(512, drop_remainder=True)
"""
WORDS = """
words = keras.layers.TextVectorization(max_tokens=128, output_sequence_length=16)
words.adapt(["a b c", "d e f"])
texts = tf.data.Dataset.from_tensor_slices((["a b c"] * 1024, [1.0] * 1024))
data = texts.map(lambda text, label: (words(text), label)).batch(128, drop_remainder=True)
"""
ROWS = """
def rows():
    for _ in range(2048):
        yield [1.0] * 128, [1.0] * 128

signature = (tf.TensorSpec([128]), tf.TensorSpec([128]))
data = tf.data.Dataset.from_generator(rows, output_signature=signature)  # warning: python-input
data = data.batch(512, drop_remainder=True)
"""
TABLE = """
keys = tf.lookup.KeyValueTensorInitializer(tf.range(10, dtype=tf.int64), tf.ones([10]))
table = tf.lookup.StaticHashTable(keys, 0.0)
"""
WRITER = "writer = tf.summary.create_file_writer(tempfile.mkdtemp())"
# A shape that is known and a training flag may be asked.
GATE = """
class Gate(keras.layers.Layer):
    def call(self, x, training=False):
        if x.shape[-1] == 128 and training:
            x = x + 1.0
        if tf.reduce_sum(x) > 0:  # refused: python-control
            x = x * 2.0
        return x

model = keras.Sequential([keras.Input([128]), Gate(), keras.layers.Dense(128)])
"""
CONSTANT = """
import numpy as np
examples = np.ones([4096, 1024], "float32")
data = tf.data.Dataset.from_tensor_slices(tf.range(4096)).batch(512, drop_remainder=True)
with strategy.scope():
    weights = tf.Variable(tf.ones([1024, 128]))

def step(index):
    x = tf.gather(tf.constant(examples), index)  # warning: constant
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights)))
    weights.assign_sub(0.01 * tape.gradient(loss, weights))
"""
RETRACES = """
def step(x, y, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
    weights.assign_sub(rate * tape.gradient(loss, weights))

@tf.function
def train(iterator, rate):
    x, y = next(iterator)
    strategy.run(step, args=(x, y, rate))  # warning: recompilation

iterator = iter(strategy.experimental_distribute_dataset(data))
for number in range(4):
    train(iterator, 0.01 / (number + 1))
"""
# As TensorBoard's functions do, in a step within a step: a histogram, a picture, a text.
SUMMARIES = """
def counted(values):
    values = tf.cast(tf.reshape(values, [-1]), tf.float64)
    spread = tf.reduce_max(values) - tf.reduce_min(values)
    return tf.cond(spread > 0, lambda: values / spread, lambda: values)

def picture(values):
    return tf.io.encode_png(tf.image.convert_image_dtype(values[:8, :8, None], tf.uint8))

@tf.function
def train(iterator, number):
    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.01 * gradient)
        text = tf.strings.as_string(loss)
        with writer.as_default(step=number):
            tf.summary.write("loss", loss)  # warning: host-call
            tf.summary.write("gradient", lambda: counted(gradient))  # warning: host-call
            tf.summary.write("x", lambda: picture(x))  # warning: host-call
            tf.summary.write("text", text)  # warning: host-call

    strategy.run(step, args=(next(iterator),))

iterator = iter(strategy.experimental_distribute_dataset(data))
for number in range(4):
    train(iterator, tf.constant(number, tf.int64))
"""
NO_STRATEGY = """
import keras
import tensorflow as tf

model = keras.Sequential([keras.Input([128]), keras.layers.Dense(128)])
model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
data = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.ones([2048, 128])))
model.fit(data.batch(512, drop_remainder=True))  # warning: not-on-tpu
"""
BAD = {
    # tf.where with three arguments keeps the shape.
    "boolean_mask": loop("""
        kept = tf.boolean_mask(y, tf.reduce_sum(y, axis=1) > 0)  # warning: dynamic-shape
        y = tf.where(y > 0, y, tf.zeros_like(y)) + tf.reduce_mean(kept)"""),
    "double": loop("y = tf.cast(tf.cast(y, tf.float64) * 2.0, tf.float32)  # refused: float64"),
    "huge_constant": TPU + CONSTANT + TRAIN.replace("next(iterator)", "(next(iterator),)"),
    # Identifiers that are only looked up cost nothing.
    "long_integers": loop(
        """
        numbers = tf.cast(y, tf.int64)
        total = tf.matmul(numbers, numbers, transpose_b=True)  # warning: int64
        rows = tf.gather(table, tf.zeros([64], tf.int64))
        y = y + rows + tf.cast(tf.reduce_sum(total), tf.float32)""",
        head="with strategy.scope():\n    table = tf.Variable(tf.ones([16, 128]))",
    ),
    "lookup_table": loop("y = y + table.lookup(tf.ones([64, 128], tf.int64))  # refused: lookup-table", head=TABLE),
    "no_strategy": NO_STRATEGY,
    # Five examples on each replica: eight are computed.
    "odd_batch": loop(
        data=DATA.replace("512", "40"), train=TRAIN.replace("iterator))", "iterator))  # warning: batch")
    ),
    # 32 channels fill a quarter of the matrix unit.
    "odd_sizes": fit(
        """
        layers = [keras.layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)]
        model = keras.Sequential([keras.Input([64, 64, 4]), *layers, keras.layers.GlobalAveragePooling2D()])""",
        data=of_one("(tf.ones([64, 64, 4]), tf.ones([32]))", 512),
        run="model.fit(data)  # warning: padding",
    ),
    # Python's print happens once, while tracing.
    "prints": loop('print("traced")', after='tf.print("loss", loss)  # warning: host-call'),
    "python_control": fit(GATE),
    "python_in_step": loop("""
        y = tf.py_function(lambda value: value * 2.0, [y], tf.float32)  # refused: python-code
        y.set_shape([64, 128])"""),
    # float() of a tensor is an operation of TensorFlow inside a tf.function.
    "reads_a_variable": loop("""
        scale = float(weights[0, 0])
        scale *= weights.numpy()[0, 0]  # refused: python-value
        y = y * scale"""),
    "reads_files": loop("""
        raw = tf.io.read_file("numbers.bin")  # refused: host-only
        y = y + tf.io.decode_raw(raw, tf.float32)[0]  # refused: host-only"""),
    "retraces": TPU + DATA + WEIGHTS + RETRACES,
    "slow_input": fit(DENSE, data=ROWS),
    "strings": loop(
        """
        names = tf.strings.as_string(y)  # refused: strings
        y = tf.cast(tf.strings.length(names), tf.float32)  # refused: strings""",
        data=TEXTS,
    ),
    "summaries": TPU + DATA + WEIGHTS + WRITER + SUMMARIES,
    # The model is small.
    "too_large": fit(
        """
        layers = [keras.layers.Dense(size, activation="relu") for _ in range(3) for size in (16384, 128)]
        model = keras.Sequential([keras.Input([], dtype="int32"), keras.layers.Embedding(128, 128), *layers])""",
        loss=CLASSES,
        data="one = tf.ones([8 * 65536], tf.int32)\ndata = tf.data.Dataset.from_tensors((one, one)).repeat(8)",
        run="model.fit(data)  # refused: memory",
    ),
    # The compiler has no operation for turning; flipping is fine.
    "turned_pictures": fit(
        """
        layers = [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1), keras.layers.Conv2D(128, 3)]
        model = keras.Sequential([keras.Input([16, 16, 3]), *layers, keras.layers.GlobalAveragePooling2D()])""",
        data=of_one("(tf.ones([16, 16, 3]), tf.ones([128]))"),
        run="model.fit(data)  # refused: unsupported",
    ),
    "uneven_batch": fit(
        DENSE,
        data="data = tf.data.Dataset.from_tensor_slices((tf.ones([1000, 128]), tf.ones([1000, 128]))).batch(512)",
        run="model.fit(data, epochs=2)  # warning: uneven-batch",
    ),
}
TWO_NETWORKS = """
with strategy.scope():
    generator = keras.Sequential([keras.Input([128]), keras.layers.Dense(128, "relu"), keras.layers.Dense(128)])
    critic = keras.Sequential([keras.Input([128]), keras.layers.Dense(128, "relu"), keras.layers.Dense(128)])
    for_generator, for_critic = keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4)
    for_generator.build(generator.trainable_variables)
    for_critic.build(critic.trainable_variables)
data = tf.data.Dataset.from_tensors(tf.ones([128])).repeat(1024).batch(128, drop_remainder=True)

def step(real):
    noise = tf.random.normal([16, 128])
    with tf.GradientTape() as one, tf.GradientTape() as other:
        fake = generator(noise, training=True)
        ours = tf.reduce_mean(critic(fake, training=True))
        theirs = tf.reduce_mean(critic(real, training=True)) - ours
    for_generator.apply(one.gradient(ours, generator.trainable_variables), generator.trainable_variables)
    for_critic.apply(other.gradient(theirs, critic.trainable_variables), critic.trainable_variables)

@tf.function
def train(iterator):
    for _ in tf.range(4):
        strategy.run(step, args=(next(iterator),))

iterator = iter(strategy.experimental_distribute_dataset(data))
for _ in range(2):
    train(iterator)
"""
# Attention with a causal mask and a padding mask.
TRANSFORMER = """
tokens = keras.Input([128], dtype="int32")
x = keras.layers.Embedding(256, 128, mask_zero=True)(tokens)
attended = keras.layers.MultiHeadAttention(1, 128)(x, x, use_causal_mask=True)
x = keras.layers.LayerNormalization()(x + attended)
x = keras.layers.LayerNormalization()(x + keras.layers.Dense(128)(keras.layers.Dense(512, "gelu")(x)))
model = keras.Model(tokens, keras.layers.Dense(256)(x))
"""
GOOD = {
    "bfloat16": fit(
        """
        layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(128, dtype="float32")]
        model = keras.Sequential([keras.Input([256]), *layers])""",
        data="keras.mixed_precision.set_global_policy('mixed_bfloat16')\n" + of_one("(tf.ones([256]), tf.ones([128]))"),
    ),
    "cnn": fit(
        """
        normal = [keras.layers.Conv2D(128, 3, padding="same", use_bias=False), keras.layers.BatchNormalization()]
        pooled = [keras.layers.ReLU(), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(128)]
        model = keras.Sequential([keras.Input([16, 16, 128]), *normal, *pooled])""",
        loss=CLASSES,
        data=of_one("(tf.ones([16, 16, 128]), tf.zeros([], tf.int32))"),
    ),
    "custom_loop": loop(
        after="steps.assign_add(1)",
        head="""
        with strategy.scope():
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            steps = tf.Variable(0, dtype=tf.int64, aggregation=first)""",
    ),
    "gan": TPU + TWO_NETWORKS,
    # Words that were looked up in the input pipeline, a mask, and both directions.
    "masked_rnn": fit(
        """
        layers = [keras.layers.Embedding(128, 128, mask_zero=True), keras.layers.Bidirectional(keras.layers.GRU(128))]
        model = keras.Sequential([keras.Input([16], dtype="int64"), *layers, keras.layers.Dense(1)])""",
        loss="keras.losses.BinaryCrossentropy(from_logits=True), metrics=[keras.metrics.AUC(from_logits=True)]",
        data=WORDS,
    ).replace("Adam(1e-3)", "AdamW(1e-3, clipnorm=1.0)"),
    "transformer": fit(TRANSFORMER, loss=CLASSES, data="one = tf.ones([128], tf.int32)\n" + of_one("(one, one)", 64)),
    # Two losses, and weights of examples.
    "two_outputs": fit(
        """
        inputs = keras.Input([128])
        hidden = keras.layers.Dense(128, "relu")(inputs)
        outputs = {name: keras.layers.Dense(128, name=name)(hidden) for name in "ab"}
        model = keras.Model(inputs, outputs)""",
        loss="{'a': 'mse', 'b': 'mae'}, metrics={'a': ['mae']}",
        data="one = {'a': tf.ones([128]), 'b': tf.ones([128])}\n"
        + of_one("(tf.ones([128]), one, {'a': 1.0, 'b': 0.5})"),
    ),
}
CORPUS = {f"bad/{name}": text for name, text in BAD.items()} | {f"good/{name}": text for name, text in GOOD.items()}
