"""What is said about a step beyond its operations: how it is fed, how it fills the matrix units, whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..planning.preflight_findings import Finding, Layer, Level
from . import sizes

if TYPE_CHECKING:
    from .seen import Step

_PADDED = 0.5
_SHOWN = 3
_TIGHT, _OVER = 0.9, 1.25
_BACKWARDS = "gradient_tape/"
# A millisecond of a v5e, and more of every older one: below that a step waits for its host longer than for its products.
_NOTICED = 200_000_000_000


@dataclass(frozen=True)
class About:
    """A step, the batch of one replica and whether that is known, and the usual and the last batch where they differ."""

    step: Step
    batch: int | None
    known: bool
    uneven: tuple[int, int] | None

    def warning(self, rule: str, what: str, why: str, instead: str, level: Level = "warning") -> Finding:
        return Finding(self.step.path, self.step.line, level, rule, what, why, instead)


def feeding(about: About) -> list[Finding]:
    found = []
    if not about.step.on_tpu:
        found.append(
            about.warning(
                "not-on-tpu", "the program trains without a TPU's strategy", "the step runs on the host, beside an idle TPU",
                "with sdk.context().strategy.scope(): around what makes the model, or tf.distribute.TPUStrategy(resolver)",
            )
        )  # fmt: skip
    if about.uneven is not None:
        usual, last = about.uneven
        found.append(
            about.warning(
                "uneven-batch", f"the last batch of an epoch has {last} examples on a replica instead of {usual}",
                "the step is compiled a second time, and what it pads is computed", "dataset.batch(n, drop_remainder=True)",
            )
        )  # fmt: skip
    if about.known and about.batch and about.batch % 8:
        found.append(
            about.warning(
                "batch", f"each replica has {about.batch} examples", "a TPU computes eight rows at a time",
                f"a batch that is a multiple of 8 on every replica, {-(-about.batch // 8) * 8} for one",
            )
        )  # fmt: skip
    return found


def padding(about: About, layers: Sequence[Layer]) -> list[Finding]:
    """Return whether the step's own products leave most of the matrix units to zeros, and that takes time.

    What is computed backwards has the same sizes in another order, which the compiler chooses.
    """
    forward = tuple(each for each in layers if _BACKWARDS not in each.name)
    padded = sizes.share(forward)
    if padded < _PADDED or sizes.computed(tuple(layers)) < _NOTICED or not about.known:
        return []
    worst = sorted(forward, key=lambda each: -each.flops * each.padded / (1 - each.padded))[:_SHOWN]
    names = ", ".join(f"{each.name} {each.padded:.0%} of {sizes.told(each)}" for each in worst)
    return [
        about.warning(
            "padding", f"{padded:.0%} of what the matrix units compute is padding: {names}",
            "they compute 8 rows and 128 columns at a time", "sizes of layers that are multiples of 128",
        )
    ]  # fmt: skip


def memory(about: About, peak: int | None, core: int | None, largest: int | None, cores: int) -> list[Finding]:
    """Return whether the step fits. The compiler for CPUs places its buffers otherwise than that of a TPU: near is not over."""
    if peak is None or core is None or peak <= _TIGHT * core:
        return []
    fits = "a smaller model"
    if largest:
        fits = f"at most {largest} examples on each replica, {largest * cores} in a global batch"
    over = peak > _OVER * core
    why = f"a core has {core / 2**30:.0f} GiB" + ("" if over else ", and what is padded may be too much for it")
    return [
        about.warning(
            "memory", f"the step holds {peak / 2**30:.1f} GiB on each core", why,
            f"{fits}, or bfloat16 (keras.mixed_precision)", "refused" if over else "warning",
        )
    ]  # fmt: skip
