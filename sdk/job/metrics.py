"""Which of two values of a metric is the better one. Pure."""

from __future__ import annotations

_HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "iou", "r2", "bleu")
_LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "perplexity")


def shows_mode(best: str) -> bool:
    """Return whether a metric's name, or what is written before it, shows if a high or a low value is better."""
    return ":" in best or any(part in best.lower() for part in (*_HIGHER_IS_BETTER, *_LOWER_IS_BETTER))


def metric_and_mode(best: str) -> tuple[str, str]:
    """Return ("val_f1", "max") for "max:val_f1"."""
    mode, separator, name = best.partition(":")
    if separator:
        return name, mode
    higher = any(part in best.lower() for part in _HIGHER_IS_BETTER)
    return best, "max" if higher else "min"
