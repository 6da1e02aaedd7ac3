"""Patches of upstream modules; the cures for bugs have one file each: if it applies, if it is needed, its effect, its reason.

A cure must not import TensorFlow or Keras before the program does (a script may set `KERAS_BACKEND` or `TF_*` before its
imports). It therefore names the module that it changes, and runs right after the first import of that module.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ...logs import logger

_log = logger("runtime")

Function = Callable[..., Any]
_TENSORFLOW = ((2, 16), (2, 21))
# The modules with the CallbackList that drives `fit` in Keras 3 and in tf_keras.
CALLBACK_LISTS = ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks")
# The classes with a `fit` that trains, by module.
TRAINERS = {"keras.src.backend.tensorflow.trainer": "TensorFlowTrainer", "tf_keras.src.engine.training": "Model"}


def _always(module: ModuleType) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Patch:
    name: str  # in the log
    why: str  # one sentence with the upstream issue numbers
    module: str  # runs after the first import of this module, which is the argument of the three functions
    applies: Callable[[ModuleType], bool] = _always  # False for versions that this cure does not support
    # A probe; False if upstream works correctly. Must not touch TensorFlow's runtime: MultiWorkerMirroredStrategy has to be
    # created before any op.
    needed: Callable[[ModuleType], bool] = _always
    apply: Callable[[ModuleType], None]  # changes the module
    quiet: bool = False  # True to log nothing: for patches that are not cures


def plumbing(name: str, why: str, changes: Mapping[str, Callable[[ModuleType], None]]) -> list[Patch]:
    """Return patches of modules by name that apply to every version and log nothing."""
    return [Patch(name=name, why=why, module=module, apply=change, quiet=True) for module, change in changes.items()]


def install(patches: Sequence[Patch]) -> None:
    """Run each patch once its module is imported, or now if it already is. Each applied cure logs one line."""
    waiting: dict[str, list[Patch]] = {}
    for patch in patches:
        if patch.module in sys.modules:
            _run(patch, sys.modules[patch.module])
        else:
            waiting.setdefault(patch.module, []).append(patch)
    if waiting:
        sys.meta_path.insert(0, _AfterImport(waiting))


def _run(patch: Patch, module: ModuleType) -> None:
    try:
        if not patch.applies(module):
            _log.info(f"patch {patch.name}: not applied, this version is not supported ({patch.why})")
        elif patch.needed(module):
            patch.apply(module)
            if not patch.quiet:
                _log.info(f"patch {patch.name}: {patch.why}")
    except Exception as error:
        # The program's import continues: without the cure it fails only where upstream fails.
        _log.info(f"patch {patch.name} failed and may be applied in part: {type(error).__name__}: {error}")


class _AfterImport:
    """Finds the patched modules the usual way and runs their patches after the module's own code."""

    def __init__(self, waiting: dict[str, list[Patch]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # A search need not end in an import: TensorFlow searches for Keras long before it imports it.
        if fullname not in self._waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for patch in self._waiting.pop(fullname, ()):
                _run(patch, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def around(owner: Any, name: str) -> Callable[[Function], Function]:
    """Replace `owner.name` by the decorated function; its first argument is the original."""
    original = getattr(owner, name)

    def install(replacement: Function) -> Function:
        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            return replacement(original, *args, **options)

        setattr(owner, name, call)
        return replacement

    return install


def trainer_of(module: ModuleType) -> Any:
    return getattr(module, TRAINERS[module.__name__])


def is_supported_keras(module: ModuleType) -> bool:
    """Return False for Keras 2 under the name `keras`, which has another layout; True for other modules."""
    return module.__name__ != "keras" or str(getattr(module, "__version__", "")).startswith("3.")


def version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def is_supported_tensorflow(tf: ModuleType) -> bool:
    return _TENSORFLOW[0] <= version(tf.__version__) <= _TENSORFLOW[1]


def keras_version() -> tuple[int, int]:
    """Return the version of Keras while it is being imported, when `keras.__version__` may not exist yet."""
    from keras.src.version import __version__

    return version(__version__)


def steps_done(model: Any, first: int, last: int, steps: int | None) -> int:
    """Return how many steps of an epoch are complete after the execution that began with step `first`.

    `last` is the number that Keras reports: the last step's, but before Keras 3.11 the first one's.
    """
    per_execution = getattr(model, "steps_per_execution", 1)
    done = max(last + 1, first + (per_execution if isinstance(per_execution, int) else 1))
    # The last execution of an epoch may find fewer batches.
    return done if steps is None else min(done, steps)
