"""Joins the outputs of the replicas of several workers, of any type and number, at once and in the order of the examples.

TensorFlow gathers five types only (tensorflow: `CollectiveGatherV2`), and Keras gathers each output by itself, and its length
once more. Here all outputs of a replica become one vector of 32-bit words: the sizes of all dimensions, then the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

_WORD = 4


@dataclass(frozen=True)
class _Part:
    """A dense tensor in the vector."""

    dtype: Any
    rank: int


def can_join(trainer: Any, strategy: Any, values: Any) -> bool:
    """Return whether all outputs are tensors with known numbers of dimensions. All tasks agree on the answer."""
    tensors = _tensors(trainer, strategy, values)
    of_tensors = 0 < len(tensors) == len(trainer.tree.flatten(values))
    return of_tensors and all(leaf.shape.rank is not None for leaf in tensors.values())


def joined(trainer: Any, strategy: Any, values: Any) -> Any:
    """Return a structure with the tensors of all replicas, one after the other. A collective."""
    tf, tree = trainer.tf, trainer.tree
    leaves, first = tree.flatten(values), _tensors(trainer, strategy, values)

    def packed(*own: Any) -> Any:
        return _packed(tf, [part for leaf in own for part in _parts(tf, leaf)])

    words = strategy.run(packed, args=tuple(leaves[index] for index in first))
    of_each = _of_replicas(tf, strategy.gather(words, axis=0), list(first.values()), strategy.num_replicas_in_sync)
    # The data are divided into as many parts as there are replicas, and a worker's replicas do not get adjacent ones.
    local = len(strategy.extended.worker_devices)
    ordered = [replica for own in range(local) for replica in of_each[own::local]]
    for index, of_replicas in zip(first, zip(*ordered, strict=True), strict=True):
        leaves[index] = trainer.concat(list(of_replicas))
    return tree.pack_sequence_as(values, leaves)


def _tensors(trainer: Any, strategy: Any, values: Any) -> dict[int, Any]:
    """Return the tensors of this task's first replica, by their place in the structure."""
    tf = trainer.tf
    first = (strategy.experimental_local_results(leaf)[0] for leaf in trainer.tree.flatten(values))
    kinds = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
    return {index: leaf for index, leaf in enumerate(first) if isinstance(leaf, kinds)}


def _parts(tf: ModuleType, leaf: Any) -> list[Any]:
    """Return the dense tensors that a tensor consists of; text is its lengths and its characters."""
    parts = []
    for part in tf.nest.flatten(leaf, expand_composites=True):
        if part.dtype == tf.string:
            characters = tf.io.decode_raw(tf.strings.reduce_join(tf.reshape(part, [-1])), tf.uint8)
            parts += [tf.strings.length(part), characters]
        else:
            parts.append(part)
    return parts


def _packed(tf: ModuleType, parts: list[Any]) -> Any:
    return tf.concat([*(tf.shape(part) for part in parts), *(_words(tf, part) for part in parts)], 0)


def _words(tf: ModuleType, part: Any) -> Any:
    if part.dtype == tf.bool:
        part = tf.cast(part, tf.uint8)
    flat = tf.reshape(part, [-1])
    if part.dtype.size % _WORD == 0:
        return tf.reshape(tf.bitcast(flat, tf.int32), [-1])
    characters = tf.reshape(tf.bitcast(flat, tf.uint8), [-1])
    characters = tf.pad(characters, [[0, -tf.size(characters) % _WORD]])
    return tf.bitcast(tf.reshape(characters, [-1, _WORD]), tf.int32)


def _of_replicas(tf: ModuleType, words: Any, templates: list[Any], replicas: int) -> list[list[Any]]:
    layout = [_Part(part.dtype, part.shape.rank) for leaf in templates for part in _parts(tf, leaf)]
    sizes = sum(part.rank for part in layout)
    unpacked, at = [], tf.constant(0)
    for _ in range(replicas):
        shapes = tf.split(words[at : at + sizes], [part.rank for part in layout])
        at += sizes
        parts = []
        for part, shape in zip(layout, shapes, strict=True):
            length = (tf.reduce_prod(shape) * part.dtype.size + _WORD - 1) // _WORD
            parts.append(_unpacked(tf, words[at : at + length], part.dtype, shape))
            at += length
        unpacked.append([_whole(tf, leaf, parts) for leaf in templates])
    return unpacked


def _unpacked(tf: ModuleType, words: Any, dtype: Any, shape: Any) -> Any:
    size = dtype.size
    if size % _WORD == 0:
        flat = tf.bitcast(tf.reshape(words, [-1, size // _WORD] if size > _WORD else [-1]), dtype)
    else:
        characters = tf.reshape(tf.bitcast(words, tf.uint8), [-1])[: tf.reduce_prod(shape) * size]
        stored = tf.uint8 if dtype == tf.bool else dtype
        flat = tf.cast(tf.bitcast(tf.reshape(characters, [-1, size] if size > 1 else [-1]), stored), dtype)
    return tf.reshape(flat, shape)


def _whole(tf: ModuleType, leaf: Any, parts: list[Any]) -> Any:
    """Take the parts of one tensor from the beginning of the list."""
    dense = []
    for part in tf.nest.flatten(leaf, expand_composites=True):
        first = parts.pop(0)
        dense.append(_text(tf, first, parts.pop(0)) if part.dtype == tf.string else first)
    return tf.nest.pack_sequence_as(leaf, dense, expand_composites=True)


def _text(tf: ModuleType, lengths: Any, characters: Any) -> Any:
    letters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), tf.cast(characters, tf.int32))
    words = tf.RaggedTensor.from_row_lengths(letters, tf.reshape(lengths, [-1]))
    return tf.reshape(tf.strings.reduce_join(words, axis=-1), tf.shape(lengths))
