"""Files that name each weight: SavedModels, TensorFlow checkpoints, and HDF5 files in the layout before Keras 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from ...checkpoint.matching import Shape, canonical, check
from ...errors import InputError
from .model_files import ModelFile, check_own

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Other saved objects, by the first part of the key. Keras lists the variables of an exported model twice.
_NO_WEIGHTS = ("optimizer", "keras_api", "_all_variables", "save_counter")


@dataclass(frozen=True)
class _Saved:
    name: str
    shape: Shape
    read: Callable[[], Any]
    place: int = -1  # among all weights of an exported model


def is_named(file: ModelFile) -> bool:
    """True unless the file has the layout of Keras 3, where the place in the model is the name."""
    if file.kind in ("saved_model", "checkpoint"):
        return True
    if file.kind == "keras":
        return False
    import h5py

    with h5py.File(file.path) as opened:
        return "model_weights" in opened or "layer_names" in opened.attrs


def load(model: Any, file: ModelFile, headline: str) -> int:
    """Load all weights and return their number; CheckpointMismatchError unless they are exactly the model's."""
    names = canonical(str(getattr(weight, "path", weight.name)) for weight in model.weights)
    with (_h5 if file.kind in ("weights", "h5") else _checkpoint)(file) as entries:
        entries = [weight for weight in entries if "seed_generator" not in weight.name]
        saved = dict(zip(canonical(weight.name for weight in entries), entries, strict=True))
        if {*saved} != {*names} and entries and all(weight.place >= 0 for weight in entries):
            # The names in an exported model may lack layers. It lists its weights in the order of the model.
            places = [f"{index}: {_last(name)}" for index, name in enumerate(names)]
            ordered = {
                f"{index}: {_last(weight.name)}": weight
                for index, weight in enumerate(sorted(entries, key=attrgetter("place")))
            }
            names, saved = (places, ordered) if {*places} == {*ordered} else (names, saved)
        variables = dict(zip(names, model.weights, strict=True))
        check(
            {name: weight.shape for name, weight in saved.items()},
            {name: tuple(weight.shape) for name, weight in variables.items()},
            headline,
        )
        for name, variable in variables.items():
            variable.assign(saved[name].read())
    finalize(model)
    return len(variables)


def finalize(model: Any) -> None:
    """Let layers such as Normalization derive the numbers that they compute with from their new weights."""
    for layer in model._flatten_layers():
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()


def _last(name: str) -> str:
    return name.removesuffix(":0").rpartition("/")[2].partition("#")[0]


@contextmanager
def _h5(file: ModelFile) -> Iterator[list[_Saved]]:
    import h5py

    with h5py.File(file.path) as opened:
        top = opened.get("model_weights", opened)
        groups = [top[_text(name)] for name in top.attrs["layer_names"]]
        groups += [top["top_level_model_weights"]] if "top_level_model_weights" in top else []
        named = [(_text(name), group[_text(name)]) for group in groups for name in group.attrs["weight_names"]]
        for name, data in named:
            check_own(data, opened, name)
        yield [_Saved(name, tuple(data.shape), partial(data.__getitem__, ())) for name, data in named]


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


@contextmanager
def _checkpoint(file: ModelFile) -> Iterator[list[_Saved]]:
    import tensorflow as tf
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    reader = tf.train.load_checkpoint(f"{file.path}/variables/variables" if file.kind == "saved_model" else file.path)
    shapes = reader.get_variable_to_shape_map()
    if _OBJECT_GRAPH not in shapes:
        raise InputError(f"{file.name} does not name its weights: it was written by TensorFlow 1. Next: save it again.")
    graph = TrackableObjectGraph.FromString(reader.get_tensor(_OBJECT_GRAPH))
    keyed = [
        (attribute.full_name, attribute.checkpoint_key)
        for node in graph.nodes
        for attribute in node.attributes
        if attribute.full_name and attribute.checkpoint_key.split("/")[0] not in _NO_WEIGHTS
    ]
    yield [_Saved(name, tuple(shapes[key]), partial(reader.get_tensor, key), _place(key)) for name, key in keyed]


def _place(key: str) -> int:
    parts = key.split("/")
    return int(parts[1]) if parts[0] == "variables" and parts[1].isdecimal() else -1
