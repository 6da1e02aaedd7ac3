"""The random numbers drawn from global state: Python's, NumPy's, TensorFlow's and Keras's.

Seed generators of layers are variables and belong to the snapshot. Not saved, because they cannot be read: the counters inside
TensorFlow's stateful random kernels (`tf.random.uniform` and similar inside a `tf.function`, or with their own `seed=`), and
generators that a program holds outside of variables.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from .snapshot import components


def capture() -> bytes:
    """Return the state of all global generators; draws nothing and creates no generator."""
    state = {
        **python_state(),
        "tensorflow": _eager_state(),
        "generators": {name: _generator_state(generator) for name, generator in _generators().items()},
        "tf_keras": _tf_keras_state(),
        "ordinal": _ordinal[0],
    }
    return json.dumps(state).encode()


def restore(state: bytes) -> None:
    """Set all global generators to a state that `capture` returned."""
    saved = json.loads(state)
    _set_eager_state(saved["tensorflow"])
    for name, generator in saved["generators"].items():
        _set_generator(name, generator)
    _set_tf_keras_state(saved["tf_keras"])
    _ordinal[0] = saved["ordinal"]
    # Last: creating a generator may draw from Python's.
    set_python_state(saved)


def python_state() -> dict[str, object]:
    """Return the state of the generators that Python functions use."""
    return {"python": _python_state(random.getstate()), "numpy": _numpy_state()}


def set_python_state(saved: Any) -> None:
    if saved["numpy"]:
        numpy = saved["numpy"]
        numpy["state"]["key"] = np.array(numpy["state"]["key"], dtype=np.uint32)
        np.random.set_state(numpy)
    random.setstate(_tuple(saved["python"]))


def global_seed() -> int | None:
    """Return the seed given to `tf.random.set_seed`, or None."""
    context = _eager_context()
    return None if context is None or context._seed is None else int(context._seed)


def next_ordinal() -> int:
    """Return 1, 2, 3, ...: a counter to derive seeds from, which `restore` also resets."""
    _ordinal[0] += 1
    return _ordinal[0]


_ordinal = [0]


def _python_state(state: Any) -> Any:
    return list(state[:1]) + [list(state[1])] + list(state[2:])


def _tuple(state: Any) -> tuple[Any, ...]:
    return (state[0], tuple(state[1]), *state[2:])


def _numpy_state() -> Any:
    state: Any = dict(np.random.get_state(legacy=False))
    if "key" not in state["state"]:  # a program may have replaced the generator
        return {}
    return state | {"state": state["state"] | {"key": state["state"]["key"].tolist()}}


# --- TensorFlow: the seed, the sequence of seeds for operations without one ----------------------------------------


def _eager_context() -> Any:
    """Return TensorFlow's private context, or None in a version that stores its seeds elsewhere."""
    context = importlib.import_module("tensorflow.python.eager.context").context()
    return context if hasattr(context, "_seed") and hasattr(context, "_set_global_seed") else None


def _eager_state() -> dict[str, object] | None:
    context = _eager_context()
    if context is None or context._seed is None:
        return None
    return {"seed": context._seed, "operations": _python_state(context._rng.getstate())}


def _set_eager_state(state: Any) -> None:
    context = _eager_context()
    if state is not None and context is not None:
        tf.random.set_seed(state["seed"])
        context._rng.setstate(_tuple(state["operations"]))


# --- Global generators that hold a variable, made when first used --------------------------------------------------


def _generators() -> dict[str, Any]:
    generators = {}
    module = importlib.import_module("tensorflow.python.ops.stateful_random_ops")
    if getattr(module, "global_generator", None) is not None:
        generators["tensorflow"] = tf.random.get_global_generator()
    if (keras := _keras_generator(make=False)) is not None:
        generators["keras"] = keras
    return generators


def _keras_generator(*, make: bool) -> Any:
    if "keras" not in sys.modules:
        return None
    try:
        state = importlib.import_module("keras.src.backend.common.global_state")
        seeds = importlib.import_module("keras.src.random.seed_generator")
    except ImportError:  # Keras 2
        return None
    name = getattr(seeds, "GLOBAL_SEED_GENERATOR", "global_seed_generator")  # no constant in Keras 3.12
    return seeds.global_seed_generator() if make else state.get_global_attribute(name)


def _generator_state(generator: Any) -> dict[str, object]:
    values = [component.numpy() for component in components(generator.state)]
    return {
        "dtype": values[0].dtype.name,
        "replicas": [value.tolist() for value in values],
        "algorithm": int(getattr(generator, "algorithm", 0)),
    }


def _set_generator(name: str, saved: Any) -> None:
    values = [np.array(value, dtype=saved["dtype"]) for value in saved["replicas"]]
    generator = _generators().get(name)
    if generator is None and name == "tensorflow":
        tf.random.set_global_generator(tf.random.Generator.from_state(values[0], saved["algorithm"]))
    elif generator is None:
        generator = _keras_generator(make=True)
    if generator is not None:
        for index, component in enumerate(components(generator.state)):
            component.assign(values[min(index, len(values) - 1)])


# --- tf_keras: Python generators that hand out seeds ---------------------------------------------------------------


def _tf_keras_seeds() -> Any:
    """Return the holder of the generator, or None if tf_keras is not imported."""
    if "tf_keras" not in sys.modules:
        return None
    return getattr(importlib.import_module("tf_keras.src.backend"), "_SEED_GENERATOR", None)


def _tf_keras_state() -> Any:
    generator = getattr(_tf_keras_seeds(), "generator", None)
    return None if generator is None else _python_state(generator.getstate())


def _set_tf_keras_state(state: Any) -> None:
    seeds = _tf_keras_seeds()
    if state is not None and seeds is not None:
        if getattr(seeds, "generator", None) is None:
            seeds.generator = random.Random()  # noqa: S311 - the type that tf_keras uses
        seeds.generator.setstate(_tuple(state))
