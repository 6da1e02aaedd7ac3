"""podlift image: one build for the same content, its digest in the project's file, and a sentence for each failure."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import LIMIT_S, REPO, FakeClock, holds

import sdk
from sdk import backends
from sdk.backends.services import Build
from sdk.backends.vertex import client
from sdk.backends.vertex.options import Vertex
from sdk.clock import SystemClock
from sdk.errors import InputError, UnavailableError
from sdk.planning.settings import record
from sdk.testing.vertex import Cloud

PLACE = "projects/podlift/locations/us-central1"
IMAGE = re.compile(r"us-central1-docker\.pkg\.dev/podlift/podlift/(cpu|gpu|tpu):emulated@sha256:[0-9a-f]{64}")
FILE = "[vertex]\nproject = 'podlift' # ours\nbucket = 'podlift-runs'\n"


@pytest.fixture
def cloud(podlift_vertex: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An emulator, and the folder of a project as the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('here')\n")
    (tmp_path / "podlift.toml").write_text(FILE)
    # A build there ends as soon as it is looked at.
    monkeypatch.setattr(SystemClock, "sleep", lambda self, seconds: None)
    return podlift_vertex


def draft() -> tuple[Any, Any]:
    """Return the service of images, and the draft of a build."""
    service = backends.load("vertex").services.images
    assert service is not None
    return service, service.draft("cpu", Vertex(project="podlift"), region=None, account=None, dockerfile=None)


def builds(cloud: Cloud) -> list[dict[str, Any]]:
    return cloud.ask("GET", f"/v1/{PLACE}/builds").get("builds", [])


def images() -> dict[str, str]:
    found = record.project.read_toml(Path("podlift.toml"))["vertex"].get("image", {})
    assert all(IMAGE.fullmatch(image) for image in found.values())
    return found


def fault(operation: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"api": "vertex", "kind": kind, "operation": operation, **more}


def test_it_prints_a_build_that_gcloud_can_submit_and_sends_nothing(cloud: Cloud, here: Callable[..., Any]) -> None:
    cloud.ask("DELETE", "/_requests")
    shown = here("image", "gpu")
    build = json.loads(shown.stdout)
    assert shown.code == 0
    [name], [step] = build["images"], build["steps"]
    assert re.fullmatch(r"us-central1-docker\.pkg\.dev/podlift/podlift/gpu:[0-9a-f]{16}", name)
    assert f"IMAGE={name}" in step["env"] and "tensorflow[and-cuda]==" in step["args"][1]
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", step["args"][1]), "Cloud Build would replace it"
    assert "about 12 minutes" in shown.stderr and "0.07 USD" in shown.stderr
    assert "--no-source --config=FILE --region=us-central1 --project=podlift" in shown.stderr
    assert builds(cloud) == [] and "image" not in Path("podlift.toml").read_text()


@pytest.mark.process
def test_the_step_gives_docker_the_dockerfile_as_it_is(tmp_path, here, monkeypatch) -> None:
    """Cloud Build makes a dollar sign of two."""
    build = json.loads(here("image", "tpu", "--vertex-project", "my-project").stdout)
    [step] = build["steps"]
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$*" >&2\ncat\n')
    docker.chmod(0o755)
    own = dict(each.split("=", 1) for each in step["env"])
    words = [step["entrypoint"], *(each.replace("$$", "$") for each in step["args"])]
    env = {**own, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == (REPO / "Dockerfile").read_text()
    assert done.stderr == f"build --target tpu --tag {build['images'][0]} -\n"


def test_before_the_image_the_plan_names_the_command_its_minutes_and_its_price(cloud, here) -> None:
    shown = here("plan", "train.py", "--backend", "vertex", "--accelerator", "v5e-1")
    advice = "podlift image tpu --submit, which builds one with Cloud Build in about 6 minutes for about 0.04 USD"
    assert f"No container image is configured for vertex. Next: {advice}; or --vertex-image" in shown.stdout
    refused = here("submit", "train.py", "--backend", "vertex", "--accelerator", "v5e-1")
    assert refused.code == 2 and advice in refused.stderr


@pytest.mark.shows("`podlift init vertex` writes the settings")
def test_a_built_image_is_the_default_of_later_plans_by_its_digest(cloud: Cloud, here: Callable[..., Any]) -> None:
    shown = here("image", "--submit")
    assert shown.code == 0, shown.stderr
    [image] = images().values()
    assert shown.stdout.strip() == image
    assert Path("podlift.toml").read_text().startswith(FILE), "the rest of the file stays"
    plan = sdk.plan("train.py", backend="vertex")
    assert Vertex.of(plan.target).image == image
    container = backends.load("vertex").render(plan).body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    assert container["imageUri"] == image
    assert not any("No container image" in each.message for each in plan.findings)
    online = sdk.plan("train.py", backend="vertex", online=True)
    assert any(each.message.startswith(f"The image {image} exists") for each in online.findings)
    other = sdk.plan("train.py", backend="vertex", accelerator="t4")
    assert any("podlift image gpu --submit" in each.message for each in other.findings)


def test_each_place_runs_the_image_of_its_hardware(cloud: Cloud) -> None:
    named = {"cpu": "r/c@sha256:1", "gpu": "r/g@sha256:2", "tpu": "r/t@sha256:3"}
    target = Vertex(project="podlift", bucket="podlift-runs", regions=["us-central1", "us-central1::t4"], image=named)
    plan = sdk.plan("train.py", backend=target)
    kept = Vertex.of(plan.target)
    assert kept.image == {"cpu": "r/c@sha256:1", "gpu": "r/g@sha256:2"}
    found = [kept.at(each, plan.job.resources)[0].image for each in kept.locations]
    assert found == ["r/c@sha256:1", "r/g@sha256:2"]
    holds(" ".join(str(plan).split()), "image cpu r/c@sha256:1", "image gpu r/g@sha256:2")
    assert Vertex.of(sdk.plan("train.py", backend=Vertex(image=named)).target).image == "r/c@sha256:1"
    assert Vertex.of(sdk.plan("train.py", backend=Vertex(image="mine")).target).image == "mine"


def test_the_same_content_is_built_once_also_after_a_lost_reply(cloud: Cloud, here: Callable[..., Any]) -> None:
    cloud.faults(fault("builds.create", "drop_after", times=1))
    first, again = here("image", "cpu", "--submit"), here("image", "cpu", "--submit", "--json")
    found = json.loads(again.stdout)
    assert first.code == 0, first.stderr
    assert found["image"] == first.stdout.strip() and found["build_id"] is None
    assert "was built before, with the same content" in again.stderr
    assert len(builds(cloud)) == 1
    assert Path("podlift.toml").read_text().count("cpu =") == 1


def test_an_unobserved_build_is_neither_repeated_nor_forgotten(cloud: Cloud) -> None:
    service, build = draft()
    cloud.faults(fault("builds.create", "drop_before", times=1))
    with pytest.raises(UnavailableError, match=r"unknown whether a build was started.*--submit again"):
        service.start(build, FakeClock())
    assert builds(cloud) == []


@pytest.mark.parametrize("answer", [{"builds": [{"id": "../.."}]}, {"builds": 7}, []])
def test_an_answer_of_another_shape_starts_no_build(cloud, monkeypatch, answer: object) -> None:
    """It may come from a proxy."""
    sent = []

    def request(method: str, url: str, **_: object) -> object:
        sent.append(method)
        found = SimpleNamespace(status_code=200, headers={}, iter_content=lambda _: [json.dumps(answer).encode()])
        return nullcontext(found)

    service, build = draft()
    monkeypatch.setattr(client, "session", lambda *_: SimpleNamespace(request=request))
    with pytest.raises(UnavailableError, match="is not valid"):
        service.start(build, FakeClock())
    with pytest.raises(UnavailableError, match="is not valid"):
        service.look(build, Build(id="b", state="working"), FakeClock())
    assert set(sent) == {"GET"}


def test_an_interrupt_names_the_next_step_and_the_build_is_found_again(cloud, here, monkeypatch) -> None:
    def interrupt(self: SystemClock, seconds: float) -> None:
        raise KeyboardInterrupt

    cloud.faults({"api": "vertex", "kind": "hold"})
    with monkeypatch.context() as patch:
        patch.setattr(SystemClock, "sleep", interrupt)
        shown = here("image", "cpu", "--submit")
    [build] = builds(cloud)
    assert shown.code == 130
    holds(shown.stderr, f"The build {build['id']} continues.", "Next: podlift image cpu --submit, which waits for it")
    assert f"gcloud builds cancel {build['id']} --region=us-central1 --project=podlift" in shown.stderr
    assert here("image", "cpu", "--submit", "--no-wait").stdout == ""
    cloud.faults()
    again = here("image", "cpu", "--submit")
    assert again.code == 0 and "is being built already" in again.stderr
    assert len(builds(cloud)) == 1 and images()


def test_an_outage_while_a_build_goes_on_says_how_to_find_it_again(cloud, here, monkeypatch) -> None:
    monkeypatch.setattr(client, "_RETRY_S", 0.0)
    cloud.faults(fault("builds.get", "status_before", status=503))
    shown = here("image", "cpu", "--submit")
    [build] = builds(cloud)
    assert shown.code == 3 and images() == {}
    assert f"The build {build['id']} continues." in shown.stderr and "failed: 503" in shown.stderr
    cloud.faults()
    assert here("image", "cpu", "--submit").code == 0 and len(builds(cloud)) == 1


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ("USER_BUILD_STEP", "A line of the Dockerfile failed. Cloud Build says: Build step failure"),
        ("PUSH_NOT_AUTHORIZED", f"roles/artifactregistry.writer on {PLACE}/repositories/podlift"),
        ("PUSH_IMAGE_NOT_FOUND", "The build made no image called us-central1-docker.pkg.dev/podlift/podlift/cpu:"),
        ("INTERNAL_ERROR", "Cloud Build itself failed."),
        ("TIMEOUT", "It took longer than an hour."),
        ("CANCELLED", "It was cancelled."),
    ],
)
def test_a_failed_build_names_the_reason_and_the_next_step(cloud, here, ends: str, sentence: str) -> None:
    cloud.faults({"api": "vertex", "kind": "fail_build", "ends": ends})
    shown = here("image", "cpu", "--submit")
    assert shown.code == 3
    assert sentence in shown.stderr and " Next: " in shown.stderr
    assert images() == {}


@pytest.mark.parametrize(
    ("operation", "role"),
    [
        ("builds.create", "roles/cloudbuild.builds.editor in the project podlift"),
        ("repositories.get", "roles/artifactregistry.reader"),
    ],
)
def test_a_missing_right_names_the_narrowest_role(cloud, here, operation: str, role: str) -> None:
    cloud.faults(fault(operation, "deny"))
    shown = here("image", "cpu", "--submit")
    assert shown.code != 0 and role in shown.stderr
    assert builds(cloud) == [] and images() == {}


def test_a_missing_repository_is_named_with_the_command_before_anything_is_built(cloud, here) -> None:
    name = "//artifactregistry.googleapis.com/projects/podlift/locations/europe-west4/repositories/podlift"
    cloud.ask("POST", "/_project", {"absent": [name]})
    shown = here("image", "cpu", "--submit", "--region", "europe-west4")
    command = "gcloud artifacts repositories create podlift --repository-format=docker --location=europe-west4"
    assert shown.code == 2 and f"{command} --project=podlift" in shown.stderr
    assert builds(cloud) == []


def test_every_mistake_is_told_at_once(cloud: Cloud, here: Callable[..., Any]) -> None:
    Path("Dockerfile").write_text("FROM scratch AS cpu\nCOPY . /src\n")
    words = ["--region", "us-centrall1", "--build-account", "me", "--dockerfile", "Dockerfile"]
    shown = here("image", "gpu", "--vertex-project", "No Project", *words)
    assert "Not the id of a project. Received: 'No Project'" in shown.stderr
    assert "Not a region. Received: 'us-centrall1'. Nearest: 'us-central1'" in shown.stderr
    assert "Not a service account: NAME@PROJECT.iam.gserviceaccount.com. Received: 'me'" in shown.stderr
    holds(shown.stderr, "has no stage 'gpu'. Known: cpu", "copies files, and none are uploaded")
    assert shown.code == 2
    assert "Did you mean 'gpu'?" in here("image", "gpus").stderr


def test_another_dockerfile_and_another_account_are_part_of_the_build(cloud: Cloud, here: Callable[..., Any]) -> None:
    Path("Dockerfile").write_text('FROM python:3.11 AS cpu\nRUN pip install "mine==$VERSION"\n')
    account = "builder@podlift.iam.gserviceaccount.com"
    words = ["image", "cpu", "--dockerfile", "Dockerfile", "--build-account", account]
    build = json.loads(here(*words).stdout)
    assert build["serviceAccount"] == f"projects/podlift/serviceAccounts/{account}"
    assert 'RUN pip install "mine==$$VERSION"' in build["steps"][0]["args"][1]
    assert build["images"] != json.loads(here("image", "cpu").stdout)["images"]
    assert here(*words, "--submit").code == 0


def test_a_file_that_cannot_be_changed_is_refused_before_anything_is_spent(cloud, here) -> None:
    text = "vertex = { project = 'podlift' }\n"
    Path("podlift.toml").write_text(text)
    shown = here("image", "cpu", "--submit")
    assert shown.code == 2 and "cannot be changed" in shown.stderr and "set vertex.image.cpu to" in shown.stderr
    assert Path("podlift.toml").read_text() == text and builds(cloud) == []


def test_settings_in_pyproject_toml_are_kept_there(cloud: Cloud, here: Callable[..., Any]) -> None:
    Path("podlift.toml").unlink()
    Path("pyproject.toml").write_text(
        "[tool.podlift.vertex]\nproject = 'podlift'\n\n[tool.podlift.vertex.image]\n"
        "gpu = 'mine'  # by hand\ncpu = 'r:emulated@old'  # older\n\n[tool.other]\na = 1\n"
    )
    assert here("image", "cpu", "--submit").code == 0
    found = record.project.read_toml(Path("pyproject.toml"))["tool"]
    assert IMAGE.fullmatch(found["podlift"]["vertex"]["image"].pop("cpu"))
    assert found == {"podlift": {"vertex": {"project": "podlift", "image": {"gpu": "mine"}}}, "other": {"a": 1}}
    written = Path("pyproject.toml").read_text()
    assert "  # by hand\n" in written and "  # older\n" in written
    assert not Path("podlift.toml").exists()


@pytest.mark.parametrize("value", ["'r/#1' # one, # all", "{ gpu = 'r/#1', tpu = 'r/#1' } # one, # all"])
def test_one_image_for_all_hardware_stays_the_image_of_the_other_hardware(cloud: Cloud, here, value: str) -> None:
    text = f"{FILE}image = {value}\nmachine = 'n1-standard-8'\n# the end\n"
    Path("podlift.toml").write_text(text)
    real = "us-central1-docker.pkg.dev/podlift/podlift/cpu@sha256:" + "0" * 64
    where = record.place(Path.cwd())
    record.write(where, "vertex.image", "cpu", real)
    assert record.current(where, "vertex.image") == {"gpu": "r/#1", "tpu": "r/#1", "cpu": real}
    [line] = [line for line in where.path.read_text().splitlines() if line.startswith("image = ")]
    assert line.endswith(" } # one, # all")
    assert where.path.read_text().replace(line, f"image = {value}") == text


@pytest.mark.parametrize("below", [False, True])
def test_only_the_comment_about_an_image_is_removed_and_no_line_of_a_text(tmp_path: Path, below: bool) -> None:
    comment = "# not found: image (podlift image)\n"
    text = f'entry = """train.py\n{comment}"""\n{FILE}' if below else f"{FILE}{comment}"
    (tmp_path / "podlift.toml").write_text(text)
    (tmp_path / "pyproject.toml").touch()
    where = record.place(tmp_path)
    record.write(where, "vertex.image", "cpu", "r/c:1")
    assert record.current(where, "vertex.image") == {"cpu": "r/c:1"}
    assert (comment in where.path.read_text()) == below


def test_one_image_for_all_hardware_becomes_no_table_without_need(cloud: Cloud, here, monkeypatch) -> None:
    built = here("image", "cpu", "--submit").stdout.strip()
    text = f"{FILE}image = '{built}'\n"
    Path("podlift.toml").write_text(text)
    assert here("image", "cpu", "--submit").code == 0 and Path("podlift.toml").read_text() == text
    Path("podlift.toml").write_text(f"{FILE}image = 'r:emulated@old'\n")
    shown = here("image", "cpu", "--submit")
    assert "vertex.image was one image for all hardware. Jobs on other hardware keep it: r:emulated@old" in shown.stderr
    monkeypatch.setenv("PODLIFT_VERTEX_IMAGE", '{"gpu": "r/g:1"}')
    assert "PODLIFT_VERTEX_IMAGE has priority over it" in here("image", "cpu", "--submit").stderr
    assert Vertex.of(sdk.plan("train.py", backend="vertex", accelerator="t4").target).image == "r/g:1"


def test_an_option_takes_one_image_or_a_table(cloud: Cloud, here: Callable[..., Any]) -> None:
    words = ("plan", "train.py", "--backend", "vertex", "--accelerator", "t4", "--vertex-image")
    assert "r/g:1" in here(*words, '{"gpu": "r/g:1"}').stdout and "r/all:1" in here(*words, "r/all:1").stdout
    for wrong, said in (
        ('{"gpus": "x"}', "'gpus' is no family of hardware. Did you mean 'gpu'?"),
        ('{"gpu": ""}', "gpu has no image"),
        ("{gpu}", "--vertex-image: must be JSON, such as"),
    ):
        shown = here(*words, wrong)
        assert shown.code == 2 and said in shown.stderr
    with pytest.raises(InputError, match="image: must be the name of an image, or a table"):
        Vertex(image=5)  # type: ignore[arg-type]


def test_the_image_of_an_emulator_is_never_used_on_google_and_replaces_none_of_there(cloud, here, monkeypatch) -> None:
    assert here("image", "cpu", "--submit").code == 0
    real = "us-central1-docker.pkg.dev/podlift/podlift/gpu@sha256:" + "0" * 64
    record.write(record.place(Path.cwd()), "vertex.image", "gpu", real)
    shown = here("image", "gpu", "--submit")
    assert shown.code == 0 and f"keeps {real}" in shown.stderr
    assert record.project.read_toml(Path("podlift.toml"))["vertex"]["image"]["gpu"] == real
    for name in ("PODLIFT_EMULATOR", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    kept = sdk.Vertex(image={"cpu": "r/c:1", "keeper": "r/podlift/cpu:emulated@sha256:0"})
    for target in ("vertex", kept):
        with pytest.raises(InputError, match=r"by an emulator, and no registry has it.*podlift image cpu --submit"):
            sdk.plan("train.py", backend=target)
    assert Vertex.of(sdk.plan("train.py", backend="vertex", accelerator="t4").target).image == real
