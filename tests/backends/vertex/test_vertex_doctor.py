"""`podlift doctor --backend vertex` and `podlift init vertex` on an emulated account that lacks one thing at most."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import requests
from google.auth.exceptions import RefreshError

import sdk
from sdk.backends.vertex import client
from sdk.backends.vertex.account import proposal, rights
from sdk.backends.vertex.client import ServiceReply
from sdk.checks import buckets
from sdk.cli.app import run as command
from sdk.emulator.project.app import repository_name
from sdk.emulator.project.state import CALLER, account_name, agents
from sdk.emulator.vertex.environment import project_number
from sdk.planning.settings import record
from sdk.testing.vertex import Cloud

ME, PROJECT, PLACE = f"user:{CALLER}", "podlift", "us-central1"
TRAINER = f"trainer@{PROJECT}.iam.gserviceaccount.com"
NUMBER = project_number(PROJECT)
AGENT = f"serviceAccount:service-{NUMBER}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
BUILDER = f"serviceAccount:{NUMBER}-compute@developer.gserviceaccount.com"
IN_PROJECT = f"//cloudresourcemanager.googleapis.com/projects/{PROJECT}"
BUCKET = "//storage.googleapis.com/projects/_/buckets/podlift-runs"
REPOSITORY = repository_name(PROJECT, PLACE, "podlift")
ACCOUNT = account_name(TRAINER)
NEVER_KNOWN = {"cmek", "network", "vpc-sc", "org-policy"}


def withheld(member: str, resource: str, role: str, *permissions: str) -> dict[str, Any]:
    return {"withheld": [{"member": member, "resource": resource, "role": role, "permissions": list(permissions)}]}


def off(*apis: str) -> dict[str, Any]:
    return {"disabled": [f"{each}.googleapis.com" for each in apis]}


# The current folder is the project.
FILE = Path("podlift.toml")
COMPLETE = (
    f'[vertex]\nproject = "{PROJECT}"\nbucket = "podlift-runs"\nservice_account = "{TRAINER}"\n'
    f'image = "{PLACE}-docker.pkg.dev/{PROJECT}/podlift/cpu:1"\n'
)
# How a role is granted on each resource.
GRANTS = {
    IN_PROJECT: f"projects add-iam-policy-binding {PROJECT} --condition=None",
    BUCKET: "storage buckets add-iam-policy-binding gs://podlift-runs",
    ACCOUNT: f"iam service-accounts add-iam-policy-binding {TRAINER}",
    REPOSITORY: f"artifacts repositories add-iam-policy-binding podlift --location={PLACE} --project={PROJECT}",
}
IDENTITY = f"beta services identity create --service=aiplatform.googleapis.com --project={PROJECT} && gcloud"
ADMIN, LOGGER, WRITER = "roles/storage.objectAdmin", "roles/logging.logWriter", "roles/artifactregistry.writer"
OURS = f"--project={PROJECT}"


def lacks(check: str, member: str, resource: str, role: str, *permissions: str) -> tuple[dict[str, Any], str, str]:
    """Return a row below: a member lacks permissions of a role, and the command grants the role."""
    setup = withheld(member, resource, role, *permissions)
    return setup, check, f"{GRANTS[resource]} --member={member} --role={role}"


# The missing resource, the check that fails, and its command without its beginning "gcloud ".
MENDED = {
    "an API is disabled": (off("aiplatform"), "apis", f"services enable aiplatform.googleapis.com --project={PROJECT}"),
    "the caller may not create jobs": lacks("jobs", ME, IN_PROJECT, "roles/aiplatform.user", *rights.JOBS),
    "the caller may not read logs": lacks("logs", ME, IN_PROJECT, "roles/logging.viewer", rights.LOGS),
    "the caller may not write objects": lacks("objects", ME, BUCKET, ADMIN, "storage.objects.create"),
    "there is no service account": ({"absent": [ACCOUNT]}, "account", f"iam service-accounts create trainer {OURS}"),
    "the caller may not act as the account": lacks("actas", ME, ACCOUNT, "roles/iam.serviceAccountUser", rights.ACT_AS),
    "the account may not use the bucket": lacks("storage", f"serviceAccount:{TRAINER}", BUCKET, ADMIN, *rights.OBJECTS),
    "the agent may not pull images": lacks("pull", AGENT, REPOSITORY, "roles/artifactregistry.reader", rights.PULL),
    "the account of builds may not write logs": lacks("build-logs", BUILDER, IN_PROJECT, LOGGER, rights.WRITE_LOGS),
    "Cloud Build is disabled": (off("cloudbuild"), "build-apis", f"services enable cloudbuild.googleapis.com {OURS}"),
    "there is no repository": (
        {"absent": [REPOSITORY]},
        "build-repo",
        f"artifacts repositories create podlift --repository-format=docker --location={PLACE} --project={PROJECT}",
    ),
    "the account of builds may not push": lacks("build-account", BUILDER, REPOSITORY, WRITER, rights.PUSH),
}


def keep_deleted(cloud: Cloud, seconds: int) -> None:
    policy = {"softDeletePolicy": {"retentionDurationSeconds": str(seconds)}}
    cloud.ask("PATCH", f"/storage/v1/b/{cloud.bucket}", policy)


@pytest.fixture
def doctor(cloud, project, capsys) -> Callable[..., dict[str, Any]]:
    """Check an emulated project that has all that is needed; `doctor("--accelerator", "l4")` returns its JSON."""
    keep_deleted(cloud, 0)
    FILE.write_text(f'backend = "vertex"\n{COMPLETE}')

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
    # The agent is made before a policy names it.
    made = f"{IDENTITY} " if name == "pull" else ""
    assert check["command"] == check["fix"] == f"gcloud {made}{mends}"
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


def test_without_a_project_or_an_image_the_command_that_sets_or_builds_one_is_named(doctor, cloud) -> None:
    FILE.write_text('backend = "vertex"\n')
    assert failed(doctor(code=3)) == ("project", "podlift init vertex")
    FILE.write_text(f'[vertex]\nproject = "{PROJECT}"\nbucket = "podlift-runs"\n')
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
    lacks = withheld(ME, ACCOUNT, "roles/iam.serviceAccountUser", rights.ACT_AS)
    owner = withheld(ME, ACCOUNT, "roles/owner", "iam.serviceAccounts.setIamPolicy")
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


# --- `podlift init vertex`: the project's file, from the resources of an account --------------------------------------


@pytest.fixture
def told(project, cloud, told) -> Callable[..., str]:
    return told


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
    cloud.ask("POST", "/_project", {"absent": [ACCOUNT]})
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
