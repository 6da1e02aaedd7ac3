"""An emulated run says so wherever it is shown, and no run, emulated or real, is looked up at the other place."""

import json
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

import sdk
from sdk import api
from sdk.errors import InputError
from sdk.storage.gcs import auth


@pytest.fixture
def place(cloud) -> str:
    return f"emulator at {urlsplit(cloud.url).netloc}"


@pytest.fixture
def project(cloud, project) -> Path:
    """A folder with a program, configured to run on Vertex AI."""
    Path("train.py").write_text("print('here')\n")
    about = {"project": cloud.project, "bucket": cloud.bucket, "image": "podlift/emulated"}
    lines = [f'{name} = "{value}"' for name, value in about.items()]
    Path("podlift.toml").write_text("\n".join(['backend = "vertex"', "[vertex]", *lines]))
    return project


def test_a_plan_names_the_emulator_and_no_price_and_a_real_one_the_price(
    cloud, project, place, told, monkeypatch
) -> None:
    emulated = told("plan", "train.py", "--max-cost-usd", "0.01")
    assert f"backend      vertex, {place}\n" in emulated
    assert f"max_cost_usd=0.01 is not checked: nothing is billed by the {place}." in emulated
    assert "USD " not in emulated and "console.cloud" not in emulated
    made = json.loads(told("plan", "train.py", "--json"))
    address = place.removeprefix("emulator at ")
    assert made["emulator"] == address
    assert made["request_url"].startswith(f"http://{address}/TOKEN/v1/projects/podlift/locations/us-central1/")
    monkeypatch.delenv("PODLIFT_EMULATOR")
    real = told("plan", "train.py")
    assert "backend      vertex\n" in real and " USD an hour" in real and "emulator at" not in real
    made = json.loads(told("plan", "train.py", "--json"))
    assert made["emulator"] == ""
    assert made["request_url"].startswith("https://us-central1-aiplatform.googleapis.com/v1/")
    told("plan", "train.py", "--max-cost-usd", "0.01", code=2)
    # A bucket of an emulator alone is no place for a real job.
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    with pytest.raises(InputError, match=r"PODLIFT_EMULATOR is not set: Vertex AI would run a real job.*Next: set"):
        sdk.plan("train.py")


def test_every_line_about_an_emulated_run_says_so_and_no_other_shell_asks_google(
    project, place, told, monkeypatch
) -> None:
    Path("train.py").write_text("import os\nos._exit(3)\n")
    started = told("submit", "train.py", "--detach")
    assert f"backend      vertex, {place}\n" in started and f"started on the {place}. Next: " in started
    run = sdk.attach("latest")
    assert f"The {place} reports JOB_STATE_FAILED." in told("wait", run.id, code=1)
    status = told("status", run.id)
    assert f"backend    vertex, {place}\n" in status and "vendor     JOB_STATE_FAILED\n" in status
    assert f"\tvertex, {place}\n" in told("list")
    why = told("why", run.id)
    assert f"The {place} reports JOB_STATE_FAILED." in why
    service = told("logs", run.id, "--task", "service")
    assert "please check the logs\n" in service
    assert not [text for text in (started, status, why, service) if "console.cloud" in text or "USD" in text]
    assert place in repr(run) and run.status().service == f"the {place}" and run.status().console == ""
    (listed,) = api.runs()
    assert listed.place == f"vertex, {place}" and listed.emulator == place.removeprefix("emulator at ")
    shown = json.loads(told("status", run.id, "--json"))
    assert (shown["backend"], shown["emulator"], shown["console"]) == ("vertex", listed.emulator, "")
    plan = Path(run.plan.paths.plan).read_text()
    Path(run.plan.paths.plan).write_text(json.dumps({**json.loads(plan), "emulator": ""}))
    refused = told("status", run.id, code=2)
    assert f"The run {run.id} belongs to Google Cloud, but PODLIFT_EMULATOR names the {place}, which was not" in refused
    assert "Next: unset PODLIFT_EMULATOR." in refused
    Path(run.plan.paths.plan).write_text(plan)
    # As in another shell.
    monkeypatch.delenv("PODLIFT_EMULATOR")
    monkeypatch.setattr(auth, "authorized", Mock(side_effect=AssertionError("Google Cloud was asked")))
    for verb in ("status", "why", "logs", "wait", "cancel", "resume", "get"):
        refused = told(verb, run.url, code=2)
        assert f"The run {run.id} belongs to the {place}, but no emulator is configured here." in refused
        assert "Google Cloud was not asked. Next: use the line `export PODLIFT_EMULATOR=...`" in refused
