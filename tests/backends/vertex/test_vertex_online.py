"""The requests of `--online` to the cloud, its use of the answers, and its message where there are none."""

import json
import os
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support import serving

import sdk
from sdk.backends.vertex import client
from sdk.backends.vertex.account import locations
from sdk.backends.vertex.account import probe as online
from sdk.backends.vertex.checks import of_vertex
from sdk.checks import Facts, Finding
from sdk.cli.app import run as command
from sdk.errors import InputError
from sdk.storage import emulator
from sdk.testing.vertex import Cloud

LOCATIONS = ["us-central1:spot", "us-east1:spot", "us-central1"]
N1 = "aiplatform.googleapis.com/custom_model_training_cpus"
IMAGE = "us-central1-docker.pkg.dev/my-project/train/tf:2.19"


@pytest.fixture
def plan(cloud, project) -> Callable[..., sdk.Plan]:
    """Plan a program, with the fields of the Vertex as keywords, and ask the emulated cloud."""
    Path("train.py").write_text("print(1)\n")
    return lambda online=True, **fields: sdk.plan("train.py", backend=cloud.backend(**fields), online=online)


def change(cloud: Cloud, **fields: Any) -> None:
    cloud.ask("PATCH", f"/storage/v1/b/{cloud.bucket}", fields)


def create(cloud: Cloud, name: str, **fields: Any) -> None:
    cloud.ask("POST", f"/storage/v1/b?project={cloud.project}", {"name": name, **fields})


def said(made: sdk.Plan, level: str) -> str:
    return "\n".join(each.message for each in made.findings if each.level == level)


