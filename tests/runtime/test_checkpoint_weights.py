"""The weights of a checkpoint get into a model that is built as the program builds it: all of them, or none and one error."""

from types import SimpleNamespace
from typing import Any

import pytest
from support import Later, full_only, needs

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]

needs("numpy", "keras", "tf_keras", "tensorflow")
import numpy as np  # noqa: E402

from sdk.errors import CheckpointMismatchError, InputError  # noqa: E402
from sdk.runtime.weights import from_checkpoint  # noqa: E402

keras3, legacy = Later("keras"), Later("tf_keras")
take, variables_of = (Later("sdk.checkpoint.tf.snapshot", name) for name in ("take", "variables_of"))
LIBRARIES = {"keras": keras3, "tf_keras": legacy}


def build(keras: Any, width: int = 4, layers: int = 2, name: str | None = None) -> Any:
    inner = [keras.layers.Dense(width, activation="relu") for _ in range(layers - 1)]
    ends = [keras.layers.Dropout(0.5), keras.layers.BatchNormalization(), keras.layers.Dense(width)]
    return keras.Sequential([keras.Input((width,)), *inner, *ends], name=name)


def functional(keras: Any) -> Any:
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4)(inputs)
    return keras.Model(inputs, keras.layers.Dense(4)(hidden))


def trained(model: Any) -> Any:
    """The model with weights and an optimizer, as after a training."""
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=value.shape).astype("float32") for value in model.get_weights()])
    return model


def checkpoint(**objects: Any) -> Any:
    """The values read back from a snapshot of a training's objects."""
    arrays = {}
    for each in take(variables_of(**objects)):
        arrays[each.path] = SimpleNamespace(dtype=each.dtype, shape=each.shape, data=memoryview(bytes(each.data())))
    return SimpleNamespace(arrays=arrays)


def assert_same(one: Any, other: Any) -> None:
    for left, right in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("library", ["keras", full_only("tf_keras")])
@pytest.mark.parametrize("make", [build, functional])
def test_a_model_gets_the_weights_whatever_was_built_before(library: str, make: Any) -> None:
    keras = LIBRARIES[library]
    first = trained(make(keras))
    saved = checkpoint(model=first)
    for _ in range(2):
        later = make(keras)  # its layers have other numbers
        from_checkpoint.load(later, saved, "the checkpoint")
        assert_same(later, first)


@pytest.mark.parametrize("other", [{"width": 5}, {"layers": 3}, {"layers": 1}])
def test_another_model_is_refused_with_its_differences_and_keeps_its_weights(other: dict[str, int]) -> None:
    saved, model = checkpoint(model=trained(build(keras3))), build(keras3, **other)
    before = SimpleNamespace(get_weights=model.get_weights().copy)
    said = r"The checkpoint of step 7 does not fit the model .*nothing was loaded"
    with pytest.raises(CheckpointMismatchError, match=said):
        from_checkpoint.load(model, saved, "the checkpoint of step 7")
    assert_same(before, model)


def test_of_several_models_in_a_checkpoint_one_with_a_name_is_loaded_alone() -> None:
    encoder, decoder = trained(build(keras3, name="encoder")), trained(build(keras3, name="decoder"))
    saved = checkpoint(encoder=encoder, decoder=decoder)
    fresh = build(keras3, name="decoder")
    from_checkpoint.load(fresh, saved, "the checkpoint")
    assert_same(fresh, decoder)


def test_models_without_names_are_loaded_together() -> None:
    models = [trained(functional(keras3)), trained(functional(keras3))]
    saved = checkpoint(one=models[0], other=models[1])
    fresh = [functional(keras3), functional(keras3)]
    with pytest.raises(CheckpointMismatchError, match="pass a list of all of them"):
        from_checkpoint.load(fresh[1], saved, "the checkpoint")
    from_checkpoint.load(fresh, saved, "the checkpoint")
    assert_same(fresh[0], models[0])
    assert_same(fresh[1], models[1])


@pytest.mark.parametrize("what", ["model.keras", [], None])
def test_an_object_that_is_no_model_is_named(what: object) -> None:
    with pytest.raises(InputError, match=r"into a Keras model, or a list of them\. Received: "):
        from_checkpoint.load(what, SimpleNamespace(arrays={}), "the checkpoint")
