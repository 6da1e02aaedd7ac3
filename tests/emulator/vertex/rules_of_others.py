"""Rules of Cloud Scheduler, Cloud Build, the project and training pipelines.

Sources: job.proto and target.proto of Cloud Scheduler v1, cloudbuild v1, serviceusage v1beta1, and the protos of aiplatform v1
(read 2026-11).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from rule import PLACE, PROJECT, Rule, bucket, lacking
from rules_of_jobs import REPOSITORY, pool

from sdk.emulator.project.state import account_name

SCHEDULED = f"/v1/{PLACE}/jobs"
NAME = f"{PLACE}/jobs/retrain"
VERTEX = "https://us-central1-aiplatform.googleapis.com"
TARGET = {"uri": f"{VERTEX}/v1/x", "httpMethod": "POST"}
CUSTOM_TASK = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
STEP = {"name": "gcr.io/cloud-builders/docker", "args": ["build", "."]}
BUILDER = f"projects/{PROJECT}/serviceAccounts/builder@{PROJECT}.iam.gserviceaccount.com"
SCHEDULE = {"name": NAME, "schedule": "0 3 * * *"}
DEEP = json.loads("[" * 400 + "]" * 400)


def scheduled(**changes: Any) -> dict[str, Any]:
    return {**SCHEDULE, "timeZone": "Etc/UTC", "httpTarget": TARGET, **changes}


def target(**changes: Any) -> dict[str, Any]:
    return scheduled(httpTarget={**TARGET, **changes})


def taken(says: str, body: Any, part: str = "", **more: Any) -> Rule:
    return Rule(says=f"Cloud Scheduler: {says}", body=body, part=part, **{"path": SCHEDULED, **more})


def refused(says: str, body: Any, part: str, code: int = 400, **more: Any) -> Rule:
    name = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 405: "UNIMPLEMENTED"}.get(code, "")
    return taken(says, body, part, **{"code": code, "name": name, **more})


def cloud_scheduler() -> Iterator[Rule]:
    yield taken("a job", scheduled(), "ENABLED")
    yield taken("the service names a job", scheduled(name=""), f"{PLACE}/jobs/")
    exists = [("POST", SCHEDULED, scheduled())]
    for region in ("us-west8", "mars-west1", "us-central1-a"):
        place = f"/v1/projects/{PROJECT}/locations/{region}"
        words = "is not a valid location. Use ListLocations"
        yield refused(f"{region} is no location", scheduled(name=""), words, path=f"{place}/jobs")
        yield refused(f"no jobs in {region}", None, words, path=f"{place}/jobs", method="GET")
        yield refused(f"no location {region}", None, "", 404, path=place, method="GET")
    yield taken("a name of 500 characters", scheduled(name=f"{PLACE}/jobs/{'j' * 500}"))
    elsewhere = f"projects/{PROJECT}/locations/us-east1/jobs/x"
    foreign = NAME.replace(PROJECT, "other")
    for name in (f"{PLACE}/jobs/{'j' * 501}", f"{PLACE}/jobs/a.b", "retrain", elsewhere, foreign):
        yield refused(f"no name {name[-40:]} ({len(name)})", scheduled(name=name), "Job name must be formatted")
    yield taken("a description has 500 characters", scheduled(description="d" * 500))
    yield refused("a description has no 501", scheduled(description="d" * 501), "501 characters; 500 are allowed")
    for cron in ("*/5 * * * *", "0 3 1 1 1", "0 3 * * 7", "0 3 * * mon"):
        yield taken(f"the schedule {cron!r}", scheduled(schedule=cron))
    for cron, part in (
        ("", "Schedule or time zone is invalid."), ("0 3 * *", "Schedule or time zone is invalid."),
        ("0 25 * * *", "Schedule or time zone is invalid"), ("0 3 L * *", "has no last day"),
        ("0 3 * * 5#2", "has no nth weekday"), ("0 0 3 * * *", "has no seconds"), ("0 3 30 2 *", "never fires"),
        ("every 5 minutes", "legacy schedules"),
    ):  # fmt: skip
        yield refused(f"no schedule {cron!r}", scheduled(schedule=cron), part)
    yield refused("no zone CEST", scheduled(timeZone="CEST"), "time zone")
    yield refused("no zone Europe/Berln", scheduled(timeZone="Europe/Berln"), "Did you mean 'Europe/Berlin'?")
    for field, values, wrong, part in (
        ("attemptDeadline", ("15s", "1800s"), ("14s", "1801s"), "[15s, 1800s]"),
        ("retryConfig", ({"retryCount": 5},), ({"retryCount": 6}, {"retryCount": -1}), "from 0 to 5. Received: "),
        ("retryConfig", (), ({"minBackoffDuration": "-1s"},), "must not be negative"),
        ("retryConfig", (), ({"maxDoublings": -1},), "0 or more"),
    ):
        for value in values:
            yield taken(f"{field} {value}", scheduled(**{field: value}))
        for value in wrong:
            yield refused(f"no {field} {value}", scheduled(**{field: value}), part)
    yield refused("an unknown field", scheduled(colour="red"), "Unknown name")
    retrain = f"{SCHEDULED}/retrain"
    yield refused("jobs are not stopped", {}, "does not serve", 405, path=f"{retrain}:stop", before=exists)
    yield refused("a run has no fields", {"force": True}, "Unknown name", path=f"{retrain}:run", before=exists)
    yield refused("a field can be encoded", {"\ud800": True}, "Unknown name", path=f"{retrain}:run", before=exists)
    yield refused("a body is an object", [], "The body is not an object")
    view = f"{retrain}?view=FULL"
    yield refused("a job has no view", None, "Cannot bind query parameter", path=view, method="GET", before=exists)


def targets() -> Iterator[Rule]:
    yield refused("a job has a target", SCHEDULE, "Exactly one target")
    for kind in ("pubsubTarget", "appEngineHttpTarget"):
        yield refused(f"{kind} is not served", {**SCHEDULE, kind: {}}, "does not serve", 405)
    yield refused("a job has one target", scheduled(pubsubTarget={"topicName": "t"}), "oneof")
    yield taken("a URI of 2083 characters", target(uri=f"http://localhost/{'x' * 2066}"))
    internet, no_path = "never to the internet", "Google serves no such path"
    for uri, part in (
        ("ftp://host/x", 'begin with \\"http://\\"'), ("", "uri"), (f"http://localhost/{'x' * 2067}", "2083 are allowed"),
        ("https://example.com/hook", internet), (f"{VERTEX}.evil.example/v1", internet), (f"{VERTEX}:8443/v1", internet),
        ("https://user@127.0.0.1/x", internet), (f"{VERTEX}/_reset", no_path), (f"{VERTEX}/%5Freset", no_path),
        ("http://localhost/a b", "not a URI"), ("http://localhost:x/", "not a URI"),
    ):  # fmt: skip
        yield refused(f"no URI {uri[-20:]!r} ({len(uri)})", target(uri=uri), part)
    body = base64.b64encode(b"{}").decode()
    patch = target(httpMethod="PATCH", body=body)
    yield taken("a body of PATCH without a type is binary", patch, "application/octet-stream")
    account = {"serviceAccountEmail": f"sched@{PROJECT}.iam.gserviceaccount.com"}
    for says, changes, part in (
        ("a body is not for GET", {"httpMethod": "GET", "body": body}, "POST, PUT or PATCH. Received: GET."),
        ("a body is base64", {"body": "***"}, "TYPE_BYTES"),
        ("a long body is base64", {"body": "YQ=" + "=" * 2_000_000}, "TYPE_BYTES"),
        ("a body of more than 1 MB", {"body": "YWFh" * 350_000}, "(1 MB) are allowed"),
        ("headers of 80 kB", {"headers": {"X-A": "v" * 80_000}}, "smaller than 80000"),
        ("a header has a name", {"headers": {"X A": "v"}}, "Not a header of HTTP"),
        ("a header has one line", {"headers": {"X-A": "a\nb: c"}}, "Not a header"),
        ("a token has an account", {"oauthToken": {}}, "Not the email address"),
        ("one authorization", {"oauthToken": account, "oidcToken": account}, "oneof field 'authorization_header'"),
    ):
        yield refused(says, target(**changes), part)
    yield taken("a token of an account", target(oauthToken=account))
    other = {"serviceAccountEmail": "sched@other.iam.gserviceaccount.com"}
    yield refused("no token of another project", target(oauthToken=other), "iam.serviceAccounts.actAs", 403)


def builds() -> Iterator[Rule]:
    def create(says: str, code: int = 200, part: str = "", **build: Any) -> Rule:
        body = {"steps": [STEP], **build}
        return Rule(says=f"Cloud Build: {says}", path=f"/v1/{PLACE}/builds", body=body, code=code, part=part)

    own = {"serviceAccount": BUILDER}
    yield create("default logging has a bucket", part="cloudbuild-logs.googleusercontent.com")
    yield create("a bucket of one's own has the log", part='"logsBucket":"gs://mine"', logsBucket="gs://mine", **own)
    yield create("an argument has 10,000 characters", steps=[{**STEP, "args": ["x" * 10_000]}])
    yield create("a dollar is doubled", steps=[{**STEP, "args": ["$$HOME"]}])
    for says, part, build in (
        ("a build has steps", "no steps specified", {"steps": []}),
        ("a step has a name", "a build step has no name", {"steps": [{"args": []}]}),
        ("a step has no field arg", "does not know this field", {"steps": [{**STEP, "arg": []}]}),
        ("an argument has no 10,001 characters", "too long", {"steps": [{**STEP, "args": ["x" * 10_001]}]}),
        ("a substitution is built in", "is not a valid built-in", {"steps": [{**STEP, "args": ["$HOME"]}]}),
        ("an account of one's own needs a place for logs", "logs_bucket", own),
        ("an account has a full name", "Not the name of a service account", {"serviceAccount": "builder@acme"}),
        ("a build has no field image", "does not know this field", {"image": "x"}),
    ):
        yield create(says, 400, part, **build)
    regional = {"defaultLogsBucketBehavior": "REGIONAL_USER_OWNED_BUCKET"}
    for options in ({"logging": "CLOUD_LOGGING_ONLY"}, {"logging": "NONE"}, regional):
        yield create(f"an account of one's own with {options}", options=options, **own)
    for path in ("builds/none", "repositories/train/packages/cpu/tags/x"):
        yield Rule(says=f"no {path}", method="GET", path=f"/v1/{PLACE}/{path}", code=404, name="NOT_FOUND")
    listed, gone = f"/v1/{PLACE}/repositories/train/dockerImages", [lacking(absent=[REPOSITORY])]
    yield Rule(says="images of no repository", method="GET", path=listed, code=404, name="NOT_FOUND", before=gone)


def project() -> Iterator[Rule]:
    accounts, email = f"/v1/projects/{PROJECT}/serviceAccounts", f"a@{PROJECT}.iam.gserviceaccount.com"
    repositories = f"/v1/{PLACE}/repositories?repositoryId=train"
    gone, made = [lacking(absent=[account_name(email)])], [("POST", repositories, {"format": "DOCKER"})]
    policy = {"policy": {"bindings": [{"role": "roles/viewer", "members": [f"serviceAccount:{email}"]}]}}
    stale = {"policy": {**policy["policy"], "etag": "b2xk"}}
    withheld = {"member": "user:you@example.com", "resource": f"//cloudresourcemanager.googleapis.com/projects/{PROJECT}",
                "role": "roles/viewer", "permissions": ["x.y.get"]}  # fmt: skip
    asked, set_policy = {"permissions": ["x.y.get", "x.y.list"]}, f"/v1/projects/{PROJECT}:setIamPolicy"
    test, granted = f"/v1/projects/{PROJECT}:testIamPermissions", '["x.y.list"]'
    service = f"/v1beta1/projects/{PROJECT}/services/aiplatform.googleapis.com"
    agents = "gcp-sa-aiplatform.iam.gserviceaccount.com"
    body = {"accountId": "a"}
    for says, path, body_, code, words, before in (
        ("an account is made", accounts, body, 200, email, []),
        ("an account exists once", accounts, body, 409, "ALREADY_EXISTS", [("POST", accounts, body)]),
        ("a repository exists once", repositories, {}, 409, "ALREADY_EXISTS", made),
        ("a policy names an account", set_policy, policy, 200, email, []),
        ("a policy names no account that is not there", set_policy, policy, 400, "does not exist", gone),
        ("a policy is changed by its etag", set_policy, stale, 409, "ABORTED", []),
        ("the agents of Vertex AI are made", f"{service}:generateServiceIdentity", None, 200, agents, []),
        ("only what is granted is listed", test, asked, 200, granted, [lacking(withheld=[withheld])]),
    ):
        yield Rule(says=says, path=path, body=body_, code=code, part=words, before=before)
    one = f"{accounts}/{email}"
    yield Rule(says="an account that is not there", method="GET", path=one, code=404, name="NOT_FOUND", before=gone)
    quota = f"{service}/consumerQuotaMetrics/x"
    yield Rule(says="quotas: one metric", method="GET", path=quota, part="effectiveLimit")


def pipelines() -> Iterator[Rule]:
    def create(says: str, code: int = 200, part: str = "", before: Any = (), **changes: Any) -> Rule:
        inputs = {"worker_pool_specs": [pool()]}
        body = {"displayName": "x", "trainingTaskDefinition": CUSTOM_TASK, "trainingTaskInputs": inputs, **changes}
        says = f"training pipelines: {says}"
        return Rule(says=says, path=f"/v1/{PLACE}/trainingPipelines", body=body, code=code, part=part, before=before)

    yield create("numbers of a Struct", trainingTaskInputs={"worker_pool_specs": [pool(1.0)]})
    inputs, model = "training_pipeline.training_task_inputs", "training_pipeline.model_to_upload"
    automl = CUSTOM_TASK.replace("custom", "automl_tabular")
    for says, part, changes in (
        ("a display name", "training_pipeline.display_name", {"displayName": ""}),
        ("no name of 129 characters", "128 are allowed", {"displayName": "x" * 129}),
        ("a definition", "not set: training_pipeline.training_task_definition", {"trainingTaskDefinition": None}),
        ("a definition of text", "Invalid value at 'training_pipeline.training", {"trainingTaskDefinition": 7}),
        ("no AutoML", "Unsupported training task definition", {"trainingTaskDefinition": automl}),
        ("inputs", f"not set: {inputs}", {"trainingTaskInputs": None}),
        ("no managed data set", "input_data_config cannot be set", {"inputDataConfig": {"datasetId": "1"}}),
        ("no success without the model", model, {"modelToUpload": {"displayName": "m"}}),
        ("no success without any model", "uploads no model", {"modelToUpload": {}}),
        ("shallow inputs", f"Invalid value at '{inputs}'", {"trainingTaskInputs": DEEP}),
        ("a shallow name", "Invalid value at 'training_pipeline.display_name'", {"displayName": DEEP}),
        ("a model of text that can be encoded", f"Invalid value at '{model}'", {"modelToUpload": {"\ud800": 1}}),
        ("no unknown field", 'Unknown name \\"colour\\"', {"colour": "red"}),
    ):
        yield create(says, 400, part, **changes)
    unreadable = f"Unable to parse `{inputs}` into custom task `inputs` defined in the file: gs:"
    right, account = {"worker_pool_specs": [pool()]}, "a@acme.iam.gserviceaccount.com"
    retired = pool(containerSpec={"imageUri": "gcr.io/cloud-aiplatform/training/tf-gpu.2-8", "command": ["true"]})
    absent, elsewhere = [lacking(absent=[account_name(account)])], [bucket("other", "US")]
    output = {"output_uri_prefix": "gs://other/x"}
    for says, part, sent, before in (
        ("an object", unreadable, "worker_pool_specs", ()),
        ("worker pools", f"{inputs}.worker_pool_specs", {}, ()),
        ("pools that are objects", unreadable, {"worker_pool_specs": [None]}, ()),
        ("a list of pools", unreadable, {"worker_pool_specs": {}}, ()),
        ("no field machine", 'Unknown name \\"machine\\"', {**right, "machine": "n1"}, ()),
        ("a whole strategy", unreadable, {**right, "scheduling": {"strategy": 4.5}}, ()),
        ("a known strategy", unreadable, {**right, "scheduling": {"strategy": 99}}, ()),
        ("a whole count", unreadable, {"worker_pool_specs": [pool(1.5)]}, ()),
        ("a list of words", unreadable, {"worker_pool_specs": [pool(containerSpec={"command": "sh"})]}, ()),
        ("an output here", "`us`", {**right, "base_output_directory": output}, elsewhere),
        ("no retired image", "past its end of availability", {"worker_pool_specs": [retired]}, ()),
        ("an account that exists", "permission to act as", {**right, "service_account": account}, absent),
    ):
        yield create(f"inputs have {says}", 400, part, before, trainingTaskInputs=sent)


def not_emulated() -> Iterator[Rule]:
    instead = "It serves customJobs and trainingPipelines (v1, REST), and Cloud Scheduler's jobs in place of schedules."
    for collection, method, path in (
        ("pipelineJobs", "POST", ""), ("schedules", "POST", "/1:pause"), ("schedules", "GET", ""), ("models", "DELETE", "/1"),
        ("tensorboards", "GET", ""), ("metadataStores/default", "GET", ""), ("hyperparameterTuningJobs", "POST", ""),
    ):  # fmt: skip
        says, body = f"{method} {collection}{path} is not emulated", {} if method == "POST" else None
        where = f"/v1/{PLACE}/{collection}{path}"
        yield Rule(says=says, method=method, path=where, body=body, code=405, part=instead, name="UNIMPLEMENTED")
    operation = f"/v1/{PLACE}/operations/1"
    yield Rule(says="an operation that is not there", method="GET", path=operation, code=404, name="NOT_FOUND")


RULES = [*cloud_scheduler(), *targets(), *builds(), *project(), *pipelines(), *not_emulated()]
