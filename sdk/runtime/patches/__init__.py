"""Cures for upstream bugs, one file each: does it apply, is it needed, what it does, and why.

A cure must not import TensorFlow or Keras before the user's own program does (a script may set `KERAS_BACKEND` or `TF_*`
before its imports), so each names the module that it changes and runs right after that module was first imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One cure.

    Args:
        name: what the log calls it.
        why: one sentence with the upstream issue numbers.
        module: the module after whose first import it runs; that module is the argument of the three functions.
        applies: False where the installed version is outside the range that this cure knows.
        needed: a probe; False where upstream behaves well, so that the cure steps aside. Must not touch TensorFlow's
            runtime: MultiWorkerMirroredStrategy has to be created before any op.
        apply: changes the module.
        quiet: True for plumbing that is no cure and needs no line in the log.
    """

    name: str
    why: str
    module: str
    applies: Callable[[ModuleType], bool]
    needed: Callable[[ModuleType], bool]
    apply: Callable[[ModuleType], None]
    quiet: bool = False


def plumbing(name: str, why: str, changes: Mapping[str, Callable[[ModuleType], None]]) -> list[Patch]:
    """Return the patches that change modules by name, in every version of them, and say nothing.

    Args:
        name: of all of them, for the line that says that one failed.
        why: one sentence.
        changes: what to do to each module.
    """
    return [
        Patch(
            name=name,
            why=why,
            module=module,
            applies=lambda module: True,
            needed=lambda module: True,
            apply=change,
            quiet=True,
        )
        for module, change in changes.items()
    ]


def install(patches: Sequence[Patch], log: Callable[[str], None]) -> None:
    """Run each patch once its module is imported, now if it already was; `log` gets one line per cure applied."""
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
        # The user's own import goes on: without the cure the program fails where upstream makes it fail, if it does.
        log(f"patch {patch.name} failed and may be in force in part: {type(error).__name__}: {error}")


def _cure(patch: Patch, module: ModuleType, log: Callable[[str], None]) -> None:
    if not patch.applies(module):
        log(f"patch {patch.name}: not for this version, left alone ({patch.why})")
    elif patch.needed(module):
        patch.apply(module)
        if not patch.quiet:
            log(f"patch {patch.name}: {patch.why}")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the awaited modules the usual way and runs their patches after the module's own code."""

    def __init__(self, waiting: dict[str, list[Patch]], log: Callable[[str], None]) -> None:
        self._waiting = waiting
        self._log = log

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # A search need not end in an import: TensorFlow looks for Keras long before it imports it.
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
