"""The state of callbacks: how long EarlyStopping has waited, the best value so far, the history.

A custom callback is saved by its plain attributes (see `object_state`), or by two methods if it has them: `get_state()` returns
plain data, and `set_state(state)` restores it. Nothing is ever pickled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from . import object_state

# The callbacks of Keras 3 and tf_keras that have state, with the attributes that change.
_CHANGING_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "CSVLogger": ("keys",),
    "EarlyStopping": ("wait", "best", "stopped_epoch", "best_epoch", "best_weights"),
    "History": ("history", "epoch"),
    "ModelCheckpoint": (
        "best",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
        "_current_epoch",
        "epochs_since_last_save",
    ),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
_KERAS_ATTRIBUTES = frozenset(
    {"_model", "model", "params", "validation_data", "_supports_tf_logs", "_chief_worker_only", "async_safe"}
)
_first: WeakKeyDictionary[Any, tuple[dict[str, object], dict[str, int]]] = WeakKeyDictionary()


def watch(callbacks: Iterable[Any]) -> None:
    """Note the attributes of custom callbacks when a `fit` begins: attributes that never change are not state."""
    for callback in callbacks:
        if _changing_attributes(callback) is None and not _has_methods(callback):
            plain, others = object_state.read(callback)
            _first[callback] = (plain, {name: id(vars(callback)[name]) for name in others})


def capture(callbacks: Iterable[Any]) -> tuple[bytes, list[str]]:
    """Return the state of the callbacks, and a sentence for each part that cannot be saved."""
    entries: list[dict[str, object]] = []
    arrays: list[Any] = []
    sentences: list[str] = []
    for key, callback in _keyed(callbacks):
        state, warnings = _state(callback, arrays)
        sentences += warnings
        if state:
            entries.append({"callback": key, "state": state})
    specs = [{"dtype": tf.as_dtype(a.dtype).name, "shape": list(a.shape)} for a in arrays]
    return object_state.blob_of({"callbacks": entries, "arrays": specs}, (a.tobytes() for a in arrays)), sentences


def restore(callbacks: Iterable[Any], blob: bytes) -> list[str]:
    """Restore the callbacks after `fit` has reset them; return a sentence for each state without its callback."""
    header, data = object_state.split(blob)
    arrays: list[Any] = []
    start = 0
    for spec in header["arrays"]:
        dtype = tf.as_dtype(spec["dtype"]).as_numpy_dtype
        count = int(np.prod(spec["shape"], dtype=np.int64))
        arrays.append(np.frombuffer(data, dtype, count, start).reshape(spec["shape"]).copy())
        start += arrays[-1].nbytes
    present, sentences = dict(_keyed(callbacks)), []
    for entry in header["callbacks"]:
        callback = present.get(entry["callback"])
        if callback is None:
            sentences.append(
                f"the state of the callback {entry['callback']} is ignored: this program has no such callback"
            )
        else:
            _set_state(callback, entry["state"], arrays)
    return sentences


def _keyed(callbacks: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    count: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__qualname__
        count[name] += 1
        yield (name if count[name] == 1 else f"{name}#{count[name]}"), callback


def _changing_attributes(callback: Any) -> tuple[str, ...] | None:
    """Return the changing attributes of a Keras callback, or None for a custom one, which may be a subclass."""
    cls = type(callback)
    package = cls.__module__.split(".")[0]
    return _CHANGING_ATTRIBUTES.get(cls.__name__, ()) if package in ("keras", "tf_keras") else None


def _has_methods(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _state(callback: Any, arrays: list[Any]) -> tuple[dict[str, object], list[str]]:
    name, changing = type(callback).__name__, _changing_attributes(callback)
    if changing is None and _has_methods(callback):
        try:
            return {"own": object_state.encode(callback.get_state())}, []
        except object_state.NotPlainError as error:
            return {}, [
                f"{name}.get_state() returns a value that cannot be saved ({error}). Expected: numbers, text, lists, arrays"
            ]
    weights: dict[str, object] = {}
    best_weights = getattr(callback, "best_weights", None)
    if isinstance(best_weights, list) and all(isinstance(value, np.ndarray) for value in best_weights):
        weights = {"weights": [len(arrays), len(arrays) + len(best_weights)]}  # too large for JSON
        arrays += best_weights
    if changing is not None:
        values = {key: vars(callback)[key] for key in changing if key in vars(callback) and key != "best_weights"}
        # Callbacks may have put anything into the logs, which the history and the best value come from.
        attributes = {key: object_state.encode(value, lossy=True) for key, value in values.items()}
        return {"attributes": attributes, **weights}, _warnings(callback, name)
    plain, others = object_state.read(callback)
    before, ids = _first.get(callback, ({}, {}))
    changed = {
        key: v for key, v in plain.items() if key not in _KERAS_ATTRIBUTES and (key not in before or before[key] != v)
    }
    unsaved = [key for key in others if key not in _KERAS_ATTRIBUTES and not (weights and key == "best_weights")]
    sentences = [
        f"the attribute {key} of the callback {name} ({type(vars(callback)[key]).__name__}) is not restored. "
        f"Next: give {name} the methods get_state() and set_state(state)"
        for key in unsaved
        if _changes(vars(callback)[key], ids.get(key))
    ]
    return ({"attributes": changed, **weights} if changed or weights else {}), sentences


def _changes(value: Any, before: int | None) -> bool:
    """Return whether an attribute that is not plain data may be state: a container, or replaced since the beginning."""
    return isinstance(value, (list, dict, set, tuple, np.ndarray)) or (before is not None and before != id(value))


def _warnings(callback: Any, name: str) -> list[str]:
    if name == "CSVLogger" and not callback.append:
        return ["CSVLogger overwrites its file after a restart. Next: pass append=True"]
    if name == "BackupAndRestore":
        return ["BackupAndRestore keeps a second state from another step and may load it. Next: remove it"]
    return []


def _set_state(callback: Any, state: Any, arrays: list[Any]) -> None:
    if "own" in state:
        callback.set_state(object_state.decode(state["own"]))
        return
    object_state.write(callback, state.get("attributes", {}))
    if "weights" in state:
        first, end = state["weights"]
        callback.best_weights = arrays[first:end]
