"""`podlift doctor --backend vertex` against an emulated project in which one thing at a time is wrong."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import requests
from google.auth.exceptions import RefreshError

from sdk.backends.vertex import client
from sdk.backends.vertex.account import rights
from sdk.cli.app import run as command
from sdk.emulator.project.app import repository_name
from sdk.emulator.project.state import CALLER, account_name, agents
from sdk.emulator.vertex.environment import project_number
from sdk.testing.vertex import Cloud

ME, PROJECT, PLACE = f"user:{CALLER}", "podlift", "us-central1"
TRAINER = f"trainer@{PROJECT}.iam.gserviceaccount.com"
NUMBER = project_number(PROJECT)
AGENT = f"serviceAccount:service-{NUMBER}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
BUILDER = f"serviceAccount:{NUMBER}-compute@developer.gserviceaccount.com"
IN_PROJECT = f"//cloudresourcemanager.googleapis.com/projects/{PROJECT}"
BUCKET = "//storage.googleapis.com/projects/_/buckets/podlift-runs"
REPOSITORY = repository_name(PROJECT, PLACE, "podlift")
NEVER_KNOWN = {"cmek", "network", "vpc-sc", "org-policy"}


def withheld(member: str, resource: str, role: str, *permissions: str) -> dict[str, Any]:
    return {"withheld": [{"member": member, "resource": resource, "role": role, "permissions": list(permissions)}]}


def off(*apis: str) -> dict[str, Any]:
    return {"disabled": [f"{each}.googleapis.com" for each in apis]}


# The missing resource, the check that fails, and its command without its beginning "gcloud ".
MENDED = {
    "an API is disabled": (off("aiplatform"), "apis", f"services enable aiplatform.googleapis.com --project={PROJECT}"),
    "the caller may not create jobs": (
        withheld(ME, IN_PROJECT, "roles/aiplatform.user", *rights.JOBS),
        "jobs",
        f"projects add-iam-policy-binding {PROJECT} --condition=None --member={ME} --role=roles/aiplatform.user",
    ),
    "the caller may not read logs": (
        withheld(ME, IN_PROJECT, "roles/logging.viewer", rights.LOGS),
        "logs",
        f"projects add-iam-policy-binding {PROJECT} --condition=None --member={ME} --role=roles/logging.viewer",
    ),
    "the caller may not write objects": (
        withheld(ME, BUCKET, "roles/storage.objectAdmin", "storage.objects.create"),
        "objects",
        f"storage buckets add-iam-policy-binding gs://podlift-runs --member={ME} --role=roles/storage.objectAdmin",
    ),
    "there is no service account": (
        {"absent": [account_name(TRAINER)]},
        "account",
        f"iam service-accounts create trainer --project={PROJECT}",
    ),
    "the caller may not act as the account": (
        withheld(ME, account_name(TRAINER), "roles/iam.serviceAccountUser", rights.ACT_AS),
        "actas",
        f"iam service-accounts add-iam-policy-binding {TRAINER} --member={ME} --role=roles/iam.serviceAccountUser",
    ),
    "the account may not use the bucket": (
        withheld(f"serviceAccount:{TRAINER}", BUCKET, "roles/storage.objectAdmin", *rights.OBJECTS),
        "storage",
        f"storage buckets add-iam-policy-binding gs://podlift-runs --member=serviceAccount:{TRAINER} "
        "--role=roles/storage.objectAdmin",
    ),
    "the agent may not pull images": (
        withheld(AGENT, REPOSITORY, "roles/artifactregistry.reader", rights.PULL),
        "pull",
        f"beta services identity create --service=aiplatform.googleapis.com --project={PROJECT} && gcloud "
        f"artifacts repositories add-iam-policy-binding podlift --location={PLACE} --project={PROJECT} --member={AGENT} "
        "--role=roles/artifactregistry.reader",
    ),
    "the account of builds may not write logs": (
        withheld(BUILDER, IN_PROJECT, "roles/logging.logWriter", rights.WRITE_LOGS),
        "build-logs",
        f"projects add-iam-policy-binding {PROJECT} --condition=None --member={BUILDER} --role=roles/logging.logWriter",
    ),
    "Cloud Build is disabled": (
        off("cloudbuild"),
        "build-apis",
        f"services enable cloudbuild.googleapis.com --project={PROJECT}",
    ),
    "there is no repository": (
        {"absent": [REPOSITORY]},
        "build-repo",
        f"artifacts repositories create podlift --repository-format=docker --location={PLACE} --project={PROJECT}",
    ),
    "the account of builds may not push": (
        withheld(BUILDER, REPOSITORY, "roles/artifactregistry.writer", rights.PUSH),
        "build-account",
        f"artifacts repositories add-iam-policy-binding podlift --location={PLACE} --project={PROJECT} --member={BUILDER} "
        "--role=roles/artifactregistry.writer",
    ),
}


def keep_deleted(cloud: Cloud, seconds: int) -> None:
    policy = {"softDeletePolicy": {"retentionDurationSeconds": str(seconds)}}
    cloud.ask("PATCH", f"/storage/v1/b/{cloud.bucket}", policy)


@pytest.fixture
def doctor(cloud, project, capsys) -> Callable[..., dict[str, Any]]:
    """Check an emulated project that has all that is needed; `doctor("--accelerator", "l4")` returns its JSON."""
    keep_deleted(cloud, 0)
    (project / "podlift.toml").write_text(
        f'backend = "vertex"\n[vertex]\nproject = "{PROJECT}"\nbucket = "podlift-runs"\n'
        f'service_account = "{TRAINER}"\nimage = "{PLACE}-docker.pkg.dev/{PROJECT}/podlift/cpu:1"\n'
    )

    def run(*words: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert command(["doctor", "--backend", "vertex", "--json", *words]) == code
        return json.loads(capsys.readouterr().out)

    return run


def wrong(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the checks that are not fine, by name, without the ones that are never known."""
    usual = {*NEVER_KNOWN, "image"}
    return {each["name"]: each for each in found["checks"] if not each["ok"] and each["name"] not in usual}


