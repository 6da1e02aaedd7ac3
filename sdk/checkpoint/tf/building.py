"""Makes the weights of models that make them at their first call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import tensorflow as tf

# For a dimension that the data leaves open, except the batch: enough for a few convolutions.
_OPEN = 32


def call(model: Any, spec_of_data: Callable[[], Any]) -> None:
    """Call a model on a batch of zeros, in the shape of its data. A model that cannot be called so stays as it is."""
    if all(layer.built for layer in model._flatten_layers()):
        return
    # Without training, no random numbers are drawn and no statistics move. An error of the program appears again in its fit.
    with suppress(Exception), model.distribute_strategy.scope():
        spec = spec_of_data()
        inputs = spec[0] if isinstance(spec, tuple) else spec
        model(tf.nest.map_structure(_zeros, inputs), training=False)


def _zeros(spec: Any) -> Any:
    # In a distributed data set, each replica has its own spec.
    spec = getattr(spec, "_value_specs", [spec])[0]
    first, *others = spec.shape.as_list()
    return tf.zeros([first or 1, *(size or _OPEN for size in others)], spec.dtype)
