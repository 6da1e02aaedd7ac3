"""Reports the phases of `fit`, `evaluate` and `predict` of Keras 3 and of tf_keras to the account of a task."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..account import COMPILE, EVALUATION, OTHER, STEP, Account
from ..patches import CALLBACK_LISTS, TRAINERS, Function, Patch, around, plumbing, trainer_of
from .starvation import StarvedInput

_EVALUATIONS = ("test", "predict")


class FitAccounting:
    """Watches the outermost `fit`: one inside a callback or a train step belongs to the step that it is part of."""

    def __init__(self, account: Account, starved: StarvedInput) -> None:
        self._account, self._starved = account, starved
        self._depth = 0
        self._compiled: set[int] = set()  # ids of train functions
        self._last: Any = None
        self._before: list[int] = []  # the parts that evaluations interrupt

    def patches(self) -> list[Patch]:
        hooks = dict.fromkeys(CALLBACK_LISTS, self._hook_callbacks)
        return plumbing(
            "account", "the time of the task is accounted", {**hooks, **dict.fromkeys(TRAINERS, self._hook_fit)}
        )

    def _hook_fit(self, module: ModuleType) -> None:
        @around(trainer_of(module), "fit")
        def fit(original: Function, model: Any, *args: Any, **options: Any) -> Any:
            self._depth += 1
            self._account.in_fit = True
            if self._depth == 1:
                self._starved.watch(args[0] if args else options.get("x"))
            try:
                return original(model, *args, **options)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._starved.watch(None)
                    self._account.in_fit = False
                    self._account.enter(OTHER)
                    self._before.clear()

    def _hook_callbacks(self, module: ModuleType) -> None:
        kind, account = module.CallbackList, self._account

        @around(kind, "on_train_batch_begin")
        def begin_step(original: Function, callbacks: Any, batch: int, logs: Any = None) -> None:
            if self._depth == 1:
                self._begin_step(getattr(callbacks.model, "train_function", None))
            original(callbacks, batch, logs)

        @around(kind, "on_epoch_end")
        def end_epoch(original: Function, callbacks: Any, epoch: int, logs: Any = None) -> None:
            if self._depth == 1:
                account.enter(OTHER)
            original(callbacks, epoch, logs)

        for name in _EVALUATIONS:

            @around(kind, f"on_{name}_begin")
            def begin(original: Function, callbacks: Any, logs: Any = None) -> None:
                self._before.append(account.enter(EVALUATION))
                original(callbacks, logs)

            @around(kind, f"on_{name}_end")
            def end(original: Function, callbacks: Any, logs: Any = None) -> None:
                original(callbacks, logs)
                before = self._before.pop() if self._before else OTHER
                # In `fit`, callbacks follow until the next step begins.
                account.enter(OTHER if self._depth and before == STEP else before)

    def _begin_step(self, function: Any) -> None:
        if function is self._last:
            self._account.enter(STEP)
            return
        self._last = function
        self._before.clear()
        self._account.enter(STEP if id(function) in self._compiled else COMPILE)
        self._compiled.add(id(function))