def test_a_complete_project_passes_and_needlessly_kept_objects_are_a_warning(doctor, cloud) -> None:
    found = doctor()
    assert wrong(found) == {} and found["failed"] == 0
    unknown = {each["name"] for each in found["checks"] if each["level"] == "unknown"}
    assert unknown == {*NEVER_KNOWN, "image"}
    keep_deleted(cloud, 604800)
    check = wrong(doctor())["soft-delete"]
    assert check["command"] == "gcloud storage buckets update gs://podlift-runs --clear-soft-delete"


@pytest.mark.shows("`podlift init vertex` writes the settings")
@pytest.mark.parametrize("case", MENDED)
def test_a_missing_resource_is_one_line_with_the_command_that_repairs_it(case, doctor, cloud) -> None:
    setup, name, mends = MENDED[case]
    cloud.ask("POST", "/_project", setup)
    # An image exists, so builds are not needed.
    found = doctor(code=0 if name.startswith("build") else 3)
    assert list(wrong(found)) == [name]
    check = wrong(found)[name]
    assert check["command"] == check["fix"] == f"gcloud {mends}"
    assert check["level"] == ("warning" if name.startswith("build") else "error")


def test_in_a_new_project_the_agents_are_made_before_a_policy_names_them(doctor, cloud) -> None:
    cloud.ask("POST", "/_project", {"absent": [account_name(each) for each in agents(NUMBER)]})
    pulls = [each for each in doctor(code=3)["checks"] if each["name"] == "pull"]
    assert [each["ok"] for each in pulls] == [False, False]
    path = f"/v1/projects/{PROJECT}/locations/{PLACE}/repositories/podlift:setIamPolicy"
    policy = {"policy": {"bindings": [{"role": "roles/artifactregistry.reader", "members": [AGENT]}]}}
    refused = requests.post(cloud.url + path, json=policy, timeout=20)
    assert refused.status_code == 400 and "gcp-sa-aiplatform-cc.iam.gserviceaccount.com does not exist" in refused.text
    identity, grant = pulls[0]["command"].split(" && ")
    assert identity == f"gcloud beta services identity create --service=aiplatform.googleapis.com --project={PROJECT}"
    assert "add-iam-policy-binding" in grant
    made = f"/v1beta1/projects/{PROJECT}/services/aiplatform.googleapis.com:generateServiceIdentity"
    assert cloud.ask("POST", made)["done"] is True
    assert cloud.ask("POST", path, policy)["bindings"] == policy["policy"]["bindings"]
    assert "pull" not in wrong(doctor())


