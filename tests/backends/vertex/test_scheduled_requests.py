"""The job of Cloud Scheduler that a schedule on Vertex AI gets, whole and read by Google's own messages; refusals."""

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import GOLDEN_FILES, needs
from weekly_schedules import prepared

import sdk
from sdk import InputError
from sdk.backends.vertex.schedule import scheduled_keeper
from sdk.backends.vertex.schedule.cloud_scheduler import CloudScheduler
from sdk.backends.vertex.schedule.scheduler_calls import _failure
from sdk.packaging.runtime_archive import RuntimeFile, entrypoint_file, loader, runtime_archive
from sdk.schedules.creation import Prepared

needs("cronsim", "google.cloud.scheduler_v1")
# With GOLDEN=write, this file writes it anew: read the difference before it is committed.
GOLDEN = GOLDEN_FILES / "vertex" / "triggers.json"
PLACE: dict[str, Any] = {
    "project": "my-project",
    "bucket": "my-bucket",
    "image": f"us-docker.pkg.dev/my-project/train/tf@sha256:{'a' * 64}",
    "service_account": "train@my-project.iam.gserviceaccount.com",
}
KEEPER = "keeper@my-project.iam.gserviceaccount.com"
HOUR_S = 3600.0
ONCE: dict[str, object] = {"timeout": "1h", "retry_preemptions": 0, "retry_infrastructure": 0}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> RuntimeFile:
    return runtime_archive(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def prepare(tmp_path, monkeypatch, runtime) -> Callable[..., Prepared]:
    for name in [name for name in os.environ if name.startswith("PODLIFT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(scheduled_keeper, "runtime_archive", lambda folder: runtime)
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path / "digits")
    Path("train.py").write_text("print(1)\n")

    return partial(prepared, lambda **more: sdk.Vertex(**{**PLACE, **more}))


def rendered(made: Prepared) -> dict[str, Any]:
    """Return the request in JSON, with the posted body decoded, and without values that change with each commit of podlift."""
    request = made.service.render(replace(made.trigger, id="1a2b3c4d", digest="d" * 64))
    found = json.loads(json.dumps(request.body))
    found["httpTarget"]["body"] = json.loads(base64.b64decode(found["httpTarget"]["body"]))
    (key,) = request.files
    spec = json.loads(request.files[key])
    (zone,) = spec["zone"]
    assert base64.b64decode(spec["zone"][zone]).startswith(b"TZif")
    spec["zone"] = {zone: "<rules of the zone>"}
    text = json.dumps({"create": found, "reads": {key: spec}})
    known = {
        json.dumps(loader())[1:-1]: "<loader>",
        entrypoint_file().digest: "<entrypoint>",
        spec["runtime"]["sha256"]: "<runtime>",
        key.rpartition("/")[2].removesuffix(".json"): "<launch spec>",
    }
    for value, name in known.items():
        text = text.replace(value, name)
    return json.loads(text)


SHAPES: dict[str, dict[str, Any]] = {
    "weekly": {},
    "every ten minutes": {"cron": "*/10 * * * *"},
    "every minute": {"cron": "* * * * *"},
    "a queue, a webhook and limits": {
        "overlap": "queue",
        "notify": ("webhook:projects/my-project/secrets/hook/versions/latest",),
        "job": {"timeout": "2h", "retry_preemptions": 1},
    },
    "places, labels and an account for the keeper": {
        "regions": ("europe-west4:spot:l4", "us-central1:standard:l4"),
        "labels": {"team": "vision"},
        "keeper_service_account": KEEPER,
        "location": "europe-west1",
    },
}


def test_the_whole_requests_equal_the_golden_file(prepare) -> None:
    found = {name: rendered(prepare(**more)) for name, more in SHAPES.items()}
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("cron", ["* * * * *", "*/5 * * * *", "*/15 * * * *", "0 0 1 1 *"])
def test_the_last_retry_still_belongs_to_its_slot(prepare, cron) -> None:
    made = prepare(cron)
    retry = rendered(made)["create"]["retryConfig"]
    half_s = made.trigger.period_s / 2
    # Waits of 30, 60 and 120 s, and a minute for each delivery.
    assert sum(30 * 2**number + 60 for number in range(retry["retryCount"])) < half_s
    if retry["retryCount"]:
        assert float(retry["maxRetryDuration"].removesuffix("s")) < half_s
    assert retry["retryCount"] == 3 or half_s < 400


def test_the_plan_names_the_keeper_the_rights_of_each_account_and_the_monthly_price(prepare) -> None:
    made = prepare("0 3 * * *", job=ONCE, keeper_service_account=KEEPER)
    lines = made.service.lines(made.trigger)
    text = dict(lines)
    assert "us-central1 (the region of the first location)" in text["trigger"]
    assert text["keeper"].startswith("one n1-standard-4 in us-central1")
    assert "after 1 h at most: 0.22 USD an hour" in text["keeper"]
    of_firings = "30 firings in the next 30 days x (keeper 0.25 USD at most + run 0.22 USD at most)"
    assert text["a month"] == f"{of_firings} = 14.20 USD at most"
    mine, of_keeper = [value for label, value in lines if label == "rights"]
    assert "iam.serviceAccounts.actAs on keeper@" in mine and "cloudscheduler.jobs.create" in mine
    assert "actAs on keeper@my-project.iam.gserviceaccount.com and train@my-project.iam" in of_keeper
    assert "roles/storage.objectAdmin on gs://my-bucket" in of_keeper and "cloudscheduler.jobs.pause" in of_keeper


def test_a_queue_makes_the_keeper_wait_longer_and_the_month_dearer(prepare) -> None:
    def kept_for_s(made: Prepared) -> float:
        (spec,) = made.service.render(made.trigger).files.values()
        return json.loads(spec)["keep_for_s"]

    alone, queue = (prepare("0 3 * * *", job=ONCE, overlap=overlap) for overlap in ("skip", "queue"))
    assert [kept_for_s(alone), kept_for_s(queue)] == [HOUR_S, 2 * HOUR_S]
    assert kept_for_s(prepare("0 3 * * *", job=ONCE, keeper="30m")) == HOUR_S / 2, "the firing's keeper, too"
    text = dict(queue.service.lines(replace(queue.trigger, max_cost_usd_per_month=12.0)))
    assert "half of it for the end of an earlier firing (overlap='queue')" in text["keeper"]
    assert text["a month"].endswith("= 20.76 USD at most; 12.00 USD a calendar month at most")


def test_all_mistakes_are_named_at_once(prepare, monkeypatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    with pytest.raises(InputError) as caught:
        prepare(
            "0 3 L * *",
            job={"env": {"TOKEN": sdk.FromCaller(), "HOOK": "https://x"}, "inputs": {"rows": "data/{slot:%Y}.csv"}},
            notify=("webhook:HOOK",),
            service_account="train@their-project.iam.gserviceaccount.com",
        )
    parts = [
        "cron: 'L': Cloud Scheduler has no last day (L)",
        "inputs.rows: 'data/{slot:%Y}.csv' is on this machine's disk",
        "only accepts service accounts of its project, which is 'my-project'. Received: 'train@their-project.iam",
        "vertex_keeper_service_account='NAME@my-project.iam.gserviceaccount.com'",
        "TOKEN: a copied value (FromCaller(), --env NAME) comes from the machine that submits",
        "webhook:HOOK names a variable",
        "--env HOOK would store the URL, which is a secret, with the schedule. Next: put the URL into Secret Manager",
    ]
    assert [part for part in parts if part not in "\n".join(caught.value.problems)] == []
    assert len(caught.value.problems) == 5


IMAGE = "us-docker.pkg.dev/my-project/train"
MONTH = {"max_cost_usd_per_month": 2.0, "job": {"timeout": "12h"}}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"service_account": None}, "Cloud Scheduler needs a service account"),
    ({"keeper_service_account": "me@a.com"}, "This is not a service account of a project. Received: 'me@a.com'"),
    (MONTH, "may cost 39.33 USD, 36.71 USD of it for its keeper. Next: a higher limit, or a shorter --timeout, with"),
    ({**MONTH, "keeper": "12h"}, "may cost 5.28 USD, 2.66 USD of it for its keeper. Next: a higher limit"),
    (
        {"max_cost_usd_per_month": 2e6, "keeper": "12h"},
        "without timeout or max_cost_usd, the total cost of a firing's jobs has no limit",
    ),
    ({"location": "europe"}, "location: Cloud Scheduler is in regions such as us-central1. Received: 'europe'"),
    ({"location": "us-west8"}, "There is no Cloud Scheduler in us-west8. It can keep a job in another region"),
    ({"bucket": None}, "No bucket is configured for vertex"),
    ({"job": {"inputs": {"rows": "train.py"}}}, "inputs.rows"),
    ({"image": f"{IMAGE}/{'x' * 1_000_000}/tf@sha256:{'a' * 64}"}, "is too large"),
    ({"max_cost_usd_per_month": -1.0}, "max_cost_usd_per_month must be a finite number above 0. Received: -1.0"),
    ({"trigger": "server"}, "trigger: unknown value. Received: 'server'. Did you mean 'serve'?"),
]


