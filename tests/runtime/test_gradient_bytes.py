"""The bytes of a model's gradients, of Keras 3 and of tf_keras; what cannot be known is not recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sdk.runtime import reporting


def variable(shape: tuple[int | None, ...], dtype: object) -> SimpleNamespace:
    return SimpleNamespace(shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ([variable((3, 4), "float32"), variable((4,), "float32")], 64),
        ([variable((), "float64"), variable((10,), "bfloat16")], 28),
        # The types of TensorFlow have names.
        ([variable((5,), SimpleNamespace(name="float16"))], 10),
        ([], None),
        ([variable((5,), "string")], None),
        ([variable((None, 5), "float32")], None),
        (None, None),
    ],
)
def test_the_bytes_of_the_gradients(variables: list[SimpleNamespace] | None, size: int | None) -> None:
    model = None if variables is None else SimpleNamespace(trainable_variables=variables)
    assert reporting._gradients(model) == ({} if size is None else {"gradient_bytes": size})
