"""The weights that a run starts from: a version of a registered model, chosen once and verified before a run costs money."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..job.layout import RootPaths
from ..job.payload import Choice, InitialWeights
from ..job.plan import Plan
from ..model_registry import files
from ..model_registry.models import Model, damaged
from ..runtime.weights import model_files
from ..storage.gcs.files import INTERACTIVE
from ..storage.registry import open_store
from ..storage.store import Store
from .roots import in_bucket


def chosen(choice: Choice, name: str, root: str, others: Sequence[str] = ()) -> InitialWeights:
    """Return the version of a model of a root that `warm_start` means now, or the reason why there is none.

    `others` are roots to name if one of them has the model.

    Raises:
        CorruptObjectError: the version is damaged.
        InputError: it has no weights that can be read.
        StoreError: the models of the root cannot be read.
    """
    model = Model(root, name, store=_store(root))
    numbers = model.numbers()
    number = model.record()[0].champion if choice == "champion" else max(numbers, default=0)
    if not number:
        has = f"the model {model.name!r} below {root} has no version yet"
        if numbers:
            has = f"the model {model.name!r} has no champion yet (podlift models promote {model.name} {numbers[-1]})"
        elif elsewhere := next((other for other in others if other != root and _is_in(other, model.name)), ""):
            has += f", and {elsewhere} has one. A run starts only from models of its root. Next: --root {elsewhere}"
        return InitialWeights(choice=choice, model=model.name, why=has)
    version = model.version(number)
    # The tasks verify every byte. From here that would download the files of a bucket.
    damage = files.absent(model.store, version.record.manifest) if in_bucket(root) else version.damage()
    if damage:
        raise damaged(version.record, damage)
    weights = InitialWeights(choice=choice, model=model.name, version=number, manifest=version.record.manifest)
    model_files.check([file.path for file in version.files()], f"warm_start: {weights}")
    return weights


def problems(plan: Plan) -> list[str]:
    """Return why a run cannot start from the weights that its plan names: they may be in another root."""
    initial = plan.initial
    if initial is None or not initial.version:
        return []
    store = _store(plan.root)
    gone = files.absent(store, initial.manifest)
    if not gone:
        return []
    return [
        f"The run {plan.run_id} starts from {initial}, which is not complete in {store.url}: {' '.join(gone)} Next: submit it "
        f"with the root of that model (podlift models status {initial.model}), or without warm_start."
    ]


def _is_in(root: str, name: str) -> bool:
    """True if a folder of this machine has the model; a bucket is not asked."""
    return not in_bucket(root) and os.path.isdir(f"{RootPaths(root).models}/records/{name}")


def _store(root: str) -> Store:
    url = RootPaths(root).models
    # A person waits for this request, so it fails sooner than a training's request.
    return open_store(url, retry=INTERACTIVE)