def test_a_bucket_is_made_where_the_job_runs_also_beside_one_elsewhere(doctor, cloud) -> None:
    check = wrong(doctor("--vertex-bucket", "missing", code=3))["bucket"]
    assert check["said"] == "there is no gs://missing"
    create = "gcloud storage buckets create gs://"
    assert check["command"].startswith(f"{create}missing --project={PROJECT} --location={PLACE}")
    cloud.ask("POST", "/storage/v1/b?project=podlift", {"name": "many", "location": "US"})
    check = wrong(doctor("--vertex-bucket", "many", code=3))["bucket"]
    assert check["said"].startswith("gs://many is a multi-region bucket (US)")
    assert check["fix"].startswith(f"Make another, and set vertex_bucket = 'many-us-central1': {create}")
    check = wrong(doctor("--vertex-regions", "europe-west4", code=3))["bucket"]
    assert check["said"] == "gs://podlift-runs is in us-central1, but the job is in europe-west4"


def test_a_quota_that_is_too_low_is_a_request_with_metric_region_and_number(doctor, cloud) -> None:
    cloud.faults({"api": "vertex", "kind": "quota"})
    found = [each for each in doctor("--accelerator", "l4:2", code=3)["checks"] if each["name"] == "quota"]
    fixes = [each["fix"] for each in found if not each["ok"]]
    metric = "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
    assert any(f"request 2 of {metric} in us-central1, and wait for the approval: https://" in fix for fix in fixes)


def failed(found: dict[str, Any]) -> tuple[str, str]:
    """Return the name and the command of the only check that failed."""
    (check,) = [each for each in found["checks"] if each["level"] == "error"]
    return check["name"], check["command"]


def test_credentials_that_are_not_accepted_are_the_only_failure(doctor, cloud) -> None:
    cloud.faults({"api": "vertex", "kind": "status_before", "operation": "projects.get", "status": 401})
    found = doctor(code=3)
    assert failed(found) == ("credentials", "gcloud auth application-default login")
    assert "not asked: there are no credentials" in {each["said"] for each in found["checks"]}
    assert cloud.requests().operations.keys() & {"quotas.get", "apis.get"} == set()


def test_expired_or_missing_credentials_are_reported_before_the_other_checks(project, monkeypatch, capsys) -> None:
    session = Mock()
    session.request.side_effect = RefreshError("Reauthentication is needed.")
    monkeypatch.setattr(client, "session", lambda *_: session)
    assert command(["doctor", "--backend", "vertex", "--vertex-project", "mine"]) == 3
    shown = capsys.readouterr()
    assert "FAILED    credentials     RefreshError: Reauthentication is needed." in shown.out
    assert shown.out.count("FAILED") == 1 and session.request.call_count == 1
    assert "1 failed, no warnings, 14 not known." in shown.err


def test_without_a_project_the_command_that_sets_one_is_named(doctor, project, cloud) -> None:
    (project / "podlift.toml").write_text('backend = "vertex"\n')
    assert failed(doctor(code=3)) == ("project", "podlift init vertex")