def test_an_emulator_is_asked_for_a_bucket_directly_and_not_through_the_users_proxy(monkeypatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for scheme in ("http", "https"):
            emulated = {"PODLIFT_EMULATOR": f"{scheme}://127.0.0.1:{port}/token"}
            assert locations.cached("gs://mine/podlift", emulated) == {}
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_offline_nobody_is_asked_but_an_emulator_where_a_bucket_lies(cloud, plan) -> None:
    before = cloud.requests().total
    made = plan(online=None, bucket="there-is-no-such-bucket")
    assert made.facts.online == {}
    # The question itself is a request.
    assert cloud.requests().total - before <= 1


def test_a_bucket_elsewhere_is_refused_offline_where_its_place_is_known(cloud, plan, monkeypatch) -> None:
    create(cloud, "in-europe", location="EUROPE-WEST4")
    elsewhere = (
        r"gs://in-europe is in europe-west4, but Vertex AI needs its .*Nearest: vertex_regions=\['europe-west4'\]"
    )
    with pytest.raises(InputError, match=rf"{elsewhere}\.$"):
        plan(online=None, bucket="in-europe")
    for regions in ("europe-west4", [*LOCATIONS, "europe-west4"]):
        near = plan(online=None, bucket="in-europe", regions=regions)
        assert "gs://in-europe exists, in europe-west4." in said(near, "note")
    # A plan knows Google's buckets from an earlier request, and names unknown facts.
    about = online.bucket("gs://in-europe/podlift")["about"]
    monkeypatch.delenv("PODLIFT_EMULATOR")
    unseen = "not checked whether gs://in-europe exists, in a region of the job (us-central1). Next: podlift plan"
    assert f"It was {unseen}" in said(plan(online=None, bucket="in-europe"), "note")
    locations.store("gs://in-europe/podlift", about, os.environ, now=1_790_000_000)
    with pytest.raises(InputError, match=rf"{elsewhere}.* on 2026-09-21; podlift plan --online checks again\.$"):
        plan(online=None, bucket="in-europe")
    assert plan(online=None, bucket="in-europe", regions="europe-west4").facts.online["bucket"]["seen"] == "2026-09-21"


def test_a_submit_into_a_bucket_elsewhere_is_refused_before_anything_is_written(cloud, plan) -> None:
    made = plan(online=None, bucket="in-europe")
    create(cloud, "in-europe", location="EUROPE-WEST4")
    with pytest.raises(InputError, match=r"is in europe-west4, but Vertex AI needs its output directory in the job's"):
        sdk.submit(made)
    assert not Path(made.bundle).exists()
    assert cloud.ask("GET", "/storage/v1/b/in-europe/o").get("items", []) == []


def test_each_named_resource_is_looked_up_where_it_is(monkeypatch) -> None:
    board, asked = "projects/p/locations/us-east1/tensorboards/1", {}
    key, network = "projects/p/locations/us-east1/keyRings/r/cryptoKeys/k", "projects/12/global/networks/vpc"
    passed = {"network": network, "kms_key": key, "tensorboard": board, "persistent_resource": "warm"}
    target = sdk.Vertex(project="mine", regions=["us-east1"], **passed)
    answers = {"kms_key": 404, "network": 403}

    def read(host: str, path: str, *, project: str) -> client.ServiceReply:
        name = next(name for name in target.passed_on if str(getattr(target, name)) in path)
        asked[name] = host + path
        status = answers.get(name, 200)
        return client.ServiceReply(status=status, body={"state": "RUNNING"}, error="" if status == 200 else "no")

    monkeypatch.setattr(client, "read", read)
    monkeypatch.delenv("PODLIFT_EMULATOR", raising=False)
    found = online.settings(target)
    assert {name: answer["exists"] for name, answer in found.items()} == {
        "network": None, "kms_key": False, "tensorboard": True, "persistent_resource@us-east1": True,
    }  # fmt: skip
    vertex = "https://us-east1-aiplatform.googleapis.com/v1"
    assert asked == {
        "network": f"https://compute.googleapis.com/compute/v1/{network}",
        "kms_key": f"https://cloudkms.googleapis.com/v1/{key}",
        "tensorboard": f"{vertex}/{board}",
        "persistent_resource": f"{vertex}/projects/mine/locations/us-east1/persistentResources/warm",
    }
    asked.clear()
    for value in ("../../x", "http://evil/", "a b?c#d", "projects/p/locations/evil.com#/tensorboards/1"):
        assert online.settings(sdk.Vertex(project="mine", tensorboard=value))["tensorboard"]["exists"] is None
    assert asked == {}


def test_answers_of_the_cloud_stand_among_the_facts_and_the_findings(cloud, plan) -> None:
    made = plan()
    assert made.facts.online["bucket"]["about"]["locationType"] == "region"
    assert made.facts.online["quotas"][N1] == {"exists": True, "error": "", "limits": {"us-central1": -1}}
    assert "gs://podlift-runs exists, in us-central1." in said(made, "note")
    assert f"The quota {N1} is unlimited in us-central1; 4 are needed." in said(made, "note")
    assert sdk.Plan.from_json(made.to_json(), "here").facts == made.facts
    update = "gcloud storage buckets update gs://podlift-runs"
    assert "billed" not in said(made, "warning"), "an emulator bills nothing"
    assert f"billed for another 7 days. Next: {update} --clear-soft-delete." in in_cloud(made.facts.online)
    change(cloud, softDeletePolicy={"retentionDurationSeconds": "0"}, versioning={"enabled": True})
    found = in_cloud(plan().facts.online)
    assert "soft delete" not in found
    assert f"kept and billed forever. Next: {update} --no-versioning." in found


def findings(online: dict[str, Any], accelerator: str = "cpu", **fields: Any) -> list[Finding]:
    """Return the findings of a plan in these answers of Google itself."""
    unknown = dict.fromkeys(("tensorflow", "keras", "tf_keras", "isolation"))
    facts = Facts(python="3.11", executable="", cpus=1, online=online, **unknown)
    target = sdk.Vertex(**{"project": "podlift", "bucket": "b-1", "image": IMAGE, **fields})
    return of_vertex(sdk.Job("train.py", resources=sdk.Resources(accelerator=accelerator)), facts, target=target)


def in_cloud(online: dict[str, Any], accelerator: str = "cpu", **fields: Any) -> str:
    return "\n".join(each.message for each in findings(online, accelerator, **fields))


# gcloud would make a real bucket, which an emulator does not see.
START = r"Next: start the emulator at 127.0.0.1:\d+ with --bucket"
REFUSED = {
    "no bucket": (None, {}, rf"^There is no bucket gs://the-bucket. {START} the-bucket@us-central1\.$"),
    "several regions": ("US", {}, rf"multi-region bucket \(US\).*{START} NAME@us-central1"),
    "elsewhere": (
        "EUROPE-WEST4",
        {"regions": LOCATIONS},
        r"is in europe-west4.*Nearest: vertex_regions=\['europe-west4:spot', 'europe-west4'\]\.$",
    ),
}


@pytest.mark.parametrize(("location", "fields", "told"), REFUSED.values(), ids=REFUSED)
def test_a_bucket_with_which_no_job_can_run_is_refused_with_the_next_step(cloud, plan, location, fields, told) -> None:
    if location:
        create(cloud, "the-bucket", location=location)
    with pytest.raises(InputError, match=told):
        plan(bucket="the-bucket", **fields)


def test_on_google_the_command_that_makes_a_bucket_is_gclouds() -> None:
    missing = {"name": "nobodys-own", "exists": False, "status": 404, "error": "", "about": {}}
    create = "Next: gcloud storage buckets create gs://nobodys-own --location=us-central1, or gcloud storage ls."
    assert f"There is no bucket gs://nobodys-own. {create}" in in_cloud({"bucket": missing})
    several = {**missing, "exists": True, "status": 200, "about": {"location": "US", "locationType": "multi-region"}}
    assert "Next: gcloud storage buckets create gs://NAME --location=us-central1" in in_cloud({"bucket": several})


def test_a_bucket_that_lets_us_not_in_is_refused_with_the_role_that_is_missing(cloud, plan) -> None:
    cloud.faults({"kind": "status_before", "operation": "objects.list", "status": 403})
    with pytest.raises(InputError, match=r"permission denied \(403\).*--role=roles/storage.objectUser"):
        plan()


def test_a_job_in_another_region_than_the_bucket_is_told_with_the_price_of_reading(cloud, plan) -> None:
    made = plan(regions=("us-central1", "us-east1"))
    job = "reads and writes gs://podlift-runs in us-central1; it has no output directory of Vertex AI."
    assert f"A job in us-east1 {job}" in said(made, "note")
    assert "per GiB" not in said(made, "note"), "an emulator bills nothing"
    read = "Reading: 0.05 USD per GiB (price page of Cloud Storage, 2026)"
    write = "Writing: priced per GiB by Google: price not known to podlift."
    found = in_cloud(made.facts.online, regions=("us-central1", "europe-west4"))
    assert f"A job in europe-west4 {job} {read}. {write}" in found


def test_a_quota_that_is_too_small_is_a_warning_with_the_place_to_ask_for_more(cloud, plan) -> None:
    cloud.faults({"api": "vertex", "kind": "quota"})
    made = plan()
    small = f"The quota {N1} is 0 in us-central1, but 4 are needed (CPUs of n1 machines)"
    assert f"{small}: the emulator at 127.0.0.1:" in said(made, "warning")
    found = in_cloud(made.facts.online)
    assert f"{small}: Vertex AI would reject" in found and f"iam-admin/quotas?project={cloud.project}" in found


def test_a_cloud_that_gives_no_answer_makes_notes_and_no_error(plan, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_EMULATOR", f"http://127.0.0.1:9/{'0' * 32}")
    # As in a process that has found it before.
    monkeypatch.setattr(emulator, "_check_skipped", True)
    monkeypatch.setattr(online, "_RETRY", online.RetryPolicy(connect_s=0.2, read_s=0.2, total_s=0.3, first_s=0.3))
    found = said(plan(), "note")
    assert "The bucket gs://podlift-runs was not checked." in found
    assert "Quotas were not checked: ConnectionError" in found


def test_without_credentials_a_plan_is_made_and_says_how_to_get_some(plan, cloud, monkeypatch, tmp_path) -> None:
    for name in ("PODLIFT_EMULATOR", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    found = said(plan(image=IMAGE), "note")
    assert "no credentials were found" in found
    assert "Next: gcloud auth application-default login." in found
    assert f"The image {IMAGE} was not checked: There are no credentials for Google Cloud" in found
    assert "Quotas were not checked: There are no credentials for Google Cloud" in found


def test_online_is_an_option_a_variable_or_a_line_of_the_projects_file(plan, cloud, monkeypatch, capsys) -> None:
    Path("podlift.toml").write_text("online = true\n")
    words = ["plan", "train.py", "--json", "--backend", "vertex", "--vertex-project", "podlift"]
    assert command([*words, "--vertex-bucket", cloud.bucket]) == 0
    assert "bucket" in json.loads(capsys.readouterr().out)["facts"]["online"]
    monkeypatch.setenv("PODLIFT_ONLINE", "1")
    assert plan(online=False, bucket="nobodys-own").facts.online == {}, "an option wins"
    monkeypatch.setenv("PODLIFT_ONLINE", "perhaps")
    with pytest.raises(InputError, match=r"PODLIFT_ONLINE: must be true or false. Received: 'perhaps'"):
        plan(online=None)


def test_a_registry_is_asked_for_the_manifest() -> None:
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        asked.append(f"{request.path} {request.headers['Accept']}")
        there = request.path == "/v2/my-project/train/tf/manifests/2.19"
        return 403 if "closed" in request.path else 200 if there else 404, b""

    with serving(answer) as place:
        images = [IMAGE, IMAGE.replace("2.19", "2.20"), IMAGE.partition(":")[0], IMAGE.replace("train", "closed")]
        found = [online.image(image, f"http://{place}") for image in images]
        online.image(f"{IMAGE}@sha256:ab", f"http://{place}")
    assert [each["exists"] for each in found] == [True, False, False, None]
    assert (found[0]["error"], found[3]["error"]) == ("", "403: Forbidden")
    assert "application/vnd.oci.image.index.v1+json" in asked[0]
    assert asked[2].startswith("/v2/my-project/train/tf/manifests/latest ")
    assert asked[-1].startswith("/v2/my-project/train/tf/manifests/sha256:ab ")


def test_a_registry_that_is_not_googles_gets_none_of_its_credentials(monkeypatch) -> None:
    monkeypatch.delenv("PODLIFT_EMULATOR", raising=False)
    monkeypatch.setattr(online, "_head", lambda *_: pytest.fail("it was asked"))
    for name in ("tensorflow/tensorflow:2.19.0", "registry.example.com/team/tf:1", "docker.pkg.dev.example.com/a/b:1"):
        assert online.image(name)["exists"] is None


@pytest.mark.parametrize(
    ("known", "level", "part"),
    [
        ({"exists": True, "error": ""}, "note", "needs roles/artifactregistry.reader"),
        ({"exists": False, "error": "404: Not Found"}, "error", "Next: push it, or list the images: gcloud artifacts"),
        ({"exists": None, "error": "403: Forbidden"}, "note", "Next: gcloud artifacts docker images describe"),
    ],
)
def test_the_known_facts_about_an_image_decide(known, level, part) -> None:
    found = [each for each in findings({"image": known}) if "image" in each.message.lower()]
    assert [each.level for each in found] == [level]
    assert part in found[0].message


def test_an_output_directory_in_raw_is_refused_where_vertex_would_refuse_it(cloud, plan) -> None:
    def raw(bucket: str) -> dict[str, Any]:
        return {"jobSpec": {"baseOutputDirectory": {"outputUriPrefix": f"gs://{bucket}/out"}}}

    for name, location in (("in-europe", "EUROPE-WEST4"), ("in-america", "US"), ("pair", "NAM4")):
        create(cloud, name, location=location)
    needs = "Vertex AI needs the output directory of a job in us-central1"
    for name, part in {
        "in-europe": f"gs://in-europe is in europe-west4, but {needs}",
        "in-america": "gs://in-america is a multi-region bucket (US)",
        "pair": "gs://pair is a dual-region bucket (NAM4)",
        "nowhere": "There is no bucket gs://nowhere. Received: baseOutputDirectory 'gs://nowhere/out'",
    }.items():
        with pytest.raises(InputError) as caught:
            plan(raw=raw(name))
        assert part in str(caught.value)
    assert plan(raw=raw("podlift-runs")).facts.online["output"]["about"]["location"] == "US-CENTRAL1"


def test_quotas_that_a_new_project_lacks_are_named_until_they_are_read() -> None:
    assert "A new project's quota of NVIDIA L4 is 0. Next: podlift plan --online" in in_cloud({}, "l4:2")
    assert "A new project's quota of TPU v3 is 0" in in_cloud({}, "v3-8")
    metric = "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
    read = {"quotas": {metric: {"exists": True, "error": "", "limits": {"us-central1": 8}}}}
    for answers, accelerator in (({}, "t4"), ({}, "cpu"), (read, "l4:2")):
        assert "A new project's quota" not in in_cloud(answers, accelerator)
    assert "A new project's quota" not in in_cloud({}, "l4:2", provisioning="spot")


def test_of_a_quota_the_regions_own_limit_counts_and_of_several_the_lowest() -> None:
    buckets = [
        {"effectiveLimit": "8"},
        {"effectiveLimit": "16", "dimensions": {"region": "us-central1"}},
        {"effectiveLimit": "99", "dimensions": {"region": "us-central1", "zone": "us-central1-a"}},
    ]

    def limit(region: str, *groups: list[dict[str, Any]]) -> int | None:
        return online._limit({"consumerQuotaLimits": [{"quotaBuckets": each} for each in groups]}, region)

    assert limit("us-central1", buckets, [{"effectiveLimit": "12"}]) == 12
    assert [limit(region, buckets) for region in ("us-central1", "us-east1")] == [16, 8]
    assert limit("us-east1", [{"effectiveLimit": "-1"}]) == -1
    assert online._limit({}, "us-east1") is None
    for odd in (None, 7, [None, {"quotaBuckets": "none"}], [{"quotaBuckets": [{"effectiveLimit": "many"}]}]):
        assert online._limit({"consumerQuotaLimits": odd}, "us-east1") is None


def test_a_quota_is_asked_at_the_expense_of_the_jobs_project(monkeypatch) -> None:
    charged = []

    def session(url: str, project: str = "") -> None:
        charged.append(project)
        raise client.VertexRejectedError("There are no credentials. Next: log in.", 0)

    monkeypatch.delenv("PODLIFT_EMULATOR", raising=False)
    monkeypatch.setattr(client, "session", session)
    found = online.quota(sdk.Vertex(project="my-project"), N1)
    assert found == {"exists": None, "error": "There are no credentials"} and charged == ["my-project"]
