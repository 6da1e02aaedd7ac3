"""A snapshot holds the values of the variables at that moment, under the names that find them again."""

from types import SimpleNamespace

import pytest
from support import Later, needs

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]

needs("numpy", "keras", "tensorflow")
import numpy as np  # noqa: E402

from sdk.errors import CheckpointMismatchError, InputError  # noqa: E402

tf, keras = Later("tensorflow"), Later("keras")
LOADING, SNAPSHOT = ("array_of", "decode", "load", "replica_values"), ("Variables", "take", "variables_of")
array_of, decode, load, replica_values = (Later("sdk.checkpoint.tf.loading", name) for name in LOADING)
Variables, take, variables_of = (Later("sdk.checkpoint.tf.snapshot", name) for name in SNAPSHOT)


def loaded(arrays):
    return {a.path: SimpleNamespace(dtype=a.dtype, shape=a.shape, data=a.data()) for a in arrays}


def held(variables):
    return {path: np.asarray(v.value if hasattr(v, "path") else v).copy() for path, v in variables.items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for path, value in left.items():
        assert value.tobytes() == right[path].tobytes(), path


def small_model(seed=1, **compiled):
    keras.utils.set_random_seed(seed)
    keras.backend.clear_session()
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])
    model.compile(**({"optimizer": "adam", "loss": "mse", "metrics": ["mae"]} | compiled))
    return model


def data(n=32):
    rng = np.random.default_rng(0)
    return rng.random((n, 4), dtype="f4"), rng.random((n, 2), dtype="f4")


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(dtype, (2, 3)) for dtype in ("float64", "float16", "bfloat16", "bool", "int8", "uint16", "int64", "complex64")]
    + [("float32", shape) for shape in ((), (0, 3), (5,), (2, 3))],
)
def test_every_number_type_survives_a_save_and_a_load_bit_for_bit(dtype, shape):
    bits = np.random.default_rng(0).integers(0, 2, size=shape)
    variable = tf.Variable(tf.cast(bits, dtype), name="v")
    saved = loaded(take(variables_of(v=variable)))
    before = np.asarray(variable).tobytes()
    variable.assign(tf.cast(tf.ones(shape), dtype))
    load(variables_of(v=variable), saved)
    assert np.asarray(variable).tobytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.assign(tf.zeros_like(v)),
        lambda v: v.assign_add(tf.ones_like(v)),
        lambda v: v.scatter_update(tf.IndexedSlices(tf.zeros([1, 4]), tf.constant([0]))),
        lambda v: tf.function(lambda v: v.assign_sub(tf.ones_like(v)))(v),
        lambda v: tf.function(lambda v: v.assign(v * 2.0 + 1.0), jit_compile=True)(v),
        lambda v: tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=1.0, delta=tf.ones_like(v)),
    ],
    ids=["assign", "assign_add", "scatter", "function", "xla", "optimizer"],
)
def test_a_change_right_after_the_snapshot_does_not_reach_it(change):
    variable = tf.Variable(tf.random.uniform([64, 4]), name="v")
    before = variable.numpy()
    snapshot = take(variables_of(v=variable))
    for _ in range(3):
        change(variable)
    assert not np.array_equal(variable.numpy(), before)
    np.testing.assert_array_equal(array_of(snapshot[0].dtype, snapshot[0].shape, snapshot[0].data()), before)


def test_nothing_is_copied_when_a_snapshot_is_taken():
    variable = tf.Variable(tf.zeros([1000]), name="v")
    first, second = (np.frombuffer(take(variables_of(v=variable))[0].data(), np.uint8) for _ in range(2))
    assert np.shares_memory(first, second)


@pytest.mark.full
def test_a_compiled_model_gives_weights_optimizer_metrics_and_seeds():
    model = small_model()
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(name="adam")), "mse", metrics=["mae"])
    model.fit(*data(), verbose=0)
    paths = variables_of(model=model)
    assert "sequential/dense/kernel" in paths
    assert any(path.startswith("seed_generator") for path in paths)
    assert any(path.endswith("adam/sequential_dense_kernel_momentum") for path in paths)
    assert any("dynamic_scale" in path for path in paths)
    assert {"loss/total", "mean_absolute_error/count"} <= set(paths)
    assert list(variables_of(model=model, optimizer=model.optimizer)) == list(paths)


def test_objects_with_colliding_names_get_their_keyword_and_others_do_not():
    generator, critic = (keras.optimizers.Adam(name="adam") for _ in range(2))
    for optimizer in (generator, critic):
        optimizer.build([keras.Variable(np.zeros(3), name="w")])
    paths = set(variables_of(generator=generator, critic=critic, other=tf.Variable(1.0, name="alone")))
    assert {"generator/adam/iteration", "critic/adam/iteration", "alone"} <= paths
    assert "adam/iteration" not in paths


@pytest.mark.full
def test_two_variables_of_one_name_in_one_object_are_numbered():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(1)(inputs)})
    model.compile("sgd", "mse", metrics={"a": ["mae"], "b": ["mae"]})
    model.fit(data()[0], {"a": data()[1][:, :1], "b": data()[1][:, :1]}, verbose=0)
    assert {"mean_absolute_error/total", "mean_absolute_error/total#2"} <= set(variables_of(model=model))


