"""A model in a folder and in a bucket, and versions of it that no run has made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_lowercase

import pytest
from registered_models import candidate
from support import FakeClock

from sdk.model_registry.models import Model, ModelVersion
from sdk.model_registry.records import VersionData
from sdk.storage import posix
from sdk.testing.gcs import GcsServer


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the store cover a loss of power."""
    monkeypatch.setattr(posix, "sync_file", lambda handle: None)
    monkeypatch.setattr(posix, "sync_folder", lambda folder: None)


@pytest.fixture(params=["folder", pytest.param("bucket", marks=[pytest.mark.full, pytest.mark.process])])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "root")
        return
    server: GcsServer = request.getfixturevalue("podlift_gcs")
    monkeypatch.setenv("PODLIFT_EMULATOR", server.url)
    server.client().create_bucket("mine")
    yield "gs://mine/podlift"


@pytest.fixture
def model(root: str) -> Model:
    return Model(root, "digits", FakeClock(1000.0))


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, Callable[[], object]], None]:
    """Let something happen just after the next call of a method: `meanwhile(Model, "numbers", lambda: model.remove(2))`."""

    def once(owner: type, name: str, action: Callable[[], object]) -> None:
        sound = getattr(owner, name)

        def called(self: object) -> object:
            monkeypatch.setattr(owner, name, sound)
            answer = sound(self)
            action()
            return answer

        monkeypatch.setattr(owner, name, called)

    return once


@pytest.fixture
def add(model: Model, tmp_path: Path) -> Callable[..., ModelVersion]:
    """Register a version with `text` as weights; without a text, the weights of its number."""

    def register(text: str = "", *, ask: str = "", number: int = 0, warm_start=None) -> ModelVersion:
        number = number or len(model.numbers()) + 1
        folder = tmp_path / "made" / str(number)
        (folder / "variables").mkdir(parents=True, exist_ok=True)
        (folder / "model.keras").write_text(text or f"weights {number}")
        (folder / "variables" / "labels.txt").write_text("0 1 2")
        made = candidate(
            folder,
            f"digits-aaaaa{ascii_lowercase[number - 1]}",
            run_url=f"{model.root}/runs/x",
            bundle=f"{number:064x}",
            metrics={"accuracy": number / 100},
            data={"rows": VersionData(location="/data", digest=f"{number // 2}")},
            warm_start=warm_start,
        )
        return model.add(made, ask=ask)

    return register
