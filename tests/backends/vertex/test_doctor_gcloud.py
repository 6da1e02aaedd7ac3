"""The commands that `podlift doctor --backend vertex` prints, run by the real gcloud against the emulator."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import REPO
from test_vertex_doctor import MENDED, PLACE, PROJECT, TRAINER, wrong

# That folder has the tests of gcloud against the emulator.
sys.path.append(str(REPO / "tests" / "emulator"))
from gcloud_command import Gcloud, serving

from sdk.cli.app import run as command

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        shutil.which("gcloud") is None, reason="gcloud is not installed: https://cloud.google.com/sdk/docs/install"
    ),
]


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcloud]:
    with serving(tmp_path_factory.mktemp("gcloud"), "--quiet") as found:
        yield found


@pytest.fixture
def folder(gcloud: Gcloud, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder whose account lacks nothing."""
    monkeypatch.setenv("PODLIFT_EMULATOR", gcloud.url)
    gcloud.ask("POST", "_reset")
    gcloud.ask(
        "POST",
        f"storage/v1/b?project={PROJECT}",
        {"name": "podlift-runs", "location": PLACE, "softDeletePolicy": {"retentionDurationSeconds": "0"}},
    )
    (project / "podlift.toml").write_text(
        f'[vertex]\nproject = "{PROJECT}"\nbucket = "podlift-runs"\nservice_account = "{TRAINER}"\n'
        f'image = "{PLACE}-docker.pkg.dev/{PROJECT}/podlift/cpu:1"\n'
    )
    return project


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    command(["doctor", "--backend", "vertex", "--json", *words])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def mend(gcloud: Gcloud, check: dict[str, Any]) -> None:
    for each in check["command"].split(" && "):
        first, *words = shlex.split(each)
        assert first == "gcloud"
        gcloud.value(*words)


@pytest.mark.parametrize("case", MENDED)
def test_the_printed_command_mends_its_line(
    case: str, gcloud: Gcloud, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup, name, _ = MENDED[case]
    gcloud.ask("POST", "_project", setup)
    found = wrong(doctor(capsys))
    assert list(found) == [name]
    mend(gcloud, found[name])
    assert wrong(doctor(capsys)) == {}


def test_a_bucket_is_made_as_a_job_needs_it(gcloud: Gcloud, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--vertex-bucket", "missing-runs")
    mend(gcloud, wrong(doctor(capsys, *words))["bucket"])
    assert wrong(doctor(capsys, *words)) == {}


def test_soft_delete_is_cleared(gcloud: Gcloud, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}
    gcloud.ask("PATCH", "storage/v1/b/podlift-runs", kept)
    mend(gcloud, wrong(doctor(capsys))["soft-delete"])
    assert wrong(doctor(capsys)) == {}


def test_what_init_did_not_find_is_made_by_its_commands(
    gcloud: Gcloud, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
