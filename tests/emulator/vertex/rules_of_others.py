"""Rules of Cloud Scheduler, Cloud Build, the project and training pipelines.

Sources: job.proto and target.proto of Cloud Scheduler v1, cloudbuild v1, serviceusage v1beta1, and the protos of aiplatform v1
(read 2026-11).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from rule import PLACE, PROJECT, REGION, Rule, bucket, lacking
from rules_of_jobs import JOBS, REPOSITORY, job, pool

from sdk.emulator.project.state import account_name

SCHEDULED = f"/v1/{PLACE}/jobs"
NAME = f"{PLACE}/jobs/retrain"
TARGET = {"uri": "https://us-central1-aiplatform.googleapis.com/v1/x", "httpMethod": "POST"}
CUSTOM_TASK = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
STEP = {"name": "gcr.io/cloud-builders/docker", "args": ["build", "."]}
BUILDER = f"projects/{PROJECT}/serviceAccounts/builder@{PROJECT}.iam.gserviceaccount.com"


def scheduled(**changes: Any) -> dict[str, Any]:
    return {"name": NAME, "schedule": "0 3 * * *", "timeZone": "Etc/UTC", "httpTarget": TARGET, **changes}


def target(**changes: Any) -> dict[str, Any]:
    return scheduled(httpTarget={**TARGET, **changes})


def cloud_scheduler() -> Iterator[Rule]:
    def create(says: str, body: Any, code: int = 200, part: str = "", path: str = SCHEDULED, **more: Any) -> Rule:
        return Rule(says=f"Cloud Scheduler: {says}", path=path, body=body, code=code, part=part, **more)

    yield create("a job", scheduled(), part="ENABLED")
    yield create("the service names a job", scheduled(name=""), part=f"{PLACE}/jobs/")
    exists = [("POST", SCHEDULED, scheduled())]
    yield create("a job exists once", scheduled(), 409, "already exists", before=exists, name="ALREADY_EXISTS")
    for region in (
        "europe-north2",
        "me-central2",
        "us-east7",
        "us-west8",
        "us-west9",
        "mars-west1",
        "us",
        "us-central1-a",
    ):
        elsewhere = f"/v1/projects/{PROJECT}/locations/{region}/jobs"
        says = f"{region} is no location"
        yield create(
            says,
            scheduled(name=""),
            400,
            "is not a valid location. Use ListLocations",
            elsewhere,
            name="INVALID_ARGUMENT",
        )
        location = f"/v1/projects/{PROJECT}/locations/{region}"
        yield Rule(
            says=f"Cloud Scheduler: no location {region}", method="GET", path=location, code=404, name="NOT_FOUND"
        )
    for name, code in (
        (NAME, 200),
        (f"{PLACE}/jobs/{'j' * 500}", 200),
        (f"{PLACE}/jobs/{'j' * 501}", 400),
        (f"{PLACE}/jobs/a b", 400),
        (f"{PLACE}/jobs/a.b", 400),
        ("retrain", 400),
        (f"projects/{PROJECT}/locations/us-east1/jobs/x", 400),
    ):
        part = "Job name must be formatted" if code == 400 else ""
        yield create(f"the name {name[-30:]} ({len(name)})", scheduled(name=name), code, part)
    for length, code in ((500, 200), (501, 400)):
        yield create(
            f"a description of {length} characters",
            scheduled(description="d" * length),
            code,
            "description" if code == 400 else "",
        )
    for cron, code in (
        ("*/5 * * * *", 200), ("0 3 1 1 1", 200), ("0 3 * * 7", 200), ("0 3 * * mon", 200), ("", 400), ("0 3 * *", 400),
        ("0 25 * * *", 400), ("60 3 * * *", 400), ("0 3 L * *", 400), ("0 3 * * 5#2", 400), ("0 0 3 * * *", 400),
        ("daily", 400),
    ):  # fmt: skip
        yield create(
            f"the schedule {cron!r}",
            scheduled(schedule=cron),
            code,
            "Schedule or time zone is invalid" if code == 400 else "",
        )
    for zone, code in (("Europe/Berlin", 200), ("UTC", 200), ("Mars/Base", 400), ("CEST", 400)):
        yield create(f"the zone {zone}", scheduled(timeZone=zone), code, "time zone" if code == 400 else "")
    yield create("a job has a target", {"name": NAME, "schedule": "0 3 * * *"}, 400, "Exactly one target")
    for kind in ("pubsubTarget", "appEngineHttpTarget"):
        other = {"name": NAME, "schedule": "0 3 * * *", kind: {}}
        yield create(f"{kind} is not served", other, 405, "does not serve", name="UNIMPLEMENTED")
    both = scheduled(pubsubTarget={"topicName": "t"})
    yield create("a job has one target", both, 400, "oneof")
    for uri, code in (("ftp://host/x", 400), ("host/x", 400), ("", 400), (f"http://localhost/{'x' * 2066}", 200),
                      (f"http://localhost/{'x' * 2067}", 400)):  # fmt: skip
        yield create(f"the URI {uri[:20]!r} ({len(uri)})", target(uri=uri), code, "uri" if code == 400 else "")
    body = base64.b64encode(b"{}").decode()
    for method, code in (("POST", 200), ("PUT", 200), ("PATCH", 200), ("GET", 400), ("DELETE", 400), ("HEAD", 400)):
        yield create(
            f"a body of {method}",
            target(httpMethod=method, body=body),
            code,
            "POST, PUT or PATCH" if code == 400 else "",
        )
    yield create("a body is base64", target(body="***"), 400, "TYPE_BYTES")
    yield create("a body without a type is binary", target(body=body), part="application/octet-stream")
    yield create("headers of 80 kB", target(headers={"X-A": "v" * 80_000}), 400, "smaller than 80000")
    yield create("a header has a name", target(headers={"X A": "v"}), 400, "Not a header of HTTP")
    large = target(body=base64.b64encode(b"x" * (1 << 20)).decode())
    yield create("a job of more than 1 MB", large, 400, "1 MB")
    for seconds, code in ((15, 200), (1800, 200), (14, 400), (1801, 400)):
        yield create(
            f"a deadline of {seconds} s",
            scheduled(attemptDeadline=f"{seconds}s"),
            code,
            "[15s, 1800s]" if code == 400 else "",
        )
    for count, code in ((0, 200), (5, 200), (6, 400), (-1, 400)):
        yield create(
            f"{count} retries", scheduled(retryConfig={"retryCount": count}), code, "from 0 to 5" if code == 400 else ""
        )
    yield create(
        "a backoff is not negative", scheduled(retryConfig={"minBackoffDuration": "-1s"}), 400, "must not be negative"
    )
    for email, code in (
        (f"sched@{PROJECT}.iam.gserviceaccount.com", 200),
        ("sched", 400),
        ("sched@other.iam.gserviceaccount.com", 403),
    ):
        part = {200: "", 400: "Not the email address", 403: "iam.serviceAccounts.actAs"}[code]
        yield create(f"a token of {email}", target(oauthToken={"serviceAccountEmail": email}), code, part)
    tokens = {
        each: {"serviceAccountEmail": f"sched@{PROJECT}.iam.gserviceaccount.com"}
        for each in ("oauthToken", "oidcToken")
    }
    yield create("one authorization", target(**tokens), 400, "oneof")
    yield create("an unknown field", scheduled(colour="red"), 400, "Unknown name")
    for verb in ("pause", "resume", "run"):
        yield create(
            f"{verb} of a job that is not there", {}, 404, path=f"{SCHEDULED}/retrain:{verb}", name="NOT_FOUND"
        )
    mask = f"{SCHEDULED}/retrain?updateMask=colour"
    yield Rule(
        says="Cloud Scheduler: a mask has known fields",
        method="PATCH",
        path=mask,
        body={},
        code=400,
        part="mask",
        before=exists,
    )


def builds() -> Iterator[Rule]:
    def create(says: str, code: int = 200, part: str = "", **build: Any) -> Rule:
        body = {"steps": [STEP], **build}
        return Rule(says=f"Cloud Build: {says}", path=f"/v1/{PLACE}/builds", body=body, code=code, part=part)

    logs, own = "cloudbuild-logs.googleusercontent.com", {"serviceAccount": BUILDER}
    yield create("default logging has a bucket", part=logs)
    yield create("a bucket of one's own has the log", part='"logsBucket":"gs://mine"', logsBucket="gs://mine")
    yield create("a build has steps", 400, "no steps specified", steps=[])
    yield create("a step has a name", 400, "a build step has no name", steps=[{"args": []}])
    yield create("an argument has 10,000 characters", steps=[{**STEP, "args": ["x" * 10_000]}])
    yield create("an argument has no 10,001 characters", 400, "too long", steps=[{**STEP, "args": ["x" * 10_001]}])
    yield create(
        "a substitution is built in", 400, "not a valid built-in substitution", steps=[{**STEP, "args": ["$HOME"]}]
    )
    yield create("a dollar is doubled", steps=[{**STEP, "args": ["$$HOME"]}])
    yield create("an account of one's own needs a place for logs", 400, "logs_bucket", **own)
    yield create("an account of one's own with Cloud Logging", options={"logging": "CLOUD_LOGGING_ONLY"}, **own)
    yield create("an account of one's own without logs", options={"logging": "NONE"}, **own)
    yield create("an account of one's own with a bucket", logsBucket="gs://mine", **own)
    regional = {"defaultLogsBucketBehavior": "REGIONAL_USER_OWNED_BUCKET"}
    yield create("an account of one's own with a regional bucket", options=regional, **own)
    yield create("an account has a full name", 400, "Not the name of a service account", serviceAccount="builder@acme")
    yield create("a build has no field image", 400, "image", image="x")
    for path in (
        "builds/none",
        "repositories/train/packages/cpu/tags/x",
        "repositories/train/dockerImages/cpu@sha256:1",
    ):
        yield Rule(says=f"no {path}", method="GET", path=f"/v1/{PLACE}/{path}", code=404, name="NOT_FOUND")
    gone = [lacking(absent=[REPOSITORY])]
    listed = f"/v1/{PLACE}/repositories/train/dockerImages"
    yield Rule(says="images of no repository", method="GET", path=listed, code=404, name="NOT_FOUND", before=gone)


def project() -> Iterator[Rule]:
    accounts, email = f"/v1/projects/{PROJECT}/serviceAccounts", f"a@{PROJECT}.iam.gserviceaccount.com"
    body = {"accountId": "a"}
    yield Rule(says="an account is made", path=accounts, body=body, part=email)
    yield Rule(
        says="an account exists once",
        path=accounts,
        body=body,
        code=409,
        name="ALREADY_EXISTS",
        before=[("POST", accounts, body)],
    )
    gone = [lacking(absent=[account_name(email)])]
    yield Rule(
        says="an account that is not there",
        method="GET",
        path=f"{accounts}/{email}",
        code=404,
        name="NOT_FOUND",
        before=gone,
    )
    repositories = f"/v1/{PLACE}/repositories?repositoryId=train"
    made = [("POST", repositories, {"format": "DOCKER"})]
    yield Rule(
        says="a repository exists once", path=repositories, body={}, code=409, name="ALREADY_EXISTS", before=made
    )
    policy = {"policy": {"bindings": [{"role": "roles/viewer", "members": [f"serviceAccount:{email}"]}]}}
    path = f"/v1/projects/{PROJECT}:setIamPolicy"
    yield Rule(says="a policy names an account", path=path, body=policy, part=email)
    yield Rule(
        says="a policy names no account that is not there",
        path=path,
        body=policy,
        code=400,
        part="does not exist",
        before=gone,
    )
    stale = {"policy": {**policy["policy"], "etag": "b2xk"}}
    yield Rule(says="a policy is changed by its etag", path=path, body=stale, code=409, name="ABORTED")
    identity = f"/v1beta1/projects/{PROJECT}/services/aiplatform.googleapis.com:generateServiceIdentity"
    yield Rule(says="the agents of Vertex AI are made", path=identity, part="gcp-sa-aiplatform.iam.gserviceaccount.com")
    withheld = {"member": "user:you@example.com", "resource": f"//cloudresourcemanager.googleapis.com/projects/{PROJECT}",
                "role": "roles/viewer", "permissions": ["x.y.get"]}  # fmt: skip
    asked = {"permissions": ["x.y.get", "x.y.list"]}
    path = f"/v1/projects/{PROJECT}:testIamPermissions"
    yield Rule(
        says="only what is granted is listed",
        path=path,
        body=asked,
        part='["x.y.list"]',
        before=[lacking(withheld=[withheld])],
    )


def pipelines() -> Iterator[Rule]:
    inputs = {"worker_pool_specs": [pool()]}

    def create(says: str, code: int = 200, part: str = "", before: Any = (), **changes: Any) -> Rule:
        body = {"displayName": "x", "trainingTaskDefinition": CUSTOM_TASK, "trainingTaskInputs": inputs, **changes}
        says = f"training pipelines: {says}"
        return Rule(says=says, path=f"/v1/{PLACE}/trainingPipelines", body=body, code=code, part=part, before=before)

    yield create("a pipeline runs a custom job", part="backingCustomJob")
    yield create("a display name", 400, "display_name", displayName="")
    yield create("a definition", 400, "training_task_definition", trainingTaskDefinition="")
    automl = CUSTOM_TASK.replace("custom", "automl_tabular")
    yield create("no AutoML", 400, "Unsupported training task definition", trainingTaskDefinition=automl)
    yield create("inputs", 400, "training_task_inputs", trainingTaskInputs=None)
    yield create("inputs that can be read", 400, "Unable to parse", trainingTaskInputs={"machine": "n1"})
    yield create("numbers of a Struct", trainingTaskInputs={"worker_pool_specs": [pool(1.0)]})
    yield create("no managed data set", 400, "input_data_config", inputDataConfig={"datasetId": "1"})
    model = {"displayName": "m", "containerSpec": {"imageUri": "x"}}
    yield create("no success without the model", 400, "uploads no model", modelToUpload=model)
    output = {**inputs, "base_output_directory": {"output_uri_prefix": "gs://other/x"}}
    yield create("an output elsewhere", 400, "is in location `us`", [bucket("other", "US")], trainingTaskInputs=output)
    account = {**inputs, "service_account": "a@acme.iam.gserviceaccount.com"}
    absent = [lacking(absent=[account_name("a@acme.iam.gserviceaccount.com")])]
    yield create("an account that exists", 400, "permission to act as", absent, trainingTaskInputs=account)
    yield create("an unknown field", 400, "Unknown name", colour="red")


def not_emulated() -> Iterator[Rule]:
    instead = "It serves customJobs and trainingPipelines (v1, REST), and Cloud Scheduler's jobs in place of schedules."
    for collection in ("pipelineJobs", "schedules", "models"):
        for method, path in (("POST", ""), ("GET", ""), ("GET", "/1"), ("POST", "/1:pause"), ("DELETE", "/1")):
            yield Rule(
                says=f"{collection}: {method} {path or '/'} is not emulated, and the answer says what is",
                method=method,
                path=f"/v1/{PLACE}/{collection}{path}",
                body={} if method == "POST" else None,
                code=405,
                part=instead,
                name="UNIMPLEMENTED",
            )


def ended() -> Iterator[Rule]:
    """What must have ended before it is deleted."""
    yield Rule(
        says="customJobs: one that runs is not deleted",
        method="DELETE",
        path="",
        code=400,
        part="Cancel it first",
        name="FAILED_PRECONDITION",
        before=[("POST", JOBS, job())],
        found=lambda served: f"/v1/{served.ask('GET', JOBS).json()['customJobs'][0]['name']}",
    )
    yield Rule(says="operations: none", method="GET", path=f"/v1/{PLACE}/operations/1", code=404, name="NOT_FOUND")
    quota = f"/v1beta1/projects/{PROJECT}/services/aiplatform.googleapis.com/consumerQuotaMetrics/x"
    yield Rule(says="quotas: one metric", method="GET", path=quota, part="effectiveLimit")
    yield Rule(
        says="logs: a filter is known",
        path="/v2/entries:list",
        body={"resourceNames": ["projects/p"], "filter": "x ="},
        code=400,
    )
    yield Rule(says="logs: a project is named", path="/v2/entries:list", body={"filter": ""}, code=400)
    yield Rule(says="jobs: a list of no jobs is empty", method="GET", path=JOBS, part="{}")
    yield Rule(says=f"regions: {REGION} is one", method="GET", path=JOBS)


RULES = [
    *cloud_scheduler(), *builds(), *project(), *pipelines(), *not_emulated(), *ended(),
]  # fmt: skip
