"""The commands that register the champion in Vertex AI's Model Registry, as they are printed after each of its moves."""

from __future__ import annotations

import shlex

import pytest

from sdk.cli import app
from sdk.cli.models import upload_commands
from sdk.errors import InputError
from sdk.model_registry.models import Model
from sdk.storage.registry import open_store

# https://cloud.google.com/sdk/gcloud/reference/ai/models/upload names these; the first two are required.
REQUIRED = {"--container-image-uri", "--display-name"}
KNOWN = REQUIRED | {"--project", "--region", "--artifact-uri", "--model-id", "--parent-model", "--version-aliases"}


@pytest.fixture
def model(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model of a bucket with its objects in a folder; Vertex AI is configured by a variable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PODLIFT_VERTEX_PROJECT", "acme")
    return Model("gs://mine/podlift", "digits", store=open_store(str(tmp_path / "objects")))


def flags(command: str) -> dict[str, str]:
    words = shlex.split(command.split(" && ")[-1])
    assert words[:4] == ["gcloud", "ai", "models", "upload"]
    given = words[4:]
    found = dict(each.split("=", 1) for each in given)
    assert len(found) == len(given)
    assert found.keys() >= REQUIRED and found.keys() <= KNOWN
    return found


def test_the_first_champion_makes_the_model_and_later_ones_are_versions_of_it(model, add, monkeypatch) -> None:
    add(), add()
    monkeypatch.setenv("PODLIFT_VERTEX_REGIONS", "europe-west4,us-central1")
    first = upload_commands(model.promote(1))
    assert first.split(" && ")[:2] == [
        "podlift get digits:1 digits-1 --root=gs://mine/podlift",
        "gcloud storage rsync --recursive digits-1 gs://mine/podlift/models/exports/digits/000001",
    ]
    common = {
        "--project": "acme",
        "--region": "europe-west4",
        "--display-name": "digits",
        "--version-aliases": "champion",
        "--container-image-uri": "IMAGE",
    }
    uri = "gs://mine/podlift/models/exports/digits/00000"
    assert flags(first) == common | {"--model-id": "digits", "--artifact-uri": f"{uri}1"}
    parent = {"--parent-model": "projects/acme/locations/europe-west4/models/digits"}
    assert flags(upload_commands(model.promote(2))) == common | parent | {"--artifact-uri": f"{uri}2"}
    assert flags(upload_commands(model.rollback())) == common | parent | {"--artifact-uri": f"{uri}1"}


def test_without_a_project_or_a_bucket_there_is_nothing_to_upload(model, add, tmp_path, monkeypatch) -> None:
    add()
    here = Model(str(tmp_path / "objects"), "digits", store=model.store)
    assert upload_commands(here.promote(1)) == ""
    monkeypatch.setenv("PODLIFT_VERTEX_KEEPER", "perhaps")
    with pytest.raises(InputError, match="perhaps"):
        upload_commands(model.champion())
    monkeypatch.delenv("PODLIFT_VERTEX_KEEPER")
    monkeypatch.delenv("PODLIFT_VERTEX_PROJECT")
    assert upload_commands(model.champion()) == ""


def test_each_move_of_the_champion_and_show_print_them(model, add, monkeypatch, capsys) -> None:
    for each in ("sdk.model_registry.registry.open_store", "sdk.model_registry.models.open_store"):
        monkeypatch.setattr(each, lambda root: model.store)
    root = f"--root={model.root}"
    for champion, words in (
        (1, "promote digits 1"),
        (2, "promote digits 2 --as-compared"),
        (1, "promote digits --previous"),
        (1, "status digits"),
    ):
        if len(model.numbers()) < champion:
            add(ask="look first")
        assert app.run(["models", *words.split(), root]) == 0
        said = capsys.readouterr().err
        line = next(each for each in said.splitlines() if "for Vertex AI's Model Registry: podlift get" in each)
        assert flags(line)["--artifact-uri"].endswith(f"/digits/00000{champion}")
    monkeypatch.setenv("PODLIFT_VERTEX_KEEPER", "perhaps")
    assert app.run(["models", "promote", "digits", "1", root]) == 0, "it was promoted"
    said = capsys.readouterr().err
    assert "for Vertex AI's Model Registry: " in said and "perhaps" in said
