"""Gives a program its devices: a TPU or its stand-in, the stand-ins for GPUs, and as many threads as it requests."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Any

from ...clock import SystemClock
from ...hardware import Accelerator, accelerators
from ...job import cluster
from ...job.payload import Payload
from ...logs import logger
from ...process import cores
from ..tpu import host
from . import Function, Patch, around, is_supported_tensorflow, keras_multi_worker, plumbing

_log = logger("runtime")

_EMULATOR = "PODLIFT_EMULATOR"
_TRAINER = "keras.src.trainers.trainer"
_ADVICE = "a TPU waits for Python after each execution"


def prepare(payload: Payload, environ: MutableMapping[str, str]) -> None:
    """Prepare this process for its TPU, if it has one, before TensorFlow is imported."""
    if not payload.tpu:
        return
    row = accelerators.row(payload.tpu)
    if has_stand_in(payload, environ):
        # The emulated machine sets them too, and TensorFlow's import fails without libtpu.so.
        for name, value in row.env:
            if environ.get(name) == value:
                del environ[name]
        return
    host.set_variables(row, environ, payload.bucket_url or payload.run_url)
    host.wait(SystemClock())


def has_stand_in(payload: Payload, environ: Mapping[str, str]) -> bool:
    """Return whether CPUs stand in for the accelerator, which they never do in the cloud."""
    return payload.stand_in or bool(environ.get(_EMULATOR))


def tpu_patches(payload: Payload, environ: Mapping[str, str]) -> list[Patch]:
    """Return the patches for a task on a TPU; none for other tasks."""
    if not payload.tpu:
        return []
    row = accelerators.row(payload.tpu)
    tpu = _stand_in(row, environ) if has_stand_in(payload, environ) else _real(row, _names(environ))
    return [tpu, *plumbing("tpu-advice", _ADVICE, {_TRAINER: _advise_once}), keras_multi_worker.REPLICAS]


def _names(environ: Mapping[str, str]) -> tuple[str, ...]:
    names = [environ.get(name, "") for name in ("TPU_NODE_NAME", "TPU_NAME", "CLOUD_ML_JOB_ID")]
    try:
        names.append(str(json.loads(environ.get("TPU_CONFIG", "{}")).get("tpu_node_name", "")))
    except (ValueError, AttributeError):
        pass  # set by the job itself, in another format
    return tuple(dict.fromkeys(name for name in names if name))


def _stand_in(row: Accelerator, environ: Mapping[str, str]) -> Patch:
    replicas, names = accelerators.replicas(row, environ), _names(environ)

    def install() -> None:
        from ..tpu import devices, install

        install.install(devices.system_of(row, replicas=replicas, names=names))

    return stand_in(row, replicas, install)


def stand_in(row: Accelerator, replicas: int, install: Callable[[], None]) -> Patch:
    """Return the patch that makes logical CPU devices an accelerator right after TensorFlow is imported."""
    kind = row.family.upper()

    def apply(tf: ModuleType) -> None:
        install()
        counted = f"{replicas} logical CPU devices" if replicas > 1 else "a logical CPU device"
        _log.info(
            f"{row.name} is a stand-in here: {counted} of this machine in each task. Results are right, but the time of a step "
            f"does not predict a {kind} (docs/how-to/{row.family}.md)"
        )

    return Patch(
        name=f"{row.family}-stand-in",
        why=f"a program for a {kind} runs on a machine without one",
        module="tensorflow",
        applies=is_supported_tensorflow,
        apply=apply,
        quiet=True,
    )


def _real(row: Accelerator, names: tuple[str, ...]) -> Patch:
    def apply(tf: ModuleType) -> None:
        _resolve_to_this_machine(names)
        util: Any = importlib.import_module("tensorflow.python.tpu.tpu_strategy_util")

        @around(util, "initialize_tpu_system_impl")
        def initialize(original: Function, *args: Any, **options: Any) -> Any:
            try:
                result = original(*args, **options)
            except tf.errors.NotFoundError as error:
                raise RuntimeError(
                    f"TensorFlow finds no TPU on this machine, which should have a {row.name}. Received: devices "
                    f"{[device.name for device in tf.config.list_physical_devices()]}. A v5e needs a TensorFlow built for TPUs "
                    "(the package tensorflow-tpu) and libtpu.so: see docs/how-to/tpu.md."
                ) from error
            _log.info(f"{row.name} is the TPU of this machine")
            return result

    return Patch(name="tpu-host", why="a missing TPU is reported clearly", module="tensorflow", apply=apply, quiet=True)


def _resolve_to_this_machine(names: tuple[str, ...]) -> None:
    """Let a resolver without a name, or with the name of this machine's TPU, mean "local", as on the stand-in.

    TPU_CONFIG, which Vertex AI sets, makes TensorFlow look for it with a client of the Cloud TPU API that images lack:
    "Missing runtime dependency on the Google API client" (tensorflow/python/tpu/client/client.py).
    """
    resolvers = "tensorflow.python.distribute.cluster_resolver.tpu.tpu_cluster_resolver"

    @around(importlib.import_module(resolvers).TPUClusterResolver, "__init__")
    def init(original: Function, self: Any, tpu: Any = None, *args: Any, **options: Any) -> None:
        original(self, "local" if tpu in (None, "", *names) else tpu, *args, **options)


def _advise_once(trainer: ModuleType) -> None:
    logged = False

    @around(trainer.Trainer, "compile")
    def compiled(original: Function, model: Any, *args: Any, **options: Any) -> Any:
        nonlocal logged
        result = original(model, *args, **options)
        advice = [] if logged else _advise(model)
        if advice:
            logged = True
            _log.info(f"for a TPU: {'; '.join(advice)}")
        return result


def _advise(model: Any) -> list[str]:
    advice = []
    if model.steps_per_execution == 1:
        advice.append(
            "compile(steps_per_execution=...) of 10 to 100, since a TPU waits for Python after each execution"
        )
    if getattr(getattr(model, "dtype_policy", None), "compute_dtype", "") == "float32":
        advice.append("keras.mixed_precision.set_global_policy('mixed_bfloat16'), a TPU's own type for matrices")
    return advice


def gpu_patches(payload: Payload, task: str, environ: Mapping[str, str]) -> list[Patch]:
    """Return the patches for a task with GPUs; none for other tasks, such as parameter servers."""
    if not payload.gpu or cluster.role_of(task) == "ps":
        return []
    row = accelerators.row(payload.gpu)
    patches = [keras_multi_worker.REPLICAS] if len(payload.tasks) == 1 else []
    if has_stand_in(payload, environ):
        count = accelerators.replicas(row, environ)

        def install() -> None:
            from ..gpu import install

            install.install(row, count)

        patches.insert(0, stand_in(row, count, install))
    return patches


def thread_patches() -> list[Patch]:
    """Return the patch that lets a task use all CPUs of its run if its program requests more threads than its part has CPUs."""
    hooks = {"tensorflow.python.eager.context": _free_threads} if cores.own_part() else {}
    return plumbing("own-threads", "threads that a program requests are not confined", hooks)


def _free_threads(module: ModuleType) -> None:
    # Not the function of `tf.config`: a forked task has imported all of its aliases.
    threads = module.Context.intra_op_parallelism_threads

    def ask(context: Any, number: int) -> None:
        threads.fset(context, number)
        if number > cores.own_part():
            # The threads are made later, by this one.
            cores.widen()
            _log.info(f"the program requests {number} threads for an operation: this task may use all CPUs of the run")

    module.Context.intra_op_parallelism_threads = threads.setter(ask)
