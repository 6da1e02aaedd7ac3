"""The registered models of all roots, and the registration of the model in the outputs of a run."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .. import ids
from ..errors import InputError, PodliftError, nearest
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..status import Status
from ..storage.registry import open_store
from ..text import html_table
from . import lineage
from .models import Judge, Model, ModelVersion
from .records import VERSION_KEY

_VERSION = re.compile(r"([a-z][a-z0-9-]*):([a-z0-9]*)")


class FinishedRun(Protocol):
    """The part of `Run` that a version is made from."""

    @property
    def id(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def plan(self) -> Plan: ...
    def status(self) -> Status: ...
    def download(self, dest: str | Path) -> Any: ...
    def collected(self) -> Mapping[str, Any] | None: ...
    def last_metrics(self) -> dict[str, float | None]: ...


class Attach(Protocol):
    """`sdk.attach`, which this room is below."""

    def __call__(self, url_or_id: str | Path, /, *, root: str | Path | None) -> FinishedRun: ...


class Registry:
    """The registered models of one or more roots: `sdk.models()["digits"].champion()`."""

    def __init__(self, roots: Sequence[str], attach: Attach, judge: Judge, *, named_root: str | None = None) -> None:
        self._roots = [*roots]
        self._attach, self._judge = attach, judge
        self._named_root = named_root  # the root that the caller has named

    def __repr__(self) -> str:
        return f"Registry({self._roots!r})"

    def _repr_html_(self) -> str:
        rows = [_row(model) for model in self.all()]
        return html_table(rows or [("No models.",)], ("model", "champion", "versions", "root"))

    def all(self) -> list[Model]:
        """Return the models, by root and name: `[model.name for model in sdk.models().all()]`."""
        return [Model(root, name, judge=self._judge) for root in self._roots for name in _names(root)]

    def __getitem__(self, name: str) -> Model:
        """Return the model of this name; InputError with the nearest name if there is none."""
        models = self.all()
        for model in models:
            if model.name == name:
                return model
        names = sorted({model.name for model in models})
        near = nearest(name, names) if names else "There is none. Next: podlift models add RUN."
        below = " or ".join(map(repr, self._roots))
        raise InputError(f"No such model below {below}. Received: {name!r}. {near}")

    def version(self, text: str) -> ModelVersion | None:
        """Return the version that a text names: `sdk.models().version("digits:3")`.

        Args:
            text: MODEL:VERSION, or MODEL: for its champion. Another form of text gives None.

        Raises:
            InputError: there is no such model or version, or the text is neither a version nor a file.
        """
        match = _VERSION.fullmatch(text)
        if match is None and ":" in text and "/" not in text and not Path(text).exists():
            raise InputError(f"A version is written as MODEL:VERSION, the champion as MODEL:. Received: {text!r}.")
        return self[match[1]].version(match[2] or "champion") if match else None

    def add(
        self, run: str | Path, *, model: str | None = None, path: str = "model", ask: str = "", root: str | None = None
    ) -> ModelVersion:
        """Register the model of a run, and return the version: `sdk.models().add("latest", path="work/model.keras")`.

        The files are copied within the run's root. Nothing is promoted. Registering the same files of the same run again
        returns the version that exists.

        Args:
            run: as for `attach`.
            model: name of the model; by default the one in the run's job (`model`), else the name of the run.
            path: a file or folder in its outputs, such as "work/model.keras"; by default the content of `ctx.dirs.model`.
            ask: why the version needs an approval; "" if it needs none.
            root: as for `attach`; by default the one that was given to `models`.

        Raises:
            InputError: there is no such run, or its outputs hold no complete model at `path`. Nothing was registered.
        """
        finished = self._attach(run, root=self._named_root if root is None else root)
        name = ids.check_name(finished.plan.model or ids.name_of(finished.id) if model is None else model)
        with candidate(finished, path) as model_candidate:
            return Model(finished.plan.root, name, judge=self._judge).add(model_candidate, ask=ask)


def _row(model: Model) -> tuple[str, ...]:
    try:
        versions, champion = model.numbers(), model.record()[0].champion
    except PodliftError as error:
        return model.name, str(error), "", model.root
    return model.name, str(champion or "-"), str(len(versions)), model.root


def _names(root: str) -> list[str]:
    store = open_store(RootPaths(root).models)
    matches = (VERSION_KEY.fullmatch(stat.key) for stat in store.list("records/"))
    return sorted({match[1] for match in matches if match})


@contextmanager
def candidate(run: FinishedRun, path: str) -> Iterator[lineage.Candidate]:
    """Yield the model in the outputs of a run; InputError if it is incomplete. Its files exist within the context."""
    source = lineage.checked_source(path)
    with tempfile.TemporaryDirectory(prefix="podlift-model-") as folder:
        run.download(f"{folder}/outputs")
        collected = run.collected()
        skipped = None if collected is None else [(path, reason) for path, reason in collected["skipped"]]
        status = run.status()
        outputs = lineage.Outputs(folder=f"{folder}/outputs", skipped=skipped, saved_step=status.saved_step)
        yield lineage.candidate(
            run.plan,
            outputs,
            source,
            run_url=run.url,
            state=status.state.value,
            metrics=run.last_metrics(),
            findings=status.findings,
        )