def test_a_module_names_its_variables_by_attribute():
    class Net(tf.Module):
        def __init__(self):
            self.layers = [tf.Variable(1.0), tf.Variable(2.0)]
            self.scale = {"in": tf.Variable(3.0)}
            self.generator = tf.random.Generator.from_seed(1)

    assert list(variables_of(net=Net())) == ["generator/_state_var", "layers/0", "layers/1", "scale/in"]


@pytest.mark.full
def test_tf_keras_models_and_optimizers_are_saved_and_loaded():
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(4,)), tf_keras.layers.BatchNormalization()])
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(data()[0], np.zeros([32, 3], "f4"), verbose=0)
    variables = variables_of(model=model)
    before, saved = held(variables), loaded(take(variables))
    assert {"dense/kernel", "loss/total", "mae/count", "Adam/m/dense/kernel", "iteration"} <= before.keys()
    model.fit(data()[0], np.ones([32, 3], "f4"), verbose=0)
    load(variables_of(model=model), saved)
    assert_equal(held(variables_of(model=model)), before)


def test_a_number_that_tasks_add_up_is_listed_without_being_read(monkeypatch):
    """The sum over all tasks is an operation of all of them, and they list their variables at different times."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        aggregation = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
        total = tf.Variable(1.0, name="total", **aggregation)
    monkeypatch.setattr(type(total), "_get_cross_replica", lambda variable: pytest.fail("It was read."))
    assert list(variables_of(total=total)) == ["total"]


def test_an_object_that_cannot_be_saved_is_refused_by_name():
    with pytest.raises(InputError) as error:
        variables_of(word=tf.Variable("x", name="word"), number=5)
    assert "'word'" in str(error.value) and "strings" in str(error.value) and "number" in str(error.value)


def test_a_checkpoint_of_another_model_changes_nothing_and_names_every_difference():
    here = {name: tf.Variable(tf.zeros(shape), name=name) for name, shape in [("a", [2]), ("kernel", [3])]}
    there = [tf.Variable(tf.ones([4]), name="a"), tf.Variable(tf.ones([3]), name="kernel_1")]
    with pytest.raises(CheckpointMismatchError) as error:
        load(variables_of(v=list(here.values())), loaded(take(variables_of(v=there))))
    text = str(error.value)
    assert "a: float32[2] in this program, float32[4] in the checkpoint" in text
    assert "kernel float32[3]: only in this program. Nearest: kernel_1." in text and "optimizer.build" in text
    assert not any(variable.numpy().any() for variable in here.values())


@pytest.mark.full
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_restored_model_trains_on_as_if_nothing_had_happened(jit_compile):
    x, y = data(64)
    model = small_model(jit_compile=jit_compile)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    saved = loaded(take(variables_of(model=model)))
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    undisturbed = held(variables_of(model=model))
    again = small_model(seed=2, jit_compile=jit_compile)
    again.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    load(variables_of(model=again), saved)
    again.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert_equal(held(variables_of(model=again)), undisturbed)


def test_with_fewer_tasks_sums_are_added_up_and_other_numbers_averaged():
    metric = keras.metrics.Sum(name="sum")
    found = variables_of(metric=metric, mean=tf.Variable(0.0, name="mean"), alone=tf.Variable(0.0, name="alone"))
    replicated = Variables(found.items(), per_replica=[path for path in found if path != "alone"])
    blobs, saved = {}, {}
    for rank, value in enumerate((3.0, 5.0)):
        for variable in found.values():
            variable.assign(value)
        blobs[rank] = replica_values(replicated, tasks=2)
        saved = saved or loaded(take(replicated))
    load(replicated, saved, per_replica=blobs, rank=1, tasks=2)
    assert [float(v) for v in held(found).values()] == [5.0, 5.0, 5.0]
    load(replicated, saved, per_replica=blobs, rank=0, tasks=1)
    assert {path: float(v) for path, v in held(found).items()} == {"sum/total": 8.0, "mean": 4.0, "alone": 3.0}


def test_of_several_tasks_each_saves_only_state_that_no_strategy_keeps_equal():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        equal = tf.Variable([1.0, 2.0], name="equal")
    found = variables_of(equal=equal, own=tf.Variable([3.0, 4.0], name="own"))
    assert list(decode(replica_values(found, tasks=2))[1]) == ["own"]
    assert list(decode(replica_values(found, tasks=1))[1]) == []


def test_a_variable_sharded_over_parameter_servers_is_saved_and_loaded_as_one():
    sharded = Later("tensorflow.python.distribute.sharded_variable", "ShardedVariable")

    def module(*parts):
        made = tf.Module()
        made.table = sharded([tf.Variable(part) for part in parts], name="table")
        return made

    rows = np.arange(10.0).reshape(5, 2)
    saved = take(variables_of(module=module(rows[:3], rows[3:])))
    assert [(array.path, array.shape) for array in saved] == [("table", (5, 2))]
    # Another number of servers divides it otherwise, and an evaluator does not.
    other, whole = module(rows[:1] * 0, rows[1:3] * 0, rows[3:] * 0), tf.Module()
    whole.table = tf.Variable(rows * 0)
    for each in (other, whole):
        load(variables_of(module=each), loaded(saved))
        np.testing.assert_array_equal(tf.convert_to_tensor(each.table), rows)
