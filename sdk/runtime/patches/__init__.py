"""Cures for upstream bugs, one file each: whether it applies, whether it is needed, what it does, and why.

A cure must not import TensorFlow or Keras before the program does (a script may set `KERAS_BACKEND` or `TF_*` before its
imports). It therefore names the module that it changes, and runs right after the first import of that module.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType


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
    quiet: bool = False  # True to log nothing: for what is not a cure


def plumbing(name: str, why: str, changes: Mapping[str, Callable[[ModuleType], None]]) -> list[Patch]:
    """Return patches of modules by name that apply to every version and log nothing."""
    return [Patch(name=name, why=why, module=module, apply=change, quiet=True) for module, change in changes.items()]


def install(patches: Sequence[Patch], log: Callable[[str], None]) -> None:
    """Run each patch once its module is imported, or now if it already is. Each applied cure logs one line."""
    waiting: dict[str, list[Patch]] = {}
    for patch in patches:
        if patch.module in sys.modules:
            _run(patch, sys.modules[patch.module], log)
        else:
            waiting.setdefault(patch.module, []).append(patch)
    if waiting:
        sys.meta_path.insert(0, _AfterImport(waiting, log))


def _run(patch: Patch, module: ModuleType, log: Callable[[str], None]) -> None:
    try:
        _cure(patch, module, log)
    except Exception as error:
        # The program's import continues: without the cure it fails only where upstream fails.
        log(f"patch {patch.name} failed and may be applied in part: {type(error).__name__}: {error}")


def _cure(patch: Patch, module: ModuleType, log: Callable[[str], None]) -> None:
    if not patch.applies(module):
        log(f"patch {patch.name}: not applied, this version is not supported ({patch.why})")
    elif patch.needed(module):
        patch.apply(module)
        if not patch.quiet:
            log(f"patch {patch.name}: {patch.why}")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the patched modules the usual way and runs their patches after the module's own code."""

    def __init__(self, waiting: dict[str, list[Patch]], log: Callable[[str], None]) -> None:
        self._waiting = waiting
        self._log = log

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
                _run(patch, module, self._log)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
