"""Batches without examples, which some replicas have if a global batch is smaller than the number of replicas."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def never_empty(trainer: ModuleType, data: Any) -> tuple[Any, Any]:
    """Return the number of examples and the data; for an empty batch, one made-up example that must not count.

    TensorFlow's kernels do not support empty batches: the gradient of max pooling ends the process.
    """
    tf = trainer.tf
    leaves = [leaf for leaf in trainer.tree.flatten(data) if leaf is not None]
    shape = tf.TensorShape(leaves[0].shape)
    if shape.rank and shape[0]:
        return shape[0], data
    size = tf.cast(tf.shape(leaves[0])[0], tf.int32)
    if any(isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in leaves):
        return size, data
    leaves = [tf.convert_to_tensor(leaf) for leaf in leaves]

    def with_one_more(leaf: Any) -> Any:
        # Ones: zeros may count as padding, and cuDNN refuses batches of nothing but padding.
        value = "" if leaf.dtype == tf.string else tf.cast(1, leaf.dtype)
        return tf.concat([leaf, tf.fill(tf.concat([[1], tf.shape(leaf)[1:]], 0), value)], 0)

    # Not tf.cond: a TPU's compiler needs the same shape in both branches.
    safe = iter(with_one_more(leaf)[: tf.maximum(size, 1)] for leaf in leaves)
    return size, trainer.tree.map_structure(lambda leaf: None if leaf is None else next(safe), data)
