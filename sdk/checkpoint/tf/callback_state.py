"""What callbacks remember: how long EarlyStopping has waited, the best value so far, the history.

A callback of the program's own keeps its state by its plain attributes (see `object_state`), or, if it has them, by two
methods: `get_state()` returns plain data, and `set_state(state)` takes it back. Nothing of a callback is ever pickled.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from . import object_state

_LENGTH_BYTES = 8
_MONITOR = ("wait", "best")
# The classes of Keras 3 and tf_keras by name, with what changes in them; () for those that remember nothing.
_KNOWN: dict[str, tuple[str, ...]] = {
    "BackupAndRestore": (),
    "BaseLogger": (),
    "CSVLogger": ("keys",),
    "EarlyStopping": (*_MONITOR, "stopped_epoch", "best_epoch", "best_weights"),
    "History": ("history", "epoch"),
    "LambdaCallback": (),
    "LearningRateScheduler": (),
    "ModelCheckpoint": (
        "best",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
        "_current_epoch",
        "epochs_since_last_save",
    ),
    "ProgbarLogger": (),
    "ReduceLROnPlateau": (*_MONITOR, "cooldown_counter"),
    "RemoteMonitor": (),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": (),
    "TerminateOnNaN": (),
}
_OF_KERAS = frozenset(
    {"_model", "model", "params", "validation_data", "_supports_tf_logs", "_chief_worker_only", "async_safe"}
)
_first: WeakKeyDictionary[Any, tuple[dict[str, Any], dict[str, int]]] = WeakKeyDictionary()


def watch(callbacks: Iterable[Any]) -> None:
    """Note what callbacks of the program's own hold when a `fit` begins: what stays as it is, is not their state."""
    for callback in callbacks:
        if _known(callback) is None and not _has_methods(callback):
            plain, others = object_state.read(callback)
            _first[callback] = (plain, {name: id(vars(callback)[name]) for name in others})


def capture(callbacks: Iterable[Any]) -> tuple[bytes, list[str]]:
    """Return the state of the callbacks, and a sentence for each part of it that cannot be kept."""
    entries: list[dict[str, Any]] = []
    arrays: list[Any] = []
    sentences: list[str] = []
    for key, callback in _keyed(callbacks):
        state, told = _state(callback, arrays)
        sentences += told
        if state:
            entries.append({"callback": key, "state": state})
    specs = [{"dtype": tf.as_dtype(a.dtype).name, "shape": list(a.shape)} for a in arrays]
    header = json.dumps({"callbacks": entries, "arrays": specs}).encode()
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *(a.tobytes() for a in arrays)]), sentences


def restore(callbacks: Iterable[Any], kept: bytes) -> list[str]:
    """Give callbacks their state back; call it when a `fit` has begun, as that resets many of them.

    Args:
        callbacks: of the same classes, in the same order among those of one class.
        kept: what `capture` has returned.

    Returns:
        a sentence for each state whose callback is no longer there.
    """
    start = _LENGTH_BYTES + int.from_bytes(kept[:_LENGTH_BYTES], "little")
    header = json.loads(kept[_LENGTH_BYTES:start])
    arrays: list[Any] = []
    for spec in header["arrays"]:
        dtype = tf.as_dtype(spec["dtype"]).as_numpy_dtype
        count = int(np.prod(spec["shape"], dtype=np.int64))
        arrays.append(np.frombuffer(kept, dtype, count, start).reshape(spec["shape"]).copy())
        start += arrays[-1].nbytes
    present, sentences = dict(_keyed(callbacks)), []
    for entry in header["callbacks"]:
        callback = present.get(entry["callback"])
        if callback is None:
            sentences.append(f"the state of the callback {entry['callback']} is left out: this program has none such")
        else:
            _give_back(callback, entry["state"], arrays)
    return sentences


def _keyed(callbacks: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    count: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__qualname__
        count[name] += 1
        yield (name if count[name] == 1 else f"{name}#{count[name]}"), callback


def _known(callback: Any) -> tuple[str, ...] | None:
    """Return what changes in a callback of Keras, or None for one of the program's own, which may extend such a one."""
    cls = type(callback)
    package = cls.__module__.split(".")[0]
    return _KNOWN.get(cls.__name__, ()) if package in ("keras", "tf_keras") else None


def _has_methods(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _state(callback: Any, arrays: list[Any]) -> tuple[dict[str, Any], list[str]]:
    name, known = type(callback).__name__, _known(callback)
    if known is None and _has_methods(callback):
        try:
            return {"own": object_state.encode(callback.get_state())}, []
        except object_state.NotPlainError as error:
            return {}, [
                f"{name}.get_state() returns what cannot be saved ({error}). Expected: numbers, text, lists, arrays"
            ]
    weights: dict[str, Any] = {}
    held = getattr(callback, "best_weights", None)
    if isinstance(held, list) and all(isinstance(value, np.ndarray) for value in held):
        weights = {"weights": [len(arrays), len(arrays) + len(held)]}  # too much for JSON
        arrays += held
    if known is not None:
        found = {key: vars(callback)[key] for key in known if key in vars(callback) and key != "best_weights"}
        return {"attributes": {k: object_state.encode(v) for k, v in found.items()}, **weights}, _told(callback, name)
    plain, others = object_state.read(callback)
    before, ids = _first.get(callback, ({}, {}))
    changed = {key: v for key, v in plain.items() if key not in _OF_KERAS and (key not in before or before[key] != v)}
    lost = [key for key in others if key not in _OF_KERAS and not (weights and key == "best_weights")]
    sentences = [_lost(callback, key) for key in lost if _changes(vars(callback)[key], ids.get(key))]
    return ({"attributes": changed, **weights} if changed or weights else {}), sentences


def _changes(value: Any, before: int | None) -> bool:
    """Say whether an attribute that is no plain data may be state: it holds several things, or was replaced."""
    return isinstance(value, (list, dict, set, tuple, np.ndarray)) or (before is not None and before != id(value))


def _lost(callback: Any, attribute: str) -> str:
    name = type(callback).__name__
    return (
        f"the callback {name} begins anew with its attribute {attribute} ({type(vars(callback)[attribute]).__name__}). "
        f"Next: give {name} the methods get_state() and set_state(state)"
    )


def _told(callback: Any, name: str) -> list[str]:
    if name == "CSVLogger" and not callback.append:
        return ["CSVLogger begins its file anew after a restart. Next: pass append=True"]
    if name == "BackupAndRestore":
        return ["BackupAndRestore keeps a second state, at another step, and may load it. Next: take it out"]
    return []


def _give_back(callback: Any, state: dict[str, Any], arrays: list[Any]) -> None:
    if "own" in state:
        callback.set_state(object_state.decode(state["own"]))
        return
    object_state.write(callback, state.get("attributes", {}))
    if "weights" in state:
        first, end = state["weights"]
        callback.best_weights = arrays[first:end]
