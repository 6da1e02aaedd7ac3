"""The use of strategies by a program: how its batches are divided, and mistakes.

TensorFlow and Keras do not report these mistakes, or do not name the cure. A certain failure raises; a program that trains, but
not as intended, gets a finding of the run. Both before or at the first step.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ...logs import logger
from ..patches import TRAINERS, Function, Patch, around, plumbing, trainer_of
from . import states

_log = logger("runtime")
_WHY = "a mistake with a strategy is reported with the change to make"
_TOO_LATE = "must be configured at program startup"
_CHANGES = ("assign", "assign_add", "assign_sub")
_REFUSED = "ClusterCoordinator.create_per_worker_dataset"
_NO_FIT = (
    "fit() of Keras 3 cannot train with parameter servers: TensorFlow refuses the data that it has divided. Next: "
    "--code-keras legacy, with a tf.keras.utils.experimental.DatasetCreator and steps_per_epoch; or a loop of your own with "
    "sdk.context().coordinator."
)


class StrategyWatch:
    """Watches the strategies of one task. `report` takes each finding once; `home` is the folder of the program's files."""

    def __init__(self, report: Callable[[str], None], home: Path) -> None:
        self._report, self._home = report, f"{home}{os.sep}"
        self._reported: set[object] = set()
        self._started = ""  # where the program started TensorFlow's runtime: "train.py:12"
        self._strategies: weakref.WeakSet[Any] = weakref.WeakSet()
        self._watches_changes = False

    def patches(self) -> list[Patch]:
        """Return the patches that watch each library as soon as the program imports it."""
        return plumbing("strategies", _WHY, {"tensorflow": self._watch, **dict.fromkeys(TRAINERS, self._watch_fit)})

    def _watch(self, tf: ModuleType) -> None:
        names = ("distribute_lib", "mirrored_strategy", "collective_all_reduce_strategy", "values")
        library, mirrored, multi_worker, values = (
            importlib.import_module(f"tensorflow.python.distribute.{name}") for name in names
        )
        self._remember_start()
        self._watch_late_strategies(multi_worker)
        self._watch_variables(tf, library, mirrored, values)
        self._watch_batches(library)

    # --- A strategy that is made after the first operation --------------------------------------------------------

    def _remember_start(self) -> None:
        kind: Any = importlib.import_module("tensorflow.python.eager.context").Context
        original = kind.ensure_initialized

        def first(context: Any) -> None:
            kind.ensure_initialized = original
            self._started = self._location()
            original(context)

        kind.ensure_initialized = first

    def _location(self) -> str:
        """Return the line of the program that is being executed, "" if there is none."""
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(self._home):
            frame = frame.f_back  # type: ignore[assignment]
        return "" if frame is None else f"{frame.f_code.co_filename[len(self._home) :]}:{frame.f_lineno}"

    def _watch_late_strategies(self, multi_worker: Any) -> None:
        @around(multi_worker.CollectiveAllReduceExtended, "_initialize_multi_worker")
        def initialize(original: Function, extended: Any, *args: Any, **options: Any) -> None:
            try:
                original(extended, *args, **options)
            except RuntimeError as error:
                if _TOO_LATE not in str(error):
                    raise
                where = f", in {self._started}" if self._started else ""
                raise RuntimeError(
                    f"MultiWorkerMirroredStrategy comes too late: TensorFlow was started before it{where}. Next: make it right "
                    "after the imports, before tensors, variables, data sets and lists of logical devices."
                ) from error

    # --- A variable that is made outside the scope ----------------------------------------------------------------

    def _watch_variables(self, tf: ModuleType, library: Any, mirrored: Any, values: Any) -> None:
        @around(mirrored.MirroredExtended, "_update")
        def update(original: Function, extended: Any, variable: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(variable, values.DistributedVariable):
                raise ValueError(
                    f"The variable {variable.name!r} was made outside strategy.scope(), so its replicas cannot be updated "
                    f"together. {states.INSIDE}"
                )
            return original(extended, variable, *args, **options)

        @around(library.StrategyBase, "__init__")
        def init(original: Function, strategy: Any, extended: Any) -> None:
            original(strategy, extended)
            self._strategies.add(strategy)
            if not self._watches_changes and isinstance(extended, mirrored.MirroredExtended):
                self._watches_changes = True
                self._watch_changes(tf, library, mirrored)

    def _watch_changes(self, tf: ModuleType, library: Any, mirrored: Any) -> None:
        """Watch assignments, once a program has a strategy of this kind: others assign as fast as ever."""
        # TensorFlow copies the methods of its bases to this class.
        kind: Any = importlib.import_module("tensorflow.python.ops.resource_variable_ops").ResourceVariable
        for name in _CHANGES:
            around(kind, name)(functools.partial(self._change, library, mirrored))

            # Programs call it in their tf.functions.
            setattr(kind, name, tf.autograph.experimental.do_not_convert(getattr(kind, name)))
        states.read_extremes()

    def _change(
        self, library: Any, mirrored: Any, original: Function, variable: Any, *args: Any, **options: Any
    ) -> Any:
        replica = library.get_replica_context()
        if replica is not None and isinstance(replica.strategy.extended, mirrored.MirroredExtended):
            with suppress(Exception):  # an unknown assignment must not end the training
                value, replaces = args[0] if args else options["value"], original.__name__ == "assign"
                self._check_change(replica.strategy, variable, value, replaces)
        return original(variable, *args, **options)

    def _check_change(self, strategy: Any, variable: Any, value: Any, replaces: bool) -> None:
        replicas, here = int(strategy.num_replicas_in_sync), _replicas_here(strategy)
        text = states.finding(variable, value, replaces=replaces, replicas=replicas, here=here) if replicas > 1 else ""
        if text:
            # With a model outside the scope, all of its variables are.
            self._once("variable" if here > 1 and text.startswith("The variable") else text, text)

    def _watch_fit(self, module: ModuleType) -> None:
        kind = trainer_of(module)
        around(kind, "get_metrics_result")(states.together)

        @around(kind, "fit")
        def fit(original: Function, model: Any, *args: Any, **options: Any) -> Any:
            if size := _size_of_arrays(original, model, args, options):
                self._check_batch(size, model.distribute_strategy)
            most = max((strategy.num_replicas_in_sync for strategy in self._strategies), default=1)
            if most > 1 and model.distribute_strategy.num_replicas_in_sync == 1:
                self._once(
                    "fit",
                    f"fit() trains {model.name!r} without the strategy of {most} replicas that the program has made: the model "
                    f"was made outside strategy.scope(). {states.INSIDE}",
                )
            try:
                return original(model, *args, **options)
            except ValueError as error:
                if _REFUSED not in str(error) or not kind.__module__.startswith("keras."):
                    raise
                raise ValueError(_NO_FIT) from error

    # --- A batch that the replicas do not divide ------------------------------------------------------------------

    def _watch_batches(self, library: Any) -> None:
        @around(library.StrategyBase, "experimental_distribute_dataset")
        def distribute(original: Function, strategy: Any, dataset: Any, options: Any = None) -> Any:
            if strategy.num_replicas_in_sync > 1:
                self._check_batch(_batch_size(dataset), strategy)
            return original(strategy, dataset, options)

    def _check_batch(self, size: int, strategy: Any) -> None:
        replicas = int(strategy.num_replicas_in_sync)
        if size <= 0 or replicas == 1:
            return
        here = _replicas_here(strategy)
        if size % replicas:
            self._once(("batch", size), _uneven(size, replicas))
        elif "batch" not in self._reported:
            self._reported.add("batch")
            shared = (
                f"{size // replicas * here} for each task and {size // replicas} on each" if here < replicas else ""
            )
            _log.info(f"a batch of {size} examples: {shared or f'{size // replicas} on each'} of {replicas} replicas")

    def _once(self, what: object, text: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._report(text)


def _replicas_here(strategy: Any) -> int:
    try:
        return len(strategy.extended.worker_devices)
    except RuntimeError:  # a strategy without its own devices
        return 1


def _batch_size(dataset: Any) -> int:
    """Return the size of a data set's batches as TensorFlow finds it before it divides them; -1 if it is unknown."""
    library: Any = importlib.import_module("tensorflow.python.data.experimental.ops.distribute")
    try:
        return int(library.compute_batch_size(dataset))
    except Exception:  # not a data set, or inside a function: TensorFlow reports it
        return -1


def _size_of_arrays(fit: Function, model: Any, args: Any, options: Any) -> int:
    """Return the size of the batches that `fit` makes of arrays; 0 for data that comes in batches."""
    try:
        arguments = inspect.signature(fit).bind_partial(model, *args, **options).arguments
    except TypeError:  # a misspelt argument: fit reports it
        return 0
    first = next(iter(arguments["x"].values()), None) if isinstance(arguments.get("x"), dict) else arguments.get("x")
    first = first[0] if isinstance(first, (list, tuple)) and first else first
    shape = getattr(first, "shape", None)
    return min(int(arguments.get("batch_size") or 32), int(shape[0])) if shape and shape[0] else 0


def _uneven(size: int, replicas: int) -> str:
    least, more = divmod(size, replicas)
    nearest = f"{least * replicas} or {(least + 1) * replicas}" if least else str(replicas)
    shares = f"{more} x {least + 1} and {replicas - more} x {least} examples"
    return (
        f"A batch of {size} examples is not a multiple of {replicas} replicas, which get {shares}. fit of Keras 3 weighs "
        f"replicas by their examples; a loop of your own has to divide by the global batch. Next: a batch of {nearest}."
    )
