"""The commands that `podlift doctor --backend vertex` and `podlift models promote` print, run by the real gcloud."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registered_models import register
from support import REPO
from test_vertex_doctor import COMPLETE, FILE, MENDED, PLACE, PROJECT, TRAINER, wrong

# That folder has the tests of gcloud against the emulator.
sys.path.append(str(REPO / "tests" / "emulator"))
from gcloud_command import Gcloud, serving

from sdk.cli.app import run as command

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        shutil.which("gcloud") is None, reason="not installed: https://cloud.google.com/sdk/docs/install"
    ),
    pytest.mark.process,
]


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory) -> Iterator[Gcloud]:
    with serving(tmp_path_factory.mktemp("gcloud"), "--quiet") as found:
        yield found


@pytest.fixture
def folder(gcloud, project, monkeypatch) -> Path:
    """A project's folder with an account that lacks nothing."""
    monkeypatch.setenv("PODLIFT_EMULATOR", gcloud.url)
    gcloud.ask("POST", "_reset")
    bucket = {"name": "podlift-runs", "location": PLACE, "softDeletePolicy": {"retentionDurationSeconds": "0"}}
    gcloud.ask("POST", f"storage/v1/b?project={PROJECT}", bucket)
    FILE.write_text(COMPLETE)
    return project


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    command(["doctor", "--backend", "vertex", "--json", *words])
    return json.loads(capsys.readouterr().out)


def mend(gcloud: Gcloud, check: dict[str, Any]) -> None:
    for each in check["command"].split(" && "):
        first, *words = shlex.split(each)
        assert first == "gcloud"
        gcloud.value(*words)


@pytest.mark.parametrize("case", MENDED)
def test_the_printed_command_mends_its_line(case, gcloud, folder, capsys) -> None:
    setup, name, _ = MENDED[case]
    gcloud.ask("POST", "_project", setup)
    found = wrong(doctor(capsys))
    assert list(found) == [name]
    mend(gcloud, found[name])
    assert wrong(doctor(capsys)) == {}


def test_the_commands_of_init_create_the_missing_resources(gcloud, project, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PODLIFT_EMULATOR", gcloud.url)
    gcloud.ask("POST", "_reset")
    gcloud.ask("POST", "_project", {"absent": [f"//iam.googleapis.com/projects/-/serviceAccounts/{TRAINER}"]})
    capsys.readouterr()
    command(["init", "vertex", "--json"])
    rows = json.loads(capsys.readouterr().out)["settings"]
    missing = {each["name"]: each for each in rows if each["value"] is None}
    assert list(missing) == ["vertex_bucket", "vertex_service_account", "vertex_image"]
    assert missing.pop("vertex_image")["command"] == "podlift image --submit"
    for each in missing.values():
        mend(gcloud, each)
    assert command(["init", "vertex"]) == 0
    assert "podlift.toml: bucket and service_account written." in capsys.readouterr().err
    assert wrong(doctor(capsys)) == {}


def test_the_commands_of_a_promotion_reach_the_service(gcloud, folder, capsys) -> None:
    root = "gs://podlift-runs/podlift"
    register(root, "digits", {"model.keras": b"weights"}, promote=False)
    assert command(["models", "promote", "digits", "1"]) == 0
    said = capsys.readouterr().err.partition("for Vertex AI's Model Registry: ")[2]
    get, copy, upload = (shlex.split(each)[1:] for each in said.strip().split(" && "))
    assert command(get) == 0
    gcloud.value(*copy)
    copied = gcloud.value("storage", "ls", "--recursive", f"{root}/models/exports/digits/000001/")
    assert f"{root}/models/exports/digits/000001/model.keras" in copied.splitlines()
    # The emulator has no Model Registry: gcloud has accepted the flags, and sent the request to the right place.
    code, _, err = gcloud.run(*upload)
    assert code == 1 and f"does not serve POST /v1/projects/{PROJECT}/locations/{PLACE}/models:upload" in err
    code, _, err = gcloud.run(*upload, "--model=digits")
    assert code == 2 and "unrecognized arguments" in err
