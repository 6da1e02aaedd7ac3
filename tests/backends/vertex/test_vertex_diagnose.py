"""Every error text that is known leads to a reason, a sentence and something to do."""

import pytest

from sdk import Reason
from sdk.backends.vertex.diagnose import diagnose

QUOTA = "429 The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_"

# (text, code) -> reason, what must be said
TEXTS = [
    (QUOTA + "nvidia_l4_gpus", 8, "quota", ["custom_model_training_nvidia_l4_gpus", "quotas", "Compute Engine"]),
    (QUOTA + "tpu_v2,aiplatform.googleapis.com/custom_model_training_pd_ssd", 8, "quota", ["tpu_v2", "pd_ssd"]),
    (
        "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service 'aiplatform.googleapis.com'",
        8,
        "quota",
        ["a minute"],
    ),
    ("Quota exceeded for quota metric 'aiplatform.googleapis.com/x' of project p", 8, "quota", ["used up"]),
    (
        "Resources are insufficient in region: us-central1. Try a different region or use a different accelerator.",
        8,
        "stockout",
        ["not a quota problem", "provisioning='flex'"],
    ),
    ("The job failed with a STOCKOUT error.", 8, "stockout", ["region"]),
    ("ZONE_RESOURCE_POOL_EXHAUSTED", 8, "stockout", ["region"]),
    ("400 Machine type n1-standard-1 is not supported.", 3, "refused", ["podlift accelerators"]),
    ("Unsupported region for Vertex AI, select from frozenset({'us-east1'})", 3, "refused", ["vertex_regions"]),
    ("The bucket gs://b must be in the same region as the job: us-central1", 3, "refused", ["--location=REGION"]),
    ("multi-region buckets are not supported", 3, "refused", ["single-region"]),
    (
        "403 Permission 'iam.serviceAccounts.actAs' denied on service account x@p.iam.gserviceaccount.com",
        7,
        "permission",
        ["roles/iam.serviceAccountUser"],
    ),
    ("You do not have permission to act as service account: actAs x@p", 7, "permission", ["serviceAccountUser"]),
    ("Service account x@p.iam.gserviceaccount.com does not exist.", 3, "refused", ["vertex_service_account"]),
    (
        "service-1@gcp-sa-aiplatform-cc.iam.gserviceaccount.com does not have permission to access Artifact Registry "
        "repository projects/p/locations/us/repositories/r",
        7,
        "image",
        ["service agents", "roles/artifactregistry.reader"],
    ),
    ("Failed to pull image us-docker.pkg.dev/p/r/i:latest: MANIFEST_UNKNOWN", 3, "image", ["vertex_image"]),
    ("Image us-docker.pkg.dev/p/r/i:v9 not found", 5, "image", ["vertex_image"]),
    (
        "Vertex AI API has not been used in project 12 before or it is disabled. Enable it by visiting https://...",
        7,
        "permission",
        ["gcloud services enable aiplatform.googleapis.com"],
    ),
    ("Permission denied on resource project my-projekt. (CONSUMER_INVALID)", 7, "permission", ["vertex_project"]),
    (
        "Permission 'aiplatform.customJobs.create' denied on resource '//aiplatform.googleapis.com/projects/p'",
        7,
        "permission",
        ["roles/aiplatform.user"],
    ),
    ("x@p does not have storage.objects.get access to the object", 7, "permission", ["roles/storage.objectAdmin"]),
    ("Request had insufficient authentication scopes. (ACCESS_TOKEN_SCOPE_INSUFFICIENT)", 7, "permission", ["own"]),
    ("Request had invalid authentication credentials.", 16, "permission", ["application-default login"]),
    ("bigquery: access denied: project s4f2a8e9c1b3d5e7f-tp", 7, "user_error", ["CLOUD_ML_PROJECT_ID"]),
    (
        "404 for http://metadata/computeMetadata/v1/instance/service-accounts/default/identity",
        5,
        "permission",
        ["generateIdToken"],
    ),
    ("pip: ConnectTimeoutError(HTTPSConnection(host='index'): ConnectTimeout", 4, "infrastructure", ["image"]),
    (
        "The replica workerpool1-0 ran out of memory and exited with a non-zero status of 137.",
        3,
        "out_of_memory",
        ["larger one"],
    ),
    (
        "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error. To find out more about "
        "why your job exited please check the logs: https://console.cloud.google.com/logs/viewer?project=1",
        3,
        "user_error",
        ["without a record"],
    ),
    ("The replica workerpool0-0 exited with a non-zero status of 139.", 3, "killed", ["SIGSEGV"]),
    ("The replica workerpool0-0 exited with a non-zero status of 143.", 3, "preempted", ["SIGTERM"]),
    ("Internal error occurred for the current attempt.", 13, "infrastructure", ["podlift resume"]),
    ("The job has exceeded the maximum timeout of 3600s.", 4, "timeout", ["--timeout"]),
    ("CANCELED", 1, "cancelled", ["cancelled"]),
    ("403 The caller does not have permission", 7, "permission", ["permission"]),
]


@pytest.mark.parametrize(("text", "code", "reason", "said"), TEXTS, ids=[text[:40] for text, *_ in TEXTS])
def test_a_known_text_has_a_reason_a_sentence_and_advice(text: str, code: int, reason: str, said: list[str]) -> None:
    found = diagnose(text, code)
    assert found.reason is Reason(reason)
    for words in said:
        assert words in found.message
    assert " ".join(text.split()) in found.message, "what Google says itself is never left out"


def test_a_text_that_nobody_knows_is_passed_on_as_it_is() -> None:
    found = diagnose("The flux capacitor is\n overheated.", 13)
    assert found.reason is Reason.INFRASTRUCTURE
    assert '"The flux capacitor is overheated."' in found.message
    assert not found.certain


def test_no_text_at_all_is_said_to_be_none() -> None:
    assert "does not report why" in diagnose("", 0).message


def test_what_is_advised_depends_on_the_kind_of_machine() -> None:
    stockout = "Resources are insufficient in region: europe-west4."
    assert "flex" in diagnose(stockout).advice
    assert "provisioning='standard'" in diagnose(stockout, provisioning="spot").advice
    assert "preemptible_" in diagnose(QUOTA + "cpus", provisioning="spot").advice


def test_the_replica_that_failed_is_named() -> None:
    assert diagnose("The replica workerpool1-3 ran out of memory and exited").replica == "workerpool1-3"
    assert diagnose("The replica workerpool0-0 exited with a non-zero status of 1.").replica == "workerpool0-0"


def test_an_internal_error_of_the_service_is_not_said_to_have_been_tried_again() -> None:
    assert diagnose("Internal error occurred.").sentence == "Vertex AI had an internal error."
