"""The plain-data attributes of arbitrary objects, as JSON; and the form of blobs: a JSON header, then bytes."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_ARRAY_BYTES = 8_000_000
# Of an array of the logs, which come again in each epoch, and in each checkpoint from then on.
LOGGED_BYTES = 8_000
_ITEMS = 10_000
_LENGTH_BYTES = 8


class NotPlainError(ValueError):
    """A value that is not plain data, or is too large."""


def blob_of(header: Mapping[str, object], parts: Iterable[bytes | memoryview]) -> bytes:
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts])


def split(blob: bytes) -> tuple[Any, memoryview]:
    """Return the header and the bytes of a blob; ValueError if it has no header."""
    view = memoryview(blob)
    start = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    return json.loads(bytes(view[_LENGTH_BYTES:start])), view[start:]


def read(value: object) -> tuple[dict[str, object], list[str]]:
    """Return the plain attributes of an object, encoded, and the names of the others.

    Plain are numbers, text, None, collections and arrays of up to 8 MB of those, and generators of Python and NumPy.
    """
    plain: dict[str, object] = {}
    others: list[str] = []
    for name, attribute in vars(value).items():
        try:
            plain[name] = encode(attribute)
        except NotPlainError:
            others.append(name)
    return plain, others


def write(value: object, attributes: dict[str, object]) -> None:
    """Set attributes that `read` returned."""
    for name, attribute in attributes.items():
        vars(value)[name] = decode(attribute, vars(value).get(name))


def encode(value: Any, *, lossy: bool = False) -> Any:
    """Return plain data as JSON; NotPlainError for anything else. `lossy` keeps its text, and arrays that are small."""
    if type(value) in (bool, int, float, str, type(None)):
        return value
    if lossy and callable(getattr(value, "numpy", None)):
        value = value.numpy()
    large = _is_large(value)
    if lossy and getattr(getattr(value, "dtype", None), "name", "") == "bfloat16":
        value = value.astype(np.float32)
    if isinstance(value, np.generic) and (_fits(value) or not lossy):
        return {"is": "scalar", "value": _array(np.asarray(value))}
    if isinstance(value, np.ndarray) and (not lossy or (_fits(value) and not large)):
        return _array(value)
    if type(value) in (list, tuple, set, frozenset) and (lossy or len(value) <= _ITEMS):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return {"is": type(value).__name__, "items": [encode(item, lossy=lossy) for item in items]}
    if type(value) is dict and (lossy or len(value) <= _ITEMS):
        pairs = [[encode(key, lossy=lossy), encode(item, lossy=lossy)] for key, item in value.items()]
        return {"is": "dict", "items": pairs}
    if type(value) is random.Random:
        return {"is": "Random", "state": encode(value.getstate())}
    if isinstance(value, np.random.Generator):
        return {"is": "Generator", "state": encode(value.bit_generator.state)}
    if isinstance(value, np.random.RandomState):
        return {"is": "RandomState", "state": encode(value.get_state(legacy=False))}
    if lossy:
        return str(value)
    raise NotPlainError(type(value).__name__)


def has_large_arrays(value: Any) -> bool:
    """Return whether a value of the logs is or holds an array of which `encode` with `lossy` keeps a text alone."""
    if callable(getattr(value, "numpy", None)):
        value = value.numpy()
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(has_large_arrays, value))
    return _is_large(value)


def _is_large(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.nbytes > LOGGED_BYTES


def _fits(array: Any) -> bool:
    return array.dtype.kind in "biufc" and array.nbytes <= _ARRAY_BYTES


def _array(value: Any) -> Any:
    if not _fits(value):
        raise NotPlainError(f"array of {value.dtype}")
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return {"is": "array", "dtype": value.dtype.str, "shape": list(value.shape), "data": data}


def decode(value: Any, now: Any = None) -> Any:
    """Reverse `encode`. A generator in `now` is updated in place, because other objects may share it."""
    if not isinstance(value, dict):
        return value
    kind = value["is"]
    if kind == "array":
        data = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value["dtype"]))
        return data.reshape(value["shape"]).copy()
    if kind == "scalar":
        return decode(value["value"])[()]
    if kind == "dict":
        return {decode(key): decode(item) for key, item in value["items"]}
    if kind in ("Random", "Generator", "RandomState"):
        return _decoded_generator(kind, decode(value["state"]), now)
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(decode, value["items"]))


def _decoded_generator(kind: str, state: Any, now: Any) -> Any:
    if kind == "Random":
        generator = now if type(now) is random.Random else random.Random()  # noqa: S311 - restores the saved type
        generator.setstate(state)
        return generator
    if kind == "RandomState":
        legacy = now if isinstance(now, np.random.RandomState) else np.random.RandomState()
        legacy.set_state(state)
        return legacy
    bits = getattr(np.random, state["bit_generator"])
    numpy = now if isinstance(now, np.random.Generator) and type(now.bit_generator) is bits else None
    numpy = np.random.Generator(bits()) if numpy is None else numpy
    numpy.bit_generator.state = state
    return numpy
