"""The weights of a checkpoint of a run, which also holds optimizers and metrics, for a model outside of the training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...checkpoint.matching import Shape, canonical, check
from ...errors import InputError
from .by_name import finalize

if TYPE_CHECKING:
    from ...checkpoint.restore import Checkpoint, LoadedArray


def load(model: Any, checkpoint: Checkpoint, what: str) -> None:
    """Load the weights into a model, or into several that were trained together; CheckpointMismatchError if they differ."""
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    wrong = [part for part in models if not hasattr(part, "_flatten_layers")]
    if wrong or not models:
        received = type(wrong[0]).__name__ if wrong else "no model"
        raise InputError(f"load_weights loads into a Keras model, or a list of them. Received: {received}.")
    from ...checkpoint.tf import loading, snapshot

    variables = snapshot.variables_of(weights=[weight for part in models for weight in part.weights])
    here = dict(zip(canonical(variables), variables.values(), strict=True))
    shapes = {name: tuple(variable.shape) for name, variable in here.items()}
    saved = _named(checkpoint.arrays, shapes)
    used = {name: saved[name] for name in [*here, *_left_over(saved, here)] if name in saved}
    check(
        {name: array.shape for name, array in used.items()},
        shapes,
        f"{what[:1].upper()}{what[1:]} does not fit the model ({{}}): nothing was loaded. Next: build it as the program does, "
        "and call it once on a batch if weights are missing here; if the program trains several models together, pass a "
        "list of all of them, in their order.",
    )
    for name, variable in here.items():
        array = used[name]
        variable.assign(loading.array_of(array.dtype, array.shape, array.data))
    for part in models:
        finalize(part)


def _named(arrays: Mapping[str, LoadedArray], shapes: Mapping[str, Shape]) -> dict[str, LoadedArray]:
    """Return the arrays by the names of the model's weights.

    Objects with colliding names were saved below the keyword that they were passed by: `decoder/dense/kernel`.
    """
    tops = dict.fromkeys(name.partition("/")[0] for name in arrays)
    whole = {name: name for name in arrays}
    stripped = {name: name.partition("/")[2] or name for name in arrays}
    below = [{name: stripped[name] for name in arrays if name.startswith(f"{top}/")} for top in tops]
    options = [
        dict(zip(canonical(names.values()), (arrays[name] for name in names), strict=True))
        for names in (whole, stripped, *below)
    ]
    fitting = [_fits(option, shapes) for option in options]
    if fitting[0] or fitting[1]:
        return options[fitting.index(True)]
    # Several that fit are several models alike: none is more likely than the other.
    return options[fitting.index(True)] if sum(fitting) == 1 else options[0]


def _fits(saved: Mapping[str, LoadedArray], shapes: Mapping[str, Shape]) -> bool:
    fitting = {name: array.shape for name, array in saved.items() if name in shapes}
    return fitting == shapes and not _left_over(saved, shapes)


def _left_over(saved: Iterable[str], here: Iterable[str]) -> list[str]:
    """Return the arrays that seem to be further weights of the saved model.

    A smaller model would fit otherwise, with the weights of other layers. Optimizers name their slots after weights, and
    another model may be saved beside this one, below another name.
    """
    mine = set(here)
    ends, tops = {_parts(name)[-1] for name in mine}, {_parts(name)[0] for name in mine}
    alone = len(tops) == 1 and all(len(_parts(name)) > 2 for name in mine)
    return [
        name
        for name in saved
        if name not in mine
        and _parts(name)[-1] in ends
        and not (alone and _parts(name)[0] not in tops)
        and not any("/".join(_parts(name)[start:]) in mine for start in range(1, len(_parts(name))))
    ]


def _parts(name: str) -> Sequence[str]:
    return name.partition("#")[0].split("/")
