"""A module with as much of TensorFlow's iterators as the cure of their ends looks at."""

import types
from typing import Any

from sdk.runtime.patches import iterator_ends


def patched() -> Any:
    module = types.ModuleType("iterator_ops")

    class OwnedIterator:
        def __init__(self, dataset: Any = None, components: Any = None) -> None:
            if dataset is None:
                (self._iterator_resource,) = components
            else:
                self._create_iterator(dataset)

        def _create_iterator(self, dataset: Any) -> None:
            self._iterator_resource = dataset.pop()

    vars(module).update(OwnedIterator=OwnedIterator, context=types.SimpleNamespace(executing_eagerly=lambda: True))
    (patch,) = [each for each in iterator_ends.patches() if each.module.endswith(".iterator_ops")]
    patch.apply(module)
    return module
