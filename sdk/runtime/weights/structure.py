"""Keras's own files, which hold weights by their position in the structure of a model: `layers/dense_1/vars/0`.

Keras's loader ignores extra weights in a file. Therefore its saver first runs over the program's model, into a dictionary: the
file must have exactly its names. Then Keras itself loads the file, and calls the load methods of the layers.
"""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from ...checkpoint.matching import Shape, check, split
from .model_files import ModelFile, check_own


class _Array(Protocol):
    shape: Shape


_Entry = dict[str, _Array]
_IN_ARCHIVE = "model.weights.h5"
# Contents of files besides weights, by a part of the name.
_NO_WEIGHTS = frozenset({"optimizer", "metrics", "_metrics", "seed_generator"})


def load(model: Any, file: ModelFile, headline: str) -> int:
    """Load all weights and return their number; CheckpointMismatchError unless they are exactly the model's."""
    library = importlib.import_module(f"{'tf_keras' if is_legacy(model) else 'keras'}.src.saving.saving_lib")
    skipped = _without_weights(model)
    with _opened(library, file) as store:
        here, names = _expected(model, library, skipped)
        saved, saved_names = _stored(store.h5_file)
        check(saved, here, headline, others=_renamed(model, names, saved_names))
        library._load_state(model, store, None, "", False, set(skipped))
    return len(here)


def is_legacy(model: Any) -> bool:
    """True for a model of tf_keras."""
    return any(cls.__module__.split(".")[0] == "tf_keras" for cls in type(model).__mro__)


def _without_weights(model: Any) -> set[int]:
    """Return the ids of the objects that are saved with a model but not loaded: optimizers, metrics and random generators."""
    parts: list[Any] = []
    for layer in [model, *model._flatten_layers()]:
        parts += [getattr(layer, "optimizer", None), getattr(layer, "_loss_tracker", None)]
        parts += [*getattr(layer, "_seed_generators", ()), *(getattr(layer, "metrics", None) or ())]
        parts += [getattr(layer, "_compile_metrics", None), getattr(layer, "compiled_metrics", None)]
    return {id(part) for part in parts if part is not None}


@contextmanager
def _opened(library: Any, file: ModelFile) -> Iterator[Any]:
    with ExitStack() as stack:
        if file.kind == "keras":
            archive = stack.enter_context(zipfile.ZipFile(file.path))
            store = library.H5IOStore(_IN_ARCHIVE, archive=archive, mode="r")
        else:
            store = library.H5IOStore(file.path, mode="r")
        stack.callback(store.close)
        yield store


def _stored(h5_file: Any) -> tuple[dict[str, Shape], dict[str, str]]:
    """Return the shapes of the weights in a file, and the names of the layers, if it has them."""
    shapes, names = dict[str, Shape](), dict[str, str]()

    def visit(name: str, item: Any) -> None:
        parts = name.split("/")
        if _NO_WEIGHTS & {*parts}:
            return
        if hasattr(item, "shape"):
            check_own(item, h5_file, name)
            shapes[name] = tuple(item.shape)
        elif parts[-1] == "vars" and "name" in item.attrs:
            names[name.rpartition("/")[0]] = str(item.attrs["name"])

    h5_file.visititems(visit)
    return shapes, names


def _expected(model: Any, library: Any, skipped: set[int]) -> tuple[dict[str, Shape], dict[str, str]]:
    """Return the shapes of the weights that a file of this model has, and the names of the layers."""

    class Recorder(library.H5IOStore):  # type: ignore[misc]
        """Keeps the arrays that Keras would write."""

        def __init__(self) -> None:
            self.entries: dict[str, _Entry] = {}
            self.names: dict[str, str] = {}

        def __bool__(self) -> bool:
            return True

        def make(self, path: str, metadata: Mapping[str, str] | None = None) -> _Entry:
            if metadata and "name" in metadata:
                self.names[path] = metadata["name"]
            return self.entries.setdefault(path, {})

        def close(self) -> None:
            pass

    recorder = Recorder()
    with _unread():
        library._save_state(model, recorder, None, "", set(skipped))
    shapes = {
        f"{path}/vars/{key}" if path else f"vars/{key}": tuple(int(size) for size in value.shape)
        for path, entry in recorder.entries.items()
        for key, value in entry.items()
    }
    return {name: shape for name, shape in shapes.items() if not _NO_WEIGHTS & {*name.split("/")}}, recorder.names


@contextmanager
def _unread() -> Iterator[None]:
    """Have the layers of tf_keras save their variables instead of the values: reading a value may be a collective operation."""
    module = sys.modules.get("tf_keras.src.engine.base_layer")
    if module is None:
        yield
        return
    layer, original = module.Layer, module.Layer.save_own_variables

    def save_own_variables(self: Any, store: _Entry) -> None:
        self._update_trackables()
        for index, variable in enumerate(self._trainable_weights + self._non_trainable_weights):
            store[f"{index}"] = variable

    layer.save_own_variables = save_own_variables
    try:
        yield
    finally:
        layer.save_own_variables = original


def _renamed(model: Any, here: Mapping[str, str], saved: Mapping[str, str]) -> list[str]:
    """Return where layers at one place have different names, not counting the numbers that Keras gives."""
    if not saved:
        return []
    automatic = {layer.name: _automatic_name(type(layer).__name__) for layer in model._flatten_layers()}
    renamed = []
    for path in sorted({*here} & {*saved} - {""}):
        mine, other = here[path], saved[path]
        base = automatic.get(mine)
        if mine != other and not (base and split(mine)[0] == base == split(other)[0]):
            renamed.append(f"{path}: the layer {mine!r} in this program, {other!r} in the saved model")
    return renamed


def _automatic_name(kind: str) -> str:
    from keras.src.utils.naming import to_snake_case

    return str(to_snake_case(kind))