@pytest.mark.parametrize(("more", "sentence"), MISTAKES)
def test_a_mistake_is_refused_with_the_next_step(prepare, more, sentence) -> None:
    with pytest.raises(InputError) as caught:
        prepare(**more)
    assert sentence in str(caught.value)


def test_a_tagged_image_is_a_warning_with_the_command_that_shows_its_digest(prepare) -> None:
    made = prepare(image=f"{IMAGE}/tf:2.19")
    (warning,) = [text for text in made.warnings if "image" in text]
    assert f"vertex_image='{IMAGE}/tf@sha256:...'" in warning
    assert f"gcloud artifacts docker images describe {IMAGE}/tf:2.19" in warning
    assert not prepare().warnings
    known = replace(made.plan, facts=replace(made.plan.facts, online={"image": {"digest": "sha256:abc"}}))
    (found,) = [each for each in CloudScheduler().review(replace(made.trigger, plan=known)) if "image" in each.message]
    assert f"Next: vertex_image='{IMAGE}/tf@sha256:abc'." in found.message


def test_an_image_for_keepers_is_in_request_and_plan_and_needs_a_digest_too(prepare) -> None:
    def image(made: Prepared) -> str:
        (pool,) = rendered(made)["create"]["httpTarget"]["body"]["jobSpec"]["workerPoolSpecs"]
        return pool["containerSpec"]["imageUri"]

    made = prepare(image={"cpu": PLACE["image"], "keeper": f"{IMAGE}/small:1"})
    assert image(made) == f"{IMAGE}/small:1"
    assert sdk.Vertex.of(made.plan.target).image_on("cpu") == PLACE["image"] == image(prepare())
    (warning,) = made.warnings
    assert warning.startswith("The keeper's image is named by a tag")
    assert f"Next: vertex_image.keeper='{IMAGE}/small@sha256:...'" in warning
    keeper = dict(made.service.lines(made.trigger))["keeper"]
    assert keeper.startswith(f"one n1-standard-4 in us-central1 with the image {IMAGE}/small:1 for each firing")
    assert not prepare(image={"cpu": PLACE["image"], "keeper": f"{IMAGE}/small@sha256:{'c' * 64}"}).warnings


@pytest.mark.parametrize(
    ("status", "text", "step"),
    [
        (403, "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x", "by a cron there"),
        (400, "Location must equal europe-west1 because the App Engine app is located there", "Next: --location europe-west1."),
        (400, "Location 'europe-west4' is not a valid location. Use ListLocations", "Next: --location REGION"),
        (403, "lacks permission cloudscheduler.jobs.create for X (or the resource may not exist).", "is not in this region"),
        (403, "Cloud Scheduler API has not been used in project 1 before", "gcloud services enable cloudscheduler"),
        (403, "The principal lacks iam.serviceAccounts.actAs", "roles/iam.serviceAccountUser"),
        (403, "Permission 'cloudscheduler.jobs.update' denied", "roles/cloudscheduler.admin, in the project p"),
    ],
)  # fmt: skip
def test_an_answer_of_cloud_scheduler_is_quoted_and_explained(status, text, step) -> None:
    shown = str(_failure(status, text, "projects/p/locations/europe-west4/jobs/podlift-x-y"))
    assert text.rstrip(".") in shown and step in shown
