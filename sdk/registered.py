"""The registered models of all roots, and what becomes a version: the model in the outputs of a run."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import ids
from .api import attach
from .clock import Clock
from .errors import InputError, Problems, nearest
from .hardware.regions import CHEAPEST
from .job.layout import RootPaths
from .job.policies import Vertex
from .model_registry import lineage
from .model_registry.models import Model, ModelVersion
from .model_registry.records import VERSION_KEY
from .planning.roots import configured_roots, in_cloud_storage, resolve_root
from .planning.settings import table
from .planning.settings.merge import UNNAMED, Destination, gather
from .run import Run
from .storage.registry import open_store

_VERSION = re.compile(r"([a-z][a-z0-9-]*):([a-z0-9]*)")


class Registry:
    """The registered models of one or more roots: `sdk.models()`."""

    def __init__(self, roots: Sequence[str], clock: Clock | None = None, *, given: str | None = None) -> None:
        self._roots = [*roots]
        self._clock = clock
        self._given = given  # the root that the caller has named

    def __repr__(self) -> str:
        return f"Registry({self._roots!r})"

    def all(self) -> list[Model]:
        """Return the models, by root and name."""
        return [Model(root, name, self._clock) for root in self._roots for name in _names(root)]

    def __getitem__(self, name: str) -> Model:
        """Return the model of this name; InputError with the nearest name if there is none."""
        found = self.all()
        for each in found:
            if each.name == name:
                return each
        names = sorted({each.name for each in found})
        near = nearest(name, names) if names else "There is none. Next: podlift models add RUN."
        below = " or ".join(map(repr, self._roots))
        raise InputError(f"No such model below {below}. Received: {name!r}. {near}")

    def add(
        self, run: str | Path, *, model: str | None = None, path: str = "model", ask: str = "", root: str | None = None
    ) -> ModelVersion:
        """Register the model of a run in the run's own root, and return the version. Nothing is promoted.

        The files are copied. Registering the same files of the same run again returns the version that exists.

        Args:
            run: as for `attach`.
            model: name of the model; by default that of the run's job (`model`), else the name of the run.
            path: a file or folder in its outputs, such as "work/model.keras"; by default what was written to `ctx.dirs.model`.
            ask: why the version needs an approval; "" if it needs none.
            root: as for `attach`; by default the one that was given to `models`.
        """
        found = attach(run, root=self._given if root is None else root)
        name = ids.check_name(found.plan.model or ids.name_of(found.id) if model is None else model)
        with candidate(found, path) as made:
            return Model(found.plan.root, name, self._clock).add(made, ask=ask)


def upload_commands(version: ModelVersion) -> str:
    """Return the commands that register a version in Vertex AI's Model Registry; "" without a project or files in a bucket.

    The flags are those of https://cloud.google.com/sdk/gcloud/reference/ai/models/upload.
    """
    model, number, problems = version.model, version.number, Problems()
    if not in_cloud_storage(model.root):
        return ""
    values = gather(UNNAMED, {}, Destination(backend="vertex"), os.environ, problems).values
    with problems.closing():
        target = Vertex.of(table.target("vertex", values))
    if not target.project:
        return ""
    region, local = target.place_regions[0], f"{model.name}-{number}"
    if region == CHEAPEST:
        region = "REGION"  # which one a run gets is decided when it is planned
    folder = f"{RootPaths(model.root).models}/exports/{model.name}/{number:06d}"
    names = f"projects/{target.project}/locations/{region}/models/{model.name}"
    first = all(move.champion == number for move in model.history())
    upload = {
        "project": target.project,
        "region": region,
        "display-name": model.name,
        **({"model-id": model.name} if first else {"parent-model": names}),
        "version-aliases": "champion",
        "artifact-uri": folder,
        "container-image-uri": "IMAGE",
    }
    commands = (
        ("podlift", "get", f"{model.name}:{number}", local, f"--root={model.root}"),
        ("gcloud", "storage", "rsync", "--recursive", local, folder),
        ("gcloud", "ai", "models", "upload", *(f"--{flag}={text}" for flag, text in upload.items())),
    )
    return " && ".join(map(shlex.join, commands))


def _names(root: str) -> list[str]:
    store = open_store(RootPaths(root).models)
    found = (VERSION_KEY.fullmatch(stat.key) for stat in store.list("records/"))
    return sorted({match[1] for match in found if match})


def models(root: str | Path | None = None) -> Registry:
    """Return the registered models: `sdk.models()["digits"].champion().download("digits")`.

    Args:
        root: as for `plan`; by default those of all configured backends.
    """
    if root is None:
        return Registry(configured_roots(os.environ)[0])
    given = resolve_root(root, os.environ)
    return Registry([given], given=given)


def version_named(text: str, root: str | None) -> ModelVersion | None:
    """Return the version that MODEL:VERSION names, the champion for MODEL: alone; None for another form of text.

    Raises:
        InputError: there is no such model or version.
    """
    match = _VERSION.fullmatch(text)
    return models(root)[match[1]].version(match[2] or "champion") if match else None


@contextmanager
def candidate(run: Run, path: str) -> Iterator[lineage.Candidate]:
    """Yield what a run offers as a model, if its outputs contain all of it; its files exist within the context."""
    source = lineage.checked_source(path)
    with tempfile.TemporaryDirectory(prefix="podlift-model-") as folder:
        run.download(f"{folder}/outputs")
        collected = run.collected()
        skipped = None if collected is None else [(path, reason) for path, reason in collected["skipped"]]
        status = run.status()
        found = lineage.Outputs(folder=f"{folder}/outputs", skipped=skipped, saved_step=status.saved_step)
        yield lineage.candidate(
            run.plan,
            found,
            source,
            run_url=run.url,
            state=status.state.value,
            metrics=run.last_metrics(),
            findings=status.findings,
        )
