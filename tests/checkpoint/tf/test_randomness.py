"""Restored global generators give the numbers that would have come next."""

import json
import random

import pytest
from support import Later, needs, python

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]

needs("numpy", "keras", "tensorflow")
import numpy as np  # noqa: E402

tf, keras, randomness = Later("tensorflow"), Later("keras"), Later("sdk.checkpoint.tf.randomness")

DRAWS = {
    "python": random.random,
    "python_gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.normal()),
    "tensorflow": lambda: float(tf.random.uniform([])),
    "tensorflow_generator": lambda: float(tf.random.get_global_generator().normal([])),
    "keras": lambda: float(keras.random.uniform([])),
}

IN_ANOTHER_PROCESS = """
import json, random, sys
import numpy as np, tensorflow as tf, keras
from sdk.checkpoint.tf import randomness
random.random(), np.random.rand()
randomness.restore(bytes.fromhex(sys.argv[1]))
draws = [random.random(), float(np.random.normal()), float(tf.random.uniform([])),
         float(tf.random.get_global_generator().normal([])), float(keras.random.uniform([]))]
print(json.dumps(draws))
"""


def draw():
    return {name: draw() for name, draw in DRAWS.items()}


@pytest.mark.parametrize("name", DRAWS)
def test_the_next_numbers_come_again(name):
    keras.utils.set_random_seed(7)
    draw()
    state = randomness.capture()
    expected = [DRAWS[name]() for _ in range(5)]
    draw()
    randomness.restore(state)
    assert [DRAWS[name]() for _ in range(5)] == expected


def test_capturing_draws_nothing():
    keras.utils.set_random_seed(7)
    expected = draw()
    keras.utils.set_random_seed(7)
    keras.backend.clear_session()
    randomness.capture()
    assert draw()["python"] == expected["python"]


@pytest.mark.full
def test_another_process_goes_on_with_the_same_numbers():
    keras.utils.set_random_seed(11)
    draw()
    state = randomness.capture()
    names = ["python", "numpy", "tensorflow", "tensorflow_generator", "keras"]
    expected = [DRAWS[name]() for name in names]
    assert json.loads(python("-c", IN_ANOTHER_PROCESS, state.hex())) == expected


def test_dropout_goes_on_with_its_own_seeds_which_are_variables():
    from sdk.checkpoint.tf.snapshot import variables_of

    layer = keras.layers.Dropout(0.5, seed=3)
    assert any("seed_generator_state" in path for path in variables_of(layer=layer))
