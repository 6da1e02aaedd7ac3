"""Begins a training with the weights of a registered model: fetched by digest, verified, and loaded before the first step."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from typing import Any

from ...errors import CorruptObjectError, InputError
from ...job.payload import InitialWeights
from ...logs import logger
from ...model_registry import files
from ...storage.locking import file_lock
from ...storage.registry import open_store
from ...text import and_more
from ..weights import by_name, model_files, structure

_log = logger("runtime")
_NAMED = 5


class WarmStart:
    """The weights that this run begins with.

    Args:
        initial: which ones; None for none.
        models: where registered models are.
        folder: of this machine, shared by the tasks of the run on it.
    """

    def __init__(self, initial: InitialWeights | None, models: str, folder: str) -> None:
        self._initial, self._models, self._folder = initial, models, folder
        # True as long as the first `fit` loads them.
        self.is_pending = initial is not None and bool(initial.version)
        if initial is not None and not initial.version:
            _log.info(f"warm start: {initial}")

    def end(self, why: str) -> None:
        """End the automatic warm start."""
        if self.is_pending:
            _log.info(f"warm start: not loaded, {why}")
        self.is_pending = False

    @property
    def unused(self) -> str:
        """Return the warning for a program that has ended without these weights, "" if it has used them."""
        return self._initial.unused if self._initial is not None and self.is_pending else ""

    def before_fit(self, model: Any, build: Callable[[Any], None]) -> None:
        """Load the weights into the model of the first `fit`, unless the program has loaded them; `build` makes them."""
        if self.is_pending:
            build(model)
            self.load(model)

    def load(self, model: Any, file: str | None = None) -> bool:
        """Load the weights into a model; False if there are none.

        Raises:
            InputError: they do not fit, or it is not clear which file holds them; nothing was loaded.
        """
        self.is_pending = False
        if self._initial is None or not self._initial.version:
            return False
        if not hasattr(model, "_flatten_layers"):
            raise InputError(f"warm_start loads weights into a Keras model. Received: {type(model).__name__}.")
        source, others = model_files.find(self._fetched(self._initial), self._version, file)
        headline = (
            f"{source.name} in {self._version} does not fit the model {model.name!r} of this program ({{}}): nothing was "
            "loaded, and no step was made. Next: undo the change of the model, or submit it without warm_start; if another "
            "model of the program is meant, call sdk.context().warm_start(model) before the first fit; if weights are "
            "missing here, the model was not built yet: call it once on a batch."
        )
        try:
            count = (by_name if by_name.is_named(source) else structure).load(model, source, headline)
        except InputError:
            raise
        except (zipfile.BadZipFile, OSError, KeyError, ValueError) as error:
            raise InputError(
                f"{source.name} in {self._version} cannot be read as the weights of a Keras model: {type(error).__name__}: "
                f"{error}. Next: register a file that keras.Model.save has written (podlift models add RUN --path FILE)."
            ) from error
        beside = f" Not used: {and_more(others, _NAMED)}." if others else ""
        _log.info(
            f"warm start: {count} weights of {source.name} in {self._version} are loaded into {model.name!r}. Optimizer and "
            f"steps start from zero.{beside}"
        )
        return True

    @property
    def _version(self) -> str:
        return str(self._initial)

    def _fetched(self, initial: InitialWeights) -> str:
        """Return the folder of the model's files. The first task of this machine downloads and verifies them."""
        folder = os.path.join(self._folder, f"initial-{initial.manifest[:16]}")
        with file_lock(f"{folder}.lock", wait=True):
            if os.path.isdir(folder):
                return folder
            try:
                return files.fetch(open_store(self._models), initial.manifest, folder)
            except CorruptObjectError as error:
                raise CorruptObjectError(
                    f"warm_start: {initial} is damaged: {error} Next: podlift models status {initial.model} --verify, which "
                    "names the damaged versions."
                ) from error
