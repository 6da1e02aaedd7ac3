"""A graceful stop: somebody has asked for the end of the run, and all tasks leave their loops behind the same step.

The wish is a file in the run's directory, so that it works where nobody can send a signal, or where none would be
delivered. The first task looks for it between two steps, and writes down behind which one everybody stops: the one after
the next. In training in lockstep no task is further than that when the file appears, because no step ends before every
task has taken part in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ..storage import posix
from .patches import Patch
from .patches.keras_parts import Function, around

_AHEAD = 2
_CALLBACKS = ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks")


class Stopping:
    """One task's view of the wish to stop.

    Args:
        control: the folder in which clients leave their wishes; it may not be there.
        agreed: the file in which the first task says where to stop; None for a process that belongs to no run.
        decides: True in the first task.
        alone: True where there is no other task: then there is nothing to agree on.
        log: takes a line when the task stops.
    """

    def __init__(
        self, control: str, agreed: str | None, *, decides: bool, alone: bool, log: Callable[[str], None]
    ) -> None:
        self._control = control
        self._agreed = agreed
        self._decides = decides
        self._ahead = 0 if alone else _AHEAD
        self._log = log
        self._count = 0
        self._at: int | None = None
        # An earlier supervisor has fulfilled these.
        self._old = len(posix.list_names(control)) if agreed is not None else 0

    def passed(self) -> bool:
        """Note the end of a step, and return whether the loop is to end behind it."""
        self._count += 1
        if self._agreed is None:
            return False
        if self._at is None:
            self._at = self._find() if not self._decides else self._decide()
            if self._at is not None:
                self._log(f"the run is to end: this task leaves its loop behind step {max(self._at, self._count)}")
        return self._at is not None and self._count >= self._at

    def _decide(self) -> int | None:
        # A folder that is not there holds no wish, and costs one call of the system.
        if not os.path.isdir(self._control) or len(posix.list_names(self._control)) <= self._old:  # noqa: PTH112
            return None
        at = self._count + self._ahead
        with suppress(FileExistsError):
            posix.put_new(str(self._agreed), json.dumps({"step": at}).encode())
        return at

    def _find(self) -> int | None:
        try:
            return int(json.loads(Path(str(self._agreed)).read_bytes())["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def patches(self) -> list[Patch]:
        """Return what ends `fit` of Keras 3 and of tf_keras."""
        return [
            Patch(
                name="graceful-stop",
                why="a run that is cancelled ends behind the same step in every task",
                module=module,
                applies=lambda module: True,
                needed=lambda module: True,
                apply=self._end_fit,
                quiet=True,
            )
            for module in _CALLBACKS
        ]

    def _end_fit(self, module: ModuleType) -> None:
        @around(module.CallbackList, "on_train_batch_end")
        def end_step(original: Function, callbacks: Any, batch: int, logs: Any = None) -> None:
            original(callbacks, batch, logs)
            if self.passed() and callbacks.model is not None:
                callbacks.model.stop_training = True
