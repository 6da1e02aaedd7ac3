"""What Google's services refuse reaches Google's own clients as the exception that they raise for it in the cloud."""

from __future__ import annotations

import io

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.scheduler_v1 import CloudSchedulerClient
from rule import PLACE
from served import WAIT_S, Served, body

from sdk.emulator.project.state import account_name


@pytest.fixture
def files(vertex: Served) -> storage.Client:
    return storage.Client(
        project="acme", credentials=AnonymousCredentials(), client_options={"api_endpoint": vertex.url}
    )


def test_an_output_directory_in_several_regions_is_a_failed_precondition(vertex: Served, files: storage.Client) -> None:
    files.create_bucket("many", location="US")
    job = body(0, base_output_directory={"output_uri_prefix": "gs://many/run"})
    with pytest.raises(exceptions.BadRequest) as caught:
        vertex.create(job)
    assert caught.value.response.json()["error"]["status"] == "FAILED_PRECONDITION"
    assert caught.value.message.endswith(
        "The Cloud Storage bucket of `gs://many/run` is in location `us`. It must be in the same regional location as the "
        "service location `us-central1`."
    )
    assert vertex.launcher.made == []


def test_an_account_that_does_not_exist_starts_nothing(vertex: Served) -> None:
    account = "nobody@acme.iam.gserviceaccount.com"
    vertex.ask("POST", "/_project", {"absent": [account_name(account)]})
    with pytest.raises(
        exceptions.BadRequest, match=r"permission to act as service_account: nobody@acme.*may not exist"
    ):
        vertex.create(body(0, service_account=account))
    assert vertex.launcher.made == []


def test_an_image_that_was_built_and_is_gone_is_not_run(vertex: Served) -> None:
    name = "us-central1-docker.pkg.dev/acme/podlift/cpu"
    build = {"steps": [{"name": "gcr.io/cloud-builders/docker", "args": ["build", "."]}], "images": [f"{name}:t1"]}
    made = vertex.ask("POST", f"/v1/{PLACE}/builds", build).json()["metadata"]["build"]["id"]
    ended = [vertex.ask("GET", f"/v1/{PLACE}/builds/{made}").json() for _ in range(2)][-1]
    digest = ended["results"]["images"][0]["digest"]

    def job(image: str) -> dict:
        found = body(0)
        found["job_spec"]["worker_pool_specs"][0]["container_spec"]["image_uri"] = image
        return found

    for there in (f"{name}:t1", f"{name}@{digest}", f"{name}:emulated@{digest}"):
        vertex.create(job(there))
    for gone in (f"{name}:t2", f"{name}", f"{name}@sha256:{'0' * 64}", f"{name}:emulated@sha256:{'0' * 64}"):
        with pytest.raises(exceptions.BadRequest, match="was not found"):
            vertex.create(job(gone))
    # What the registry has never had may be anywhere.
    vertex.create(job("us-central1-docker.pkg.dev/acme/podlift/other:1"))
    vertex.ask("POST", "/_reset")
    with pytest.raises(exceptions.BadRequest, match="was not found"):
        vertex.create(job(f"{name}:emulated@{digest}"))


def test_a_region_without_cloud_scheduler_is_refused(vertex: Served) -> None:
    client = CloudSchedulerClient(
        transport="rest", credentials=AnonymousCredentials(), client_options={"api_endpoint": vertex.url}
    )
    parent = "projects/acme/locations/us-west8"
    job = {"schedule": "0 3 * * *", "http_target": {"uri": "http://localhost/x"}}
    with pytest.raises(exceptions.BadRequest, match="'us-west8' is not a valid location"):
        client.create_job(parent=parent, job=job, timeout=WAIT_S)
    with pytest.raises(exceptions.BadRequest, match="'us-west8' is not a valid location"):
        list(client.list_jobs(parent=parent, timeout=WAIT_S))


def test_settings_of_a_bucket_are_refused(files: storage.Client) -> None:
    with pytest.raises(exceptions.BadRequest, match="Invalid bucket name"):
        files.create_bucket("my-google-data")
    made = files.create_bucket("mine", location="us-central1")
    made.add_lifecycle_delete_rule(age=30, matches_prefix=["tmp/"])
    made.add_lifecycle_set_storage_class_rule("NEARLINE", age=7)
    made.patch()
    made.lifecycle_rules = [{"action": {"type": "Delete"}, "condition": {"olderThan": 3}}]
    with pytest.raises(exceptions.BadRequest, match="Unknown condition 'olderThan'"):
        made.patch()
    made = files.bucket("mine")
    made.soft_delete_policy.retention_duration_seconds = 3600
    with pytest.raises(exceptions.BadRequest, match="7 to 90 days"):
        made.patch()


def test_objects_keep_the_class_that_their_bucket_had(files: storage.Client) -> None:
    made = files.create_bucket("mine", location="us-central1")
    made.blob("a").upload_from_string("a")
    made.storage_class = "NEARLINE"
    made.patch()
    made.blob("b").upload_from_string("b")
    assert [each.storage_class for each in files.list_blobs("mine")] == ["STANDARD", "NEARLINE"]
    with pytest.raises(exceptions.BadRequest, match="have one storage class"):
        made.blob("all").compose([made.blob("a"), made.blob("b")])
    # A copy has the class of the bucket in which it is made.
    cold = files.create_bucket("cold", location="us-central1")
    cold.storage_class = "COLDLINE"
    cold.patch()
    assert made.copy_blob(made.blob("a"), cold).storage_class == "COLDLINE"


def test_of_a_chunk_that_is_no_multiple_the_whole_units_are_kept(vertex: Served, files: storage.Client) -> None:
    files.create_bucket("mine", location="us-central1")
    unit = 256 << 10
    data = bytes(range(256)) * ((unit + 5) // 256 + 2)
    url = files.bucket("mine").blob("big").create_resumable_upload_session()
    path = url.removeprefix(vertex.url)

    def send(start: int, stop: int, total: str) -> tuple[int, str]:
        given = {"Content-Range": f"bytes {start}-{stop - 1}/{total}"}
        answer = files._http.put(vertex.url + path, data=data[start:stop], headers=given, allow_redirects=False)
        return answer.status_code, answer.headers.get("Range", "")

    assert send(0, unit + 5, "*") == (308, f"bytes=0-{unit - 1}")
    assert send(unit, len(data), str(len(data)))[0] == 200
    found = io.BytesIO()
    files.bucket("mine").blob("big").download_to_file(found)
    assert found.getvalue() == data
