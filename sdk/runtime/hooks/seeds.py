"""Randomness in a drill: seeds every generator, and records calls for random numbers without a seed.

Only calls in the program's own files are recorded, each line once: internal calls of libraries are seeded, or do not affect the
weights. These calls are the likely causes if two trainings differ.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from ..patches import Patch, plumbing

# Calls from these modules count as calls of their callers.
_PASSED_THROUGH = frozenset({"random", "secrets", "uuid", "threading", "concurrent", "multiprocessing"})
_SECRETS = ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice", "randbits")
_THREAD = "a thread, with another order of its steps each time"
_NUMPY = ("RandomState", "SeedSequence", "PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")

Note = Callable[[str], None]


def patches(seed: int) -> list[Patch]:
    """Seed every random generator and restrict TensorFlow to deterministic operations."""
    random.seed(seed)

    def tensorflow(module: ModuleType) -> None:
        module.config.experimental.enable_op_determinism()
        module.random.set_seed(seed)

    changes: dict[str, Callable[[ModuleType], None]] = {
        "numpy": lambda module: module.random.seed(seed),
        "tensorflow": tensorflow,
        "keras": lambda module: module.utils.set_random_seed(seed),
        "tf_keras": lambda module: module.utils.set_random_seed(seed),
    }
    return plumbing("repeatable", "the drill compares trainings bit by bit", changes)


class UnseededCalls:
    """The unseeded calls of one task. `home` is the folder of the program's files."""

    def __init__(self, path: str, home: Path) -> None:
        self._path = Path(path)
        self._home = f"{home}{os.sep}"
        self._locations: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        """Record a call of `what`, if it is in a file of the program."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _passes_on(str(frame.f_globals.get("__name__"))):
            frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.startswith(self._home):
            return
        location = (frame.f_code.co_filename[len(self._home) :], frame.f_lineno)
        with self._lock:
            if location in self._locations:
                return
            self._locations.add(location)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                file.write(json.dumps({"what": what, "file": location[0], "line": location[1]}).encode() + b"\n")

    def patches(self) -> list[Patch]:
        """Return the patches that watch each library as soon as the program imports it."""
        changes: dict[str, Callable[[ModuleType], None]] = {
            "os": lambda module: _always(module, ("urandom", "getrandom"), self.note),
            "secrets": lambda module: _always(module, _SECRETS, self.note),
            "uuid": lambda module: _always(module, ("uuid1", "uuid4"), self.note),
            "random": lambda module: _random(module, self.note),
            "threading": lambda module: _wrap(module.Thread, "start", _THREAD, self.note),
            "numpy": lambda module: _numpy(module, self.note),
            "tensorflow": lambda module: _tensorflow(module, self.note),
        }
        return plumbing("unseeded", "the drill reports why two trainings differ", changes)


def _passes_on(module: str) -> bool:
    return module == __name__ or module.split(".")[0] in _PASSED_THROUGH


def _always(module: ModuleType, names: Sequence[str], note: Note) -> None:
    for name in names:
        if hasattr(module, name):
            _wrap(module, name, f"{module.__name__}.{name}()", note)


def _without_seed(args: Sequence[Any], options: dict[str, object]) -> bool:
    return all(value is None for value in (*args, *options.values()))


def _wrap(owner: Any, name: str, what: str, note: Note, *, if_unseeded: bool = False) -> None:
    original = getattr(owner, name)

    # Not `around`: its frame would be the one that `note` finds.
    def called(*args: Any, **options: Any) -> Any:
        if not if_unseeded or _without_seed(args, options):
            note(what)
        return original(*args, **options)

    called.__name__, called.__doc__, called.__wrapped__ = name, original.__doc__, original  # type: ignore[attr-defined]
    setattr(owner, name, called)


def _random(module: ModuleType, note: Note) -> None:
    _wrap(module, "seed", "random.seed() without a seed", note, if_unseeded=True)
    original = module.Random.__init__

    # Patched in place, so that `isinstance(x, random.Random)` still works.
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        if isinstance(self, module.SystemRandom):
            note("random.SystemRandom()")
        elif _without_seed(args, options):
            note("random.Random() without a seed")
        original(self, *args, **options)

    module.Random.__init__ = __init__


def _numpy(module: ModuleType, note: Note) -> None:
    own = module.random
    # NumPy takes its entropy from `secrets.randbits`, seeded or not, in compiled code without a Python frame.
    inside = own.bit_generator
    inside.randbits = getattr(inside.randbits, "__wrapped__", inside.randbits)
    for name in ("seed", "default_rng"):
        _wrap(own, name, f"numpy.random.{name}() without a seed", note, if_unseeded=True)
    for name in _NUMPY:
        if hasattr(own, name):
            setattr(own, name, _watched(getattr(own, name), f"numpy.random.{name}() without a seed", note))


def _watched(kind: type, what: str, note: Note) -> type:
    """Return a stand-in for a class that cannot be patched. It creates objects of that class, and they are its instances."""

    class ObservedMeta(type(kind)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **options: Any) -> Any:
            if cls is not stand_in:
                return super().__call__(*args, **options)
            if _without_seed(args, options):
                note(what)
            return kind(*args, **options)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kind) if cls is stand_in else super().__instancecheck__(instance)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, kind) if cls is stand_in else super().__subclasscheck__(other)

    stand_in: type = ObservedMeta(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    return stand_in


def _tensorflow(module: ModuleType, note: Note) -> None:
    generator, name = module.random.Generator, "from_non_deterministic_state"
    _wrap(generator, name, f"tf.random.Generator.{name}()", note)
    setattr(generator, name, staticmethod(getattr(generator, name)))
