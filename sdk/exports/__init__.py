"""Runs in the experiment trackers of others: MLflow, Weights & Biases, Trackio.

A tracker is a module with one function and a row here. It gets a run as plain values, and uses the public calls of its library
only. The libraries are extras, imported when they are used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module, util
from typing import Protocol, cast

from ..errors import InputError, PodliftError, nearest
from ..text import clipped, without_passwords
from .exported import ExportedRun as ExportedRun
from .exported import read as read

_LONGEST = 500
# Of each tracker: its title, the module that it needs, and the module here.
_TRACKERS = {
    "mlflow": ("MLflow", "mlflow", ".to_mlflow"),
    "wandb": ("Weights & Biases", "wandb", ".to_wandb"),
    "trackio": ("Trackio", "trackio", ".to_trackio"),
}
NAMES = (*_TRACKERS,)


class Tracker(Protocol):
    def write(self, run: ExportedRun, into: str | None) -> str:
        """Write a run, or its new points, and return its location.

        Writing the same run twice has the same result as writing it once.

        Args:
            run: the run.
            into: the name of the experiment or project; None for the one that the library's environment names, else the
                label of the run.
        """


def check(name: str, others: Sequence[str] = ()) -> None:
    """Raise InputError unless there is such a tracker and its library is installed; `others` are known to the caller."""
    if name not in _TRACKERS:
        raise InputError(f"Runs cannot be exported there. Received: {name!r}. {nearest(name, (*others, *NAMES))}")
    title, needed, _ = _TRACKERS[name]
    spec = util.find_spec(needed)
    # Without an origin it is a folder of that name, such as the one that W&B writes.
    if spec is None or spec.origin is None:
        raise InputError(
            f"{title} needs a package that is not installed: {needed}. Next: pip install 'podlift[{name}]'."
        )


def write(name: str, run: ExportedRun, into: str | None) -> str:
    """Write a run to a tracker, and return where it is there."""
    check(name)
    title, _, module = _TRACKERS[name]
    try:
        # Libraries print; stdout is for results.
        with redirect_stdout(sys.stderr):
            return cast("Tracker", import_module(module, __package__)).write(run, into)
    except PodliftError:
        raise
    except Exception as error:
        said = clipped(without_passwords(str(error)), _LONGEST)
        raise PodliftError(
            f"{title} did not take all of {run.id}. {type(error).__name__}: {said} Next: export it again after mending that."
        ) from error
