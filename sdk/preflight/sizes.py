"""Padding and memory of a step on a TPU, read from the compiler's output. Pure.

A TPU computes rows of a product eight at a time, depth and columns 128 at a time:
https://cloud.google.com/tpu/docs/performance-guide
"""

from __future__ import annotations

import math
import re

from ..planning.preflight_findings import Layer

LANES, SUBLANES = 128, 8
_SHAPE = r"\w+\[([\d,]*)\](?:\{[^}]*\})?"
_DOT = re.compile(rf"= {_SHAPE} dot\({_SHAPE} [^,]+, {_SHAPE} [^)]+\)(.*)")
_CONVOLUTION = re.compile(rf"= {_SHAPE} convolution\({_SHAPE} [^,]+, {_SHAPE} [^)]+\)(.*)")
_NAME = re.compile(r'op_name="([^"]*)"')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_DILATED = re.compile(r"lhs_dilate=([\dx]+)")
_TOTAL = re.compile(r"^Total bytes used: (\d+)", re.MULTILINE)


def layers(text: str) -> tuple[Layer, ...]:
    """Return the matrix products and convolutions of an unoptimized HLO module, the most expensive first."""
    by_name: dict[str, Layer] = {}
    for line in text.splitlines():
        shape, name, times = _product(line)
        if shape is None:
            continue
        flops = 2 * math.prod(shape) * times
        former = by_name.get(name)
        padded = _padded(shape)
        if former is None or former.flops < flops:
            by_name[name] = Layer(name=name, flops=flops, padded=round(padded, 4), shape=shape)
    return tuple(sorted(by_name.values(), key=lambda layer: (-layer.flops, layer.name)))


def _product(line: str) -> tuple[tuple[int, int, int] | None, str, int]:
    """Return rows, depth and columns of the product in a line, its name, and how many such products it contains."""
    dot = _DOT.search(line)
    if dot:
        left, right, rest = _sides(dot[2]), _sides(dot[3]), dot[4]
        deep = math.prod(left[axis] for axis in _axes(rest, "lhs_contracting_dims"))
        many = math.prod(left[axis] for axis in _axes(rest, "lhs_batch_dims"))
        rows = math.prod(left) // max(1, deep * many)
        return (rows, deep, math.prod(right) // max(1, deep * many)), _name(line), many
    convolution = _CONVOLUTION.search(line)
    labels = _LABELS.search(line) if convolution else None
    if convolution and labels:
        out, kernel = _sides(convolution[1]), _sides(convolution[3])
        columns, deep = out[labels[3].index("f")], kernel[labels[2].index("i")]
        taps = math.prod(kernel) // max(1, deep * kernel[labels[2].index("o")])
        # A dilated input, as in the backward pass of a stride, is mostly zero.
        dilated = math.prod(_sides(match[1].replace("x", ","))) if (match := _DILATED.search(line)) else 1
        return (math.prod(out) // max(1, columns * dilated), deep * taps, columns), _name(line), 1
    return None, "", 0


def _padded(shape: tuple[int, int, int]) -> float:
    rows, depth, columns = shape
    computed = _up(rows, SUBLANES) * _up(depth, LANES) * _up(columns, LANES)
    return 1 - math.prod(shape) / computed if computed else 0.0


def computed(products: tuple[Layer, ...]) -> float:
    """Return the floating point operations of these products, including padding."""
    return sum(layer.flops / (1 - layer.padded) for layer in products if layer.padded < 1)


def share(products: tuple[Layer, ...]) -> float:
    """Return the share of padding in the computed products, from 0 to 1."""
    whole = computed(products)
    return 1 - sum(layer.flops for layer in products) / whole if whole else 0.0


def shape_text(layer: Layer) -> str:
    rows, depth, columns = layer.shape
    return f"{rows} x {depth} x {columns}"


def peak_bytes(text: str) -> int | None:
    """Return the peak memory in the compiler's table of buffers; None if it is missing."""
    match = _TOTAL.search(text)
    return int(match[1]) if match else None


def largest_batch(*, batch: int, state: int, peak: int, memory: int) -> int:
    """Return how many examples of one replica fit, as a multiple of eight if there are that many. Sizes are in bytes.

    Everything but the state (variables and their gradients) is assumed to grow with the batch, as activations do.
    """
    per_example = max(1.0, (peak - state) / batch)
    fitting = int(max(0, memory - state) / per_example)
    return fitting // SUBLANES * SUBLANES if fitting >= SUBLANES else fitting


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _sides(text: str) -> tuple[int, ...]:
    return tuple(int(side) for side in text.split(",") if side)


def _axes(rest: str, name: str) -> tuple[int, ...]:
    match = re.search(rf"{name}=\{{([\d,]*)\}}", rest)
    return _sides(match[1]) if match else ()


def _name(line: str) -> str:
    match = _NAME.search(line)
    return match[1] if match else "unnamed"
