"""Every error text that is known leads to a reason, a sentence and something to do."""

import pytest

from sdk import Reason
from sdk.backends.vertex.job.diagnose import diagnose, diagnose_program

TRAINING = "aiplatform.googleapis.com/custom_model_training_"
QUOTA = f"429 The following quota metrics exceed quota limits: {TRAINING}"
EXITED = "The replica workerpool0-0 exited with a non-zero status of"
LOGS = (
    "Termination reason: Error. To find out more about why your job exited please check the logs: "
    "https://console.cloud.google.com/logs/viewer?project=1"
)
MEMORY = "The replica workerpool0-0 ran out of memory and exited with a non-zero status of 9."
RATE = "Quota exceeded for quota metric 'R' and limit 'R per minute' of service 'aiplatform.googleapis.com'"
SPOT = f"429 RESOURCE_EXHAUSTED: {QUOTA[4:]}preemptible_cpus,{TRAINING}preemptible_nvidia_l4_gpus"
STOCKOUT = "Resources are insufficient in region: a. Try a different region or use a different accelerator."
DISABLED = "Vertex AI API has not been used in project 12 before or it is disabled. Enable it by visiting https://..."
RETRY = "WARNING: Retrying (Retry(total=4)) after connection broken by 'ConnectTimeoutError(<pip._vendor>, 'Connection"
PULL = "does not have permission to access Artifact Registry repository projects/p/locations/us/repositories/r"
DOWNLOAD = "Permission 'artifactregistry.repositories.downloadArtifacts' denied"
IDENTITY = "beta services identity create --service=aiplatform.googleapis.com --project=1. Then: gcloud artifacts"
READER = "add-iam-policy-binding r --location=us --project=p --role=roles/artifactregistry.reader"
CREATE = "Permission 'aiplatform.customJobs.create' denied on resource '//aiplatform.googleapis.com/projects/p'"
ELSEWHERE = (
    f"The Cloud Storage bucket of `gs://{'b' * 63}/{'runs/' * 40}` is in location `us`. It must be in the same "
    "regional location as the service location `us-central1`."
)
METADATA = "404 for http://metadata/computeMetadata/v1/instance/service-accounts/default/identity"
ACTING = "403 Permission 'iam.serviceAccounts.actAs' denied on service account x@p.iam.gserviceaccount.com"
ACT_AS = "You do not have permission to act as service_account: x@p.iam.gserviceaccount.com. (or it may not exist)."
# Text, code, reason, and words of the message.
TEXTS = [
    (QUOTA + "nvidia_l4_gpus", 8, "quota", "custom_model_training_nvidia_l4_gpus", "quotas", "Compute Engine"),
    (RATE, 8, "quota", "a minute"),
    ("Quota exceeded for quota metric 'aiplatform.googleapis.com/x' of project p", 8, "quota", "used up"),
    (STOCKOUT, 8, "stockout", "not a quota problem", "provisioning='flex'"),
    ("The job failed with a STOCKOUT error.", 8, "stockout", "region"),
    ("ZONE_RESOURCE_POOL_EXHAUSTED", 8, "stockout", "region"),
    ("400 Machine type n1-standard-1 is not supported.", 3, "refused", "podlift accelerators"),
    (SPOT, 8, "quota", "preemptible_cpus", "preemptible_nvidia_l4_gpus", "iam-admin/quotas"),
    ("Unsupported region for Vertex AI, select from frozenset({'us-east1'})", 3, "refused", "vertex_regions"),
    ("The bucket gs://b must be in the same region as the job: us-central1", 3, "refused", "--location=REGION"),
    ("multi-region buckets are not supported", 3, "refused", "single-region"),
    ("The TensorBoard instance must be in the same region as the job.", 3, "refused", "TensorBoard", "vertex_regions"),
    ("KMS key k must be in the location of the job", 3, "refused", "key"),
    ("The PersistentResource r is in a different region than the job.", 3, "refused", "persistent resource"),
    (ACTING, 7, "permission", "roles/iam.serviceAccountUser"),
    ("Service account x@p.iam.gserviceaccount.com does not exist.", 3, "refused", "vertex_service_account"),
    (f"service-1@gcp-sa-aiplatform-cc.iam.gserviceaccount.com {PULL}", 7, "image", "service agents", IDENTITY, READER),
    (DOWNLOAD, 7, "image", "--project=PROJECT. Then: gcloud artifacts", "service-NUMBER@gcp-sa-aiplatform-cc"),
    (ELSEWHERE, 9, "refused", "The bucket is not in the job's region"),
    (ACT_AS, 3, "permission", "or there is no such account", "roles/iam.serviceAccountUser"),
    ("Failed to pull image us-docker.pkg.dev/p/r/i:latest: MANIFEST_UNKNOWN", 3, "image", "vertex_image"),
    ("Image us-docker.pkg.dev/p/r/i:v9 not found", 5, "image", "vertex_image"),
    (DISABLED, 7, "permission", "gcloud services enable aiplatform.googleapis.com"),
    ("Permission denied on resource project my-projekt. (CONSUMER_INVALID)", 7, "permission", "vertex_project"),
    (CREATE, 7, "permission", "roles/aiplatform.user"),
    ("x@p does not have storage.objects.get access to the object", 7, "permission", "roles/storage.objectAdmin"),
    ("Request had insufficient authentication scopes. (ACCESS_TOKEN_SCOPE_INSUFFICIENT)", 7, "permission", "own"),
    ("Request had invalid authentication credentials.", 16, "permission", "application-default login"),
    ("bigquery: access denied: project s4f2a8e9c1b3d5e7f-tp", 7, "user_error", "CLOUD_ML_PROJECT_ID"),
    (METADATA, 5, "permission", "generateIdToken"),
    (f"{RETRY} to pypi.org timed out. (connect timeout=15)')': /simple/keras/", 4, "infrastructure", "in the image"),
    (MEMORY, 3, "out_of_memory", "up to 40 %", "larger one"),
    (f"{EXITED} 134. Termination reason: Error.", 3, "killed", "SIGABRT"),
    (f"{EXITED} 1. {LOGS}", 3, "user_error", "without a record"),
    (f"{EXITED} 139.", 3, "killed", "SIGSEGV"),
    (f"{EXITED} 143.", 3, "preempted", "SIGTERM"),
    ("Internal error occurred for the current attempt", 13, "internal", "podlift resume"),
    ("The job has exceeded the maximum timeout of 3600s.", 4, "timeout", "--timeout"),
    ("The job was not started within max_wait_duration.", 8, "stockout", "longer wait"),
    ("CANCELED", 1, "cancelled", "cancelled"),
    ("403 The caller does not have permission", 7, "permission", "permission"),
]


