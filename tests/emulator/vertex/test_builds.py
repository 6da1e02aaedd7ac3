"""Cloud Build and Artifact Registry in the emulator: the results of a build, and the refusals of the services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from served import PARENT as PLACE
from served import Served, body

NAME = "us-central1-docker.pkg.dev/acme/podlift/cpu"
STEP = {"name": "gcr.io/cloud-builders/docker", "args": ["build", "."]}

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def ask(vertex: Served) -> Ask:
    def send(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = vertex.ask(method, f"/v1/{PLACE}/{path}", body)
        return answer.status_code, answer.json()

    return send


def finished(ask: Ask, **build: Any) -> dict[str, Any]:
    status, operation = ask("POST", "builds", {"steps": [STEP], "images": [f"{NAME}:t1"], **build})
    assert status == 200, operation
    id = operation["metadata"]["build"]["id"]
    states = [ask("GET", f"builds/{id}")[1]["status"] for _ in range(3)]
    assert (operation["metadata"]["build"]["status"], states[0], states[1]) == ("QUEUED", "WORKING", states[2])
    done = ask("GET", f"operations/{operation['name'].rpartition('/')[2]}")[1]
    assert done["done"]
    return done["response"]


def test_a_build_pushes_a_digest_of_its_steps_with_its_tag(ask: Ask) -> None:
    digest = finished(ask)["results"]["images"][0]["digest"]
    assert finished(ask)["results"]["images"][0]["digest"] == digest
    assert finished(ask, steps=[{**STEP, "args": ["build", "x"]}])["results"]["images"][0]["digest"] != digest
    repository = "repositories/podlift"
    tag = ask("GET", f"{repository}/packages/cpu/tags/t1")[1]
    assert tag["version"].startswith(f"{PLACE}/{repository}/packages/cpu/versions/sha256:")
    image = ask("GET", f"{repository}/dockerImages/cpu@{digest}")[1]
    assert (image["uri"], image["tags"]) == (f"{NAME}@{digest}", ["t1"])
    assert len(ask("GET", f"{repository}/dockerImages")[1]["dockerImages"]) == 2
    assert ask("GET", f"{repository}/packages/cpu/tags/t2")[0] == 404


def test_a_push_without_a_repository_fails_as_the_real_one_does(ask: Ask, vertex: Served) -> None:
    name = f"//artifactregistry.googleapis.com/{PLACE}/repositories/podlift"
    vertex.ask("POST", "/_project", {"absent": [name]})
    found = finished(ask)
    assert (found["status"], found["failureInfo"]["type"]) == ("FAILURE", "PUSH_FAILED")


def test_builds_are_found_by_their_tags_and_their_status(ask: Ask) -> None:
    id = ask("POST", "builds", {"steps": [STEP], "tags": ["mine", "b"]})[1]["metadata"]["build"]["id"]
    ask("POST", "builds", {"steps": [STEP], "tags": ["other"]})

    def found(filter: str) -> list[str]:
        return [each["id"] for each in ask("GET", f"builds?filter={filter}")[1].get("builds", ())]

    assert found('tags="mine"') == [id] == found('tags="b" AND status="QUEUED"')
    assert found('tags="mine" AND status="SUCCESS"') == []
    assert ask("GET", "builds?filter=create_time>1")[0] == 400
    assert ask("POST", f"builds/{id}:cancel")[1]["status"] == "CANCELLED"
    assert ask("POST", f"builds/{id}:cancel")[0] == 400


def test_an_image_that_was_built_and_is_gone_is_not_run(ask: Ask, vertex: Served) -> None:
    digest = finished(ask)["results"]["images"][0]["digest"]

    def create(image: str) -> None:
        job = body()
        job["job_spec"]["worker_pool_specs"][0]["container_spec"]["image_uri"] = image
        vertex.create(job)

    for there in (f"{NAME}:t1", f"{NAME}@{digest}", f"{NAME}:emulated@{digest}"):
        create(there)
    for gone in (f"{NAME}:t2", NAME, f"{NAME}@sha256:{'0' * 64}", f"{NAME}:emulated@sha256:{'0' * 64}"):
        with pytest.raises(exceptions.BadRequest, match="was not found"):
            create(gone)
    # An image that the registry has never had may be anywhere.
    create("us-central1-docker.pkg.dev/acme/podlift/other:1")
    vertex.ask("POST", "/_reset")
    with pytest.raises(exceptions.BadRequest, match="was not found"):
        create(f"{NAME}:emulated@{digest}")