def test_without_an_image_builds_are_needed_and_their_command_is_named(doctor, cloud) -> None:
    Path("podlift.toml").write_text(f'[vertex]\nproject = "{PROJECT}"\nbucket = "podlift-runs"\n')
    cloud.ask("POST", "/_project", off("cloudbuild", "artifactregistry"))
    found = wrong(doctor(code=3))
    assert found["build-apis"]["level"] == "error"
    (image,) = [each for each in doctor(code=3)["checks"] if each["name"] == "image"]
    assert image["command"] == "podlift image cpu --submit"


# The denied right, and the checks that it takes away.
READS = {
    "projects.get": ["project"],
    "apis.get": ["apis", "build-apis"],
    "projects.testIamPermissions": ["jobs", "logs", "build"],
    "serviceAccounts.get": ["account"],
    "serviceAccounts.testIamPermissions": ["actas"],
    "iam.troubleshoot": ["storage"],
    "repositories.get": ["build-repo"],
    "builds.list": ["build-region"],
    "builds.account": ["build-account"],
    "quotas.get": ["quota"],
}


def test_a_fact_that_the_caller_may_not_read_is_unknown_and_never_missing(doctor, cloud) -> None:
    denied = [{"api": "vertex", "kind": "deny", "operation": each} for each in READS]
    cloud.faults(*denied, {"kind": "deny", "operation": "buckets.get"})
    found = wrong(doctor())
    assert {each["level"] for each in found.values()} == {"unknown"}
    names = {"bucket"} | {name for each in READS.values() for name in each}
    assert found.keys() == names | {"pull"}
    assert [name for name in names if "403" not in found[name]["said"]] == []


def test_a_caller_without_the_right_to_grant_a_role_gets_a_request_for_an_owner(doctor, cloud) -> None:
    lacks = withheld(ME, account_name(TRAINER), "roles/iam.serviceAccountUser", rights.ACT_AS)
    owner = withheld(ME, account_name(TRAINER), "roles/owner", "iam.serviceAccounts.setIamPolicy")
    cloud.ask("POST", "/_project", {"withheld": lacks["withheld"] + owner["withheld"]})
    check = wrong(doctor(code=3))["actas"]
    asked = f"You lack iam.serviceAccounts.setIamPolicy on {TRAINER}. Ask someone who has it to run: gcloud iam "
    assert check["fix"].startswith(asked) and check["fix"].endswith(check["command"])


def test_the_checks_only_read(doctor, cloud) -> None:
    cloud.ask("POST", "/_project", off("aiplatform", "cloudbuild"))
    before = cloud.ask("GET", "/_project")
    cloud.forget_requests()
    doctor(code=3)
    asked = {each["operation"] for each in cloud.requests().recent if each["method"] != "GET"}
    tests = {f"{each}.testIamPermissions" for each in ("projects", "serviceAccounts", "repositories")}
    assert asked <= {*tests, "iam.troubleshoot"}
    assert cloud.ask("GET", "/_project") == before


def test_names_in_a_printed_command_are_words_of_a_shell_and_no_more(doctor, cloud, tmp_path) -> None:
    hostile = f"x'; touch {tmp_path}/made; @podlift.iam.gserviceaccount.com"
    cloud.faults({"api": "vertex", "kind": "deny", "operation": "iam.troubleshoot"})
    found = {each["name"]: each["fix"] for each in doctor("--vertex-service-account", hostile)["checks"]}
    assert f"--member=serviceAccount:{hostile}" in shlex.split(found["storage"])
    cloud.faults({"api": "vertex", "kind": "deny", "operation": "userinfo.get"})
    cloud.ask("POST", "/_project", withheld(ME, IN_PROJECT, "roles/logging.viewer", rights.LOGS))
    command = wrong(doctor(code=3))["logs"]["command"]
    assert "--member=user:$(gcloud config get account) --role=" in command


def test_options_of_a_service_without_a_backend_are_refused(capsys) -> None:
    assert command(["doctor", "--accelerator", "l4"]) == 2
    assert "--accelerator: only together with --backend" in capsys.readouterr().err
    assert command(["doctor", "--backend", "local"]) == 2
    assert "The backend local needs no setup" in capsys.readouterr().err