@pytest.mark.parametrize("row", TEXTS, ids=[text[:40] for text, *_ in TEXTS])
def test_a_known_text_has_a_reason_a_sentence_and_advice(row) -> None:
    text, code, reason, *said = row
    found = diagnose(text, code)
    assert found.reason is Reason(reason)
    for words in said:
        assert words in found.message
    assert " ".join(text.split()) in found.message, "what Google says itself is never left out"
    assert found.advice or found.reason is Reason.CANCELLED, "there is a fix for each"


def test_only_a_rate_limit_is_worth_a_retry_and_a_bare_exit_code_names_no_cause() -> None:
    found = {text: diagnose(text, code) for text, code, *_ in TEXTS}
    assert {text for text, each in found.items() if each.busy} == {text for text in found if "per minute" in text}
    open_causes = {text for text in found if "exited with a non-zero status" in text and "memory" not in text}
    assert {text for text, each in found.items() if not each.certain} == open_causes
    assert diagnose("429 RATE_LIMIT_EXCEEDED").busy


def test_an_error_of_a_program_is_explained_only_if_a_program_can_receive_that_text() -> None:
    words = [
        "has not been used in project", "storage.objects.get", "ACCESS_TOKEN_SCOPE", "-tp", "service-accounts", "ConnectTimeout"
    ]  # fmt: skip
    expected = {text for text, *_ in TEXTS if any(word in text for word in words)}
    assert {text for text, *_ in TEXTS if diagnose_program(text) is not None} == expected


@pytest.mark.parametrize(
    ("code", "reason", "sentence"),
    [
        (2, "infrastructure", "The job ended."),
        (7, "permission", "The job ended."),
        (13, "internal", "The job ended."),
        (400, "refused", ""),
        (403, "permission", ""),
        (404, "refused", ""),
        (429, "quota", ""),
    ],
)
def test_an_unknown_text_is_quoted_and_its_code_decides(code, reason, sentence) -> None:
    found = diagnose("The flux capacitor is\n overheated.", code)
    assert found.reason is Reason(reason)
    assert found.sentence == sentence, "a rejected request was no job"
    assert '"The flux capacitor is overheated."' in found.message
    assert not found.certain


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        ("Forbidden: 403 x@p does not have storage.objects.get access to the object", "permission", "objectAdmin"),
        ("NotFound: 404 Not found: Dataset project s4f2a8e9c1b3d5e7f-tp:data", "user_error", "CLOUD_ML_PROJECT_ID"),
    ],
)
def test_an_answer_of_google_to_a_program_is_explained_too(error, reason, said) -> None:
    found = diagnose_program(error)
    assert found.reason is Reason(reason) and said in found.message
    assert error not in found.message, "the program's own message has it"


def test_an_error_of_the_program_itself_is_left_to_its_traceback() -> None:
    for error in ("KeyError: 'label'", "TimeoutError: timed out", "unknown metric precision-tp", "internal error"):
        assert diagnose_program(error) is None


def test_the_advice_depends_on_the_kind_of_machine() -> None:
    stockout = "Resources are insufficient in region: europe-west4."
    assert "flex" in diagnose(stockout).advice
    assert "provisioning='standard'" in diagnose(stockout, provisioning="spot").advice
    assert "preemptible_" in diagnose(QUOTA + "cpus", provisioning="spot").advice


def test_the_replica_that_failed_is_named() -> None:
    assert diagnose("The replica workerpool1-3 ran out of memory and exited").replica == "workerpool1-3"
    assert diagnose("The replica workerpool0-0 exited with a non-zero status of 1.").replica == "workerpool0-0"
