"""The strategies of tf.distribute that a program mentions, and the ones that its job cannot serve. Imports nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ..hardware import accelerators
from ..job.findings import Finding, error, note, warning
from ..job.job import Job
from ..text import joined
from .keras2 import ADVICE

PARAMETER_SERVER = "ParameterServerStrategy"
# Every task holds the whole model, and all of them take each step together.
SYNCHRONOUS = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "TPUStrategy")
_OTHERS = ("CentralStorageStrategy", "OneDeviceStrategy")
_KNOWN = (*SYNCHRONOUS, PARAMETER_SERVER, *_OTHERS)
# Words of a module that names a strategy, or another means to train one model in several tasks, even in a comment.
CONNECTS = re.compile(rb"(?i)strateg|distribut|horovod|tf_config|\.scope\(")
# Arguments of Keras's `fit` that the `fit` of other libraries does not have.
_OF_FIT = {"batch_size", "callbacks", "epochs", "steps_per_epoch", "validation_data"}


def strategies_in(source_text: str) -> tuple[str, ...]:
    """Return the strategies that a module mentions, each once, in their order; nothing for text that is not Python."""
    try:
        tree = ast.parse(source_text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return strategies_of(tree)


def strategies_of(tree: ast.AST) -> tuple[str, ...]:
    places: dict[str, tuple[int, int]] = {}
    for node in ast.walk(tree):
        for name in _names(node):
            places[name] = min(places.get(name, (node.lineno, node.col_offset)), (node.lineno, node.col_offset))  # type: ignore[attr-defined]
    return tuple(sorted(places, key=lambda name: places[name]))


def _names(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        return (node.attr,) if node.attr in _KNOWN else ()
    if isinstance(node, ast.Name):
        return (node.id,) if node.id in _KNOWN else ()
    if isinstance(node, ast.ImportFrom):
        return tuple(alias.name for alias in node.names if alias.name in _KNOWN)
    return ()


def fits_of(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that call Keras's `fit`, judged by the arguments."""
    for node in ast.walk(tree):
        is_fit = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fit"
        if is_fit and _OF_FIT & {keyword.arg for keyword in node.keywords}:  # type: ignore[attr-defined]
            yield node.lineno  # type: ignore[attr-defined]


def roles(job: Job, strategies: Sequence[str]) -> Iterator[Finding]:
    """Parameter servers that would stay unused."""
    servers, alone = job.resources.ps, [name for name in strategies if name in (*SYNCHRONOUS, *_OTHERS)]
    if servers and alone and PARAMETER_SERVER not in strategies:
        verb = "trains" if len(alone) == 1 else "train"
        message = f"{joined(alone, 'and')} {verb} without parameter servers: they would only cost money. Received: ps={servers}"
        yield error(message, {"resources.ps": 0})
    if servers and job.resources.workers == 1:
        message = f"Parameter servers without workers: the chief only coordinates. Received: workers=1, ps={servers}"
        yield warning(f"{message}; training needs at least workers=2")


def of_fit(job: Job, strategies: Sequence[str], fits: Sequence[str]) -> Iterator[Finding]:
    """The limits of `fit` under the strategy of the job; `fits` are the places of its calls."""
    if fits:
        yield from _served_fit(job, strategies, fits[0])
        yield from _unweighted_fit(job, fits[0])


def _served_fit(job: Job, strategies: Sequence[str], place: str) -> Iterator[Finding]:
    others = [name for name in strategies if name != PARAMETER_SERVER]
    served = PARAMETER_SERVER in strategies or job.resources.ps
    if served and not others and job.code.keras != "legacy":
        yield warning(
            f"{place} calls fit, which Keras 3 does not support under {PARAMETER_SERVER}: it fails before its first step. "
            f"Use a custom loop with ClusterCoordinator, or {ADVICE}"
        )


def _unweighted_fit(job: Job, place: str) -> Iterator[Finding]:
    replicas = accelerators.in_step(accelerators.row(job.resources.accelerator), job.resources.workers)
    if replicas > 1 and not job.resources.ps and job.code.keras == "legacy":
        yield note(
            f"{place} calls fit. In tf_keras, fit gives each of {replicas} replicas the same weight, even if some of them get "
            f"more examples of a batch, as the last batch may. Use batches that {replicas} replicas divide and "
            "drop_remainder=True, a custom loop, or Keras 3"
        )
