"""`podlift init vertex`: the project's file, from what an emulated account has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import sdk
from sdk.backends.vertex import client
from sdk.backends.vertex.account import proposal
from sdk.backends.vertex.client import ServiceReply
from sdk.checks import buckets
from sdk.cli.app import run as command
from sdk.emulator.project.state import account_name
from sdk.planning.settings import record

TRAINER = "trainer@podlift.iam.gserviceaccount.com"
# The current folder is the project.
FILE = Path("podlift.toml")


@pytest.fixture
def told(project, cloud, capsys) -> Callable[..., str]:
    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert command(list(words)) == code
        shown = capsys.readouterr()
        return shown.out + shown.err

    return run


def rows(text: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(text.splitlines()[0])["settings"]}


@pytest.mark.shows("`podlift init vertex` writes the settings")
def test_an_empty_folder_gets_a_file_with_which_a_submit_plans(told) -> None:
    shown = told("init", "vertex")
    assert "podlift.toml: backend, project, regions, bucket and service_account written." in shown
    assert "podlift image --submit" in shown
    made = 'backend = "vertex"\n\n[vertex]\nproject = "podlift"\nregions = ["us-central1"]\nbucket = "podlift-runs"\n'
    assert FILE.read_text().startswith(f'{made}service_account = "{TRAINER}"\n# not found: image (')
    told("image", "--submit")
    assert "nothing written" in told("init", "vertex")
    Path("train.py").write_text("print(1)\n")
    shown = told("plan", "train.py")
    assert "project      podlift" in shown and "warning" not in shown


def test_a_missing_resource_is_reported_with_the_command_that_creates_it(told, cloud) -> None:
    cloud.ask("POST", "/_project", {"absent": [account_name(TRAINER)]})
    found = rows(told("init", "vertex", "--vertex-regions", "europe-west4", "--dry-run", "--json"))
    assert found["vertex_bucket"]["value"] is None
    create = "gcloud storage buckets create gs://podlift-podlift --project=podlift --location=europe-west4 "
    assert found["vertex_bucket"]["command"].startswith(create)
    assert found["vertex_service_account"]["command"] == "gcloud iam service-accounts create podlift --project=podlift"
    assert list(Path().iterdir()) == []
    shown = told("init", "vertex", "--vertex-regions", "europe-west4")
    assert "3 settings not found (bucket, service_account, image)." in shown
    assert "# not found: bucket (podlift has none in europe-west4)\n" in FILE.read_text()
    # It was made in the meantime: only new lines are written.
    cloud.ask("POST", "/storage/v1/b?project=podlift", {"name": "eu-runs", "location": "europe-west4"})
    assert "podlift.toml: bucket written." in told("init", "vertex")
    text = FILE.read_text()
    assert 'bucket = "eu-runs"\n' in text and 'regions = ["europe-west4"]' in text
    assert "not found: bucket" not in text


def test_a_file_keeps_every_line_that_it_has(told) -> None:
    mine = '# mine\nworkers = 2\n\n[vertex]  # the cloud\nbucket = "other/prefix" # do not touch\n\n[limit]\ngrace = "10s"\n'
    FILE.write_text(mine)
    told("init", "vertex")
    text = FILE.read_text()
    assert [line for line in mine.splitlines() if line not in text.splitlines()] == []
    assert text.startswith('backend = "vertex"\n\n# mine\n') and 'project = "podlift"\n' in text
    assert "podlift.toml: nothing written." in told("init", "vertex")
    assert FILE.read_text() == text


def test_images_by_family_are_written_as_a_table(told) -> None:
    told("init", "vertex", "--vertex-image", '{"gpu": "r/g:1"}')
    assert 'image = { gpu = "r/g:1" }\n' in FILE.read_text()
    Path("train.py").write_text("")
    assert sdk.Vertex.of(sdk.plan("train.py", accelerator="t4").target).image == "r/g:1"


def test_settings_that_stand_elsewhere_are_left_alone(told) -> None:
    Path("pyproject.toml").write_text('[tool.podlift]\nbackend = "vertex"\n')
    assert "pyproject.toml already. Nothing was written." in told("init", "vertex", code=2)
    assert not FILE.exists()
    assert 'bucket = "podlift-runs"' in told("init", "vertex", "--dry-run")


def test_a_table_that_cannot_be_extended_stays_and_the_lines_to_add_are_shown(told) -> None:
    # An inline table, and a header in a string.
    for mine in ('vertex = { project = "mine" }\n', 'args = """\n[vertex]\n"""\n[vertex]\nproject = "mine"\n'):
        FILE.write_text(mine)
        shown = told("init", "vertex", code=2)
        assert "the table vertex cannot be extended" in shown and 'Next: add to it: regions = ["us-central1"]' in shown
        assert FILE.read_text() == mine


@pytest.mark.parametrize(
    ("mine", "makes"),
    [
        ("vertex = {{ {all} }}\n", 'backend = "vertex"\n\nvertex = {{ {all} }}\n'),
        ('\ufeffbackend = "vertex"\n[vertex]\n{lines}', 'backend = "vertex"\n[vertex]\n{note}\n{lines}'),
        ('backend = "vertex"\n[vertex]', 'backend = "vertex"\n[vertex]\n{lines}{note}\n'),
        (
            'backend = "vertex"\nargs = """\n{note}\n"""\n# not found: bucket\n[vertex]\n{lines}',
            'backend = "vertex"\nargs = """\n{note}\n"""\n[vertex]\n{note}\n{lines}',
        ),
    ],
    ids=["an inline table of all settings", "a mark", "no end of line", "a note in a string"],
)
def test_an_odd_file_is_written_once_and_then_stays(told, mine, makes) -> None:
    told("init", "vertex")
    _, _, *settings, note = FILE.read_text().splitlines()
    about = {"all": ", ".join(settings[1:]), "lines": "".join(f"{line}\n" for line in settings[1:]), "note": note}
    FILE.write_text(mine.format(**about))
    told("init", "vertex")
    assert FILE.read_text() == makes.format(**about)
    assert "nothing written" in told("init", "vertex")
    assert FILE.read_text() == makes.format(**about)


def test_line_ends_follow_the_file_and_occur_only_at_ends_of_lines(told) -> None:
    mine = '# mine\r\nname = "a\u2028b"\r\n\r\n[ vertex ]  # the cloud\r\nproject = "podlift"\r\n'
    FILE.write_bytes(mine.encode())
    told("init", "vertex")
    made = FILE.read_bytes()
    assert made.count(b"\n") == made.count(b"\r\n") > mine.count("\n")
    assert [line for line in mine.split("\r\n") if line not in made.decode().split("\r\n")] == []
    real = "us-central1-docker.pkg.dev/podlift/podlift/cpu@sha256:" + "0" * 64
    record.write(record.place(Path.cwd()), "vertex.image", "cpu", real)
    made = FILE.read_bytes()
    assert made.count(b"\n") == made.count(b"\r\n") and real.encode() in made


def test_of_several_buckets_the_one_of_podlift_is_taken_and_else_none(told, cloud) -> None:
    for name in ("data", "logs"):
        cloud.ask("POST", "/storage/v1/b?project=podlift", {"name": name, "location": "us-central1"})
    assert rows(told("init", "vertex", "--dry-run", "--json"))["vertex_bucket"]["value"] == "podlift-runs"
    places = [{"name": each, "location": "US-CENTRAL1", "locationType": "region"} for each in ("data", "logs")]
    several = proposal._bucket("podlift", "us-central1", ServiceReply(status=200, body={"items": places}))
    assert several.said == "several in us-central1: data, logs" and several.command.endswith("--vertex-bucket BUCKET")


def test_resources_that_may_not_be_listed_are_unknown(told, cloud) -> None:
    cloud.faults({"api": "vertex", "kind": "deny", "operation": "serviceAccounts.list"})
    found = rows(told("init", "vertex", "--dry-run", "--json"))["vertex_service_account"]
    assert (found["value"], found["level"]) == (None, "unknown") and "403" in found["said"]
    shown = " ".join(told("init", "vertex").split())
    assert "not known service_account 403: " in shown
    assert "Next: if there is none: gcloud iam service-accounts create podlift --project=podlift" in shown


def test_without_credentials_nothing_is_guessed(project, monkeypatch, capsys) -> None:
    refused = client.VertexRejectedError("There are no credentials for Google Cloud: none. Next: log in.", 0)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(project))
    monkeypatch.setattr(client, "session", Mock(side_effect=refused))
    assert command(["init", "vertex"]) == 0
    assert "Next: gcloud auth application-default login" in capsys.readouterr().out
    lines = FILE.read_text().splitlines()
    assert [line for line in lines if not line.startswith("# not found: ")] == ['backend = "vertex"', "", "[vertex]"]


def test_gclouds_configuration_names_project_and_region(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("PODLIFT_EMULATOR", raising=False)
    (tmp_path / "configurations").mkdir()
    (tmp_path / "active_config").write_text("work")
    settings = "[core]\nproject = mine\naccount = me@example.com\n[compute]\nregion = europe-west4\n"
    (tmp_path / "configurations" / "config_work").write_text(settings)
    config = proposal._gcloud({"CLOUDSDK_CONFIG": str(tmp_path)})
    assert proposal._project(config, {}).value == "mine"
    assert proposal._project(config, {"GOOGLE_CLOUD_PROJECT": "other"}).value == "other"
    listed = ServiceReply(status=200)
    assert proposal._region("mine", config, {}, None, listed).value == ("europe-west4",)
    assert proposal._region("mine", {}, {"CLOUDSDK_COMPUTE_REGION": "us-east1"}, None, listed).value == ("us-east1",)
    found = proposal._region("mine", {}, {}, None, listed)
    assert (found.value, found.said) == (("us-central1",), "us-central1 (podlift's default)")


def test_a_proposed_bucket_has_a_name_that_cloud_storage_accepts() -> None:
    names = {"my-project": "my-project", "my-google-project": "my-g-project", "a.com:my-project": "a-com-my-project"}
    for project, name in names.items():
        found = proposal._bucket(project, "us-central1", ServiceReply(status=200))
        assert f"create gs://{name}-podlift --project={project} " in found.command
        assert buckets.name_problem(f"{name}-podlift") == ""
    long = buckets.new_name("b" * 60, "northamerica-northeast1")
    assert long.endswith("-northamerica-northeast1") and buckets.name_problem(long) == ""
