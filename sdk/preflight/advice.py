"""Findings about a step as a whole: how it is fed, how it fills the matrix units, whether it fits into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..planning.preflight_findings import Layer, Level, PreflightFinding
from . import sizes

if TYPE_CHECKING:
    from .observations import TracedStep

_PADDED = 0.5
_MAX_LAYERS = 3
_TIGHT, _OVER = 0.9, 1.25
_BACKWARDS = "gradient_tape/"
# One millisecond of a v5e, and more on older TPUs. Smaller steps wait for their host longer than for their products.
_NOTICED = 200_000_000_000


@dataclass(frozen=True)
class StepFacts:
    step: TracedStep
    batch: int | None  # examples of one replica
    batch_is_exact: bool  # False if the batch is a guess
    uneven: tuple[int, int] | None  # the usual and the last batch, if they differ

    def warning(self, rule: str, what: str, why: str, instead: str, level: Level = "warning") -> PreflightFinding:
        return PreflightFinding(self.step.path, self.step.line, level, rule, what, why, instead)


def feeding(about: StepFacts) -> list[PreflightFinding]:
    findings = []
    if not about.step.on_tpu:
        findings.append(
            about.warning(
                "not-on-tpu", "the program trains without a TPUStrategy", "the step runs on the host while the TPU is idle",
                "with sdk.context().strategy.scope(): around the model's creation, or tf.distribute.TPUStrategy(resolver)",
            )
        )  # fmt: skip
    if about.uneven is not None:
        usual, last = about.uneven
        findings.append(
            about.warning(
                "uneven-batch", f"the last batch of an epoch has {last} examples on a replica instead of {usual}",
                "the step is compiled a second time, and its padding is computed", "dataset.batch(n, drop_remainder=True)",
            )
        )  # fmt: skip
    if about.batch_is_exact and about.batch and about.batch % 8:
        findings.append(
            about.warning(
                "batch", f"each replica has {about.batch} examples", "a TPU computes eight rows at a time",
                f"a batch that is a multiple of 8 on every replica, {-(-about.batch // 8) * 8} for one",
            )
        )  # fmt: skip
    return findings


def padding(about: StepFacts, layers: Sequence[Layer]) -> list[PreflightFinding]:
    """Report a step with products that fill most of the matrix units with padding, if that takes noticeable time.

    Only the forward pass counts: the compiler chooses the order of sizes in the backward pass.
    """
    forward = tuple(layer for layer in layers if _BACKWARDS not in layer.name)
    padded = sizes.share(forward)
    if padded < _PADDED or sizes.computed(tuple(layers)) < _NOTICED or not about.batch_is_exact:
        return []
    worst = sorted(forward, key=lambda layer: -layer.flops * layer.padded / (1 - layer.padded))[:_MAX_LAYERS]
    names = ", ".join(f"{layer.name} {layer.padded:.0%} of {sizes.shape_text(layer)}" for layer in worst)
    return [
        about.warning(
            "padding", f"{padded:.0%} of the work of the matrix units is padding: {names}",
            "they compute 8 rows and 128 columns at a time", "sizes of layers that are multiples of 128",
        )
    ]  # fmt: skip


def memory(
    about: StepFacts, peak: int | None, core: int | None, largest: int | None, cores: int
) -> list[PreflightFinding]:
    """Report a step that does not fit, or may not: the compiler for CPUs allocates buffers differently from a TPU's."""
    if peak is None or core is None or peak <= _TIGHT * core:
        return []
    fits = "a smaller model"
    if largest:
        fits = f"at most {largest} examples on each replica, {largest * cores} in a global batch"
    over = peak > _OVER * core
    why = f"a core has {core / 2**30:.0f} GiB" + ("" if over else ", and padding may exceed it")
    return [
        about.warning(
            "memory", f"the step holds {peak / 2**30:.1f} GiB on each core", why,
            f"{fits}, or bfloat16 (keras.mixed_precision)", "refused" if over else "warning",
        )
    ]  # fmt: skip
