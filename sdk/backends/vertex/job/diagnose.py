"""Explains the error texts of Vertex AI: the reason, a sentence and advice. Pure, and one table.

The texts are from Google's documentation, its clients and real jobs (read 2026-11). To add one, add a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....status import Reason

_QUOTAS = "https://console.cloud.google.com/iam-admin/quotas"
# google.rpc.Code
_CANCELLED = 1
# The lowest HTTP status; google.rpc.Code has lower numbers.
_HTTP = 100
_SIGNALS = {134: "SIGABRT", 139: "SIGSEGV", 137: "SIGKILL", 143: "SIGTERM"}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The meaning of an error text."""

    reason: Reason
    sentence: str  # the problem
    advice: str = ""
    vendor_text: str = ""
    replica: str = ""  # such as "workerpool0-0"
    certain: bool = True  # False if the text was not recognised, or does not tell the cause
    busy: bool = False  # the same request may succeed later
    signal: str = ""  # the one that ended a replica, by its exit code

    @property
    def message(self) -> str:
        end = "" if self.vendor_text.endswith(".") else "."
        quoted = f'Vertex AI reports: "{self.vendor_text}"{end}' if self.vendor_text else ""
        return " ".join(part for part in (self.sentence, quoted, self.advice) if part)


class _ErrorPattern(NamedTuple):
    reason: Reason
    pattern: str
    sentence: str
    advice: str | Callable[[re.Match[str], str], str] = ""
    certain: bool = True
    busy: bool = False
    # A program may receive the text from one of Google's services, too.
    program: bool = False


def _quota(match: re.Match[str], provisioning: str) -> str:
    metrics = [name.strip() for name in match["metrics"].strip().rstrip(".").split(",") if name.strip()]
    kind = "" if provisioning == "standard" else " Spot and flex-start machines count against the preemptible_ quotas."
    return (
        f"Request a higher quota of {', '.join(metrics)} in that region: {_QUOTAS}. These quotas are Vertex AI's own, separate "
        f"from those of Compute Engine.{kind}"
    )


def _stockout(_: re.Match[str], provisioning: str) -> str:
    others = {
        "spot": "vertex_provisioning='standard'",
        "flex": "a longer wait",
        "standard": "vertex_provisioning='flex', which waits (GPUs)",
    }
    return f"This is not a quota problem. Try another region or accelerator (podlift accelerators), or {others[provisioning]}."


def _let_pull(match: re.Match[str], _: str) -> str:
    """Name the commands that let the agents pull: in a new project they do not exist yet, and no policy can name them."""
    number, project = match["number"] or "NUMBER", match["project"] or "PROJECT"
    name, region = match["name"] or "REPOSITORY", match["region"] or "REGION"
    agents = " and ".join(
        f"serviceAccount:service-{number}@{agent}.iam.gserviceaccount.com"
        for agent in ("gcp-sa-aiplatform-cc", "gcp-sa-aiplatform")
    )
    return (
        "In a new project they do not exist yet: gcloud beta services identity create --service=aiplatform.googleapis.com "
        f"--project={match['number'] or 'PROJECT'}. Then: gcloud artifacts repositories add-iam-policy-binding {name} "
        f"--location={region} --project={project} --role=roles/artifactregistry.reader --member=MEMBER, for {agents}."
    )


def _enable(match: re.Match[str], _: str) -> str:
    return f"gcloud services enable {match['service'] or 'aiplatform.googleapis.com'} --project=PROJECT"


# The first match counts: specific patterns come before general ones.
# fmt: off
_PATTERNS = (
    _ErrorPattern(Reason.QUOTA, r"quota metrics exceed quota limits:\s*(?P<metrics>[\w./, -]+)",
        "The job exceeds the project's quota.",
        _quota),
    _ErrorPattern(Reason.QUOTA, r"RATE_LIMIT_EXCEEDED|Quota exceeded for quota metric .*per minute",
        "Too many requests were sent within a minute.",
        "Wait a minute.", busy=True),
    _ErrorPattern(Reason.QUOTA,
        r"Quota '?(?P<metrics>[\w.-]+)'? exceeded|Quota exceeded for quota metric '(?P<other>[^']+)'",
        "The project's quota is used up.",
        lambda match, _: f"Request a higher quota of {match['metrics'] or match['other']}: {_QUOTAS}."),
    _ErrorPattern(Reason.STOCKOUT,
        r"Resources are insufficient in region|STOCKOUT|ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources",
        "No such machine was available in any zone of the region.",
        _stockout),
    _ErrorPattern(Reason.REFUSED, r"[Mm]achine type \S+ is not supported",
        "Vertex AI does not offer this machine for training, or not in this region.",
        "Choose another machine or region: podlift accelerators."),
    _ErrorPattern(Reason.REFUSED, r"[Uu]nsupported region|[Ll]ocation \S+ is not (found|supported)",
        "Vertex AI training is not available in this region.",
        "Choose another region (vertex_regions)."),
    _ErrorPattern(Reason.REFUSED,
        r"(dual|multi)-region|bucket.{0,1200}(same|different|must be in).{0,20}(region|location)",
        "The bucket is not in the job's region.",
        "Vertex AI requires a single-region bucket in the job's region: gcloud storage buckets create gs://NAME "
        "--location=REGION."),
    _ErrorPattern(Reason.REFUSED,
        r"(?i)(tensorboard|kms|persistent ?resource|encryption).{0,120}(same|different|must be in).{0,30}(region|location)",
        "A resource that the job names is not in the job's region.",
        "Its TensorBoard, its key and its persistent resource have to be in one of vertex_regions."),
    _ErrorPattern(Reason.PERMISSION, r"permission to act as service_account",
        "The caller may not run jobs as this service account, or there is no such account.",
        "If it exists (gcloud iam service-accounts list), the submitting account needs roles/iam.serviceAccountUser on it "
        "(vertex_service_account)."),
    _ErrorPattern(Reason.PERMISSION, r"actAs|iam\.serviceAccounts\.actAs",
        "The caller may not run jobs as this service account.",
        "The submitting account needs roles/iam.serviceAccountUser on the job's service account (vertex_service_account)."),
    _ErrorPattern(Reason.REFUSED, r"[Ss]ervice account \S+ (does not exist|was not found|not found)",
        "There is no such service account.",
        "Choose an existing one (vertex_service_account): gcloud iam service-accounts list."),
    _ErrorPattern(Reason.IMAGE,
        r"(service-(?P<number>\d+)@\S+ )?does not have permission to access Artifact Registry"
        r"( repository projects/(?P<project>[^/]+)/locations/(?P<region>[\w-]+)/repositories/(?P<name>[\w-]+))?"
        r"|artifactregistry\.repositories\.downloadArtifacts",
        "The image may not be pulled. Vertex AI's service agents pull it, not the job's service account.",
        _let_pull),
    _ErrorPattern(Reason.IMAGE,
        r"MANIFEST_UNKNOWN|[Ff]ailed to pull image|ErrImagePull|ImagePullBackOff|[Ii]mage .{1,300}?not (be )?found",
        "There is no such image, or it cannot be pulled.",
        "Check its name and tag (vertex_image). Vertex AI's prebuilt TensorFlow images are retired."),
    _ErrorPattern(Reason.PERMISSION,
        r"SERVICE_DISABLED|has not been used in project \S+ before|(?P<service>\w+\.googleapis\.com) is disabled",
        "The API is not enabled in this project.", _enable, program=True),
    _ErrorPattern(Reason.PERMISSION,
        r"CONSUMER_INVALID|Permission denied on resource project|project \S+ (was )?not found",
        "There is no such project, or the caller has no access to it.",
        "Set vertex_project to the project's id, not its name: gcloud projects list."),
    _ErrorPattern(Reason.PERMISSION, r"aiplatform\.customJobs\.(get|list)\b",
        "The caller may not see the jobs of this project.",
        "This requires roles/aiplatform.viewer on the project, or a role that includes it."),
    _ErrorPattern(Reason.PERMISSION, r"aiplatform\.customJobs\.\w+",
        "The caller may not manage jobs in this project.",
        "This requires roles/aiplatform.user on the project."),
    _ErrorPattern(Reason.PERMISSION, r"storage\.objects\.\w+|storage\.buckets\.\w+",
        "The job may not use the bucket.",
        "Its service account needs roles/storage.objectAdmin on it.", program=True),
    _ErrorPattern(Reason.PERMISSION, r"ACCESS_TOKEN_SCOPE_INSUFFICIENT|insufficient authentication scopes",
        "The default service account of Vertex AI cannot do this from inside a job.",
        "Use your own service account (vertex_service_account).", program=True),
    _ErrorPattern(Reason.PERMISSION,
        r"UNAUTHENTICATED|invalid authentication credentials|could not automatically determine credentials",
        "There are no valid credentials.",
        "gcloud auth application-default login"),
    _ErrorPattern(Reason.USER_ERROR, r"projects?\W+[\w-]*-tp\b|\b(?=[a-z]*\d)[a-z0-9]{12,}-tp\b",
        "The program used the project that contains Google's machines instead of yours.",
        "Pass the project to clients explicitly. CLOUD_ML_PROJECT_ID contains its number.", program=True),
    _ErrorPattern(Reason.PERMISSION,
        r"instance/service-accounts/\S*identity|identity token.{0,60}404|404.{0,80}identity",
        "The metadata server of a job with its own service account does not issue identity tokens.",
        "Request one from iamcredentials.googleapis.com: generateIdToken.", program=True),
    _ErrorPattern(Reason.INFRASTRUCTURE,
        r"ConnectTimeout.{0,120}(pypi|simple|index|pip)|(pip|index).{0,160}ConnectTimeout",
        "The machines cannot reach the package index.",
        "Install the requirements in the image.", program=True),
    _ErrorPattern(Reason.OUT_OF_MEMORY, r"The replica (?P<replica>\S+) ran out of memory",
        "A replica ran out of memory.",
        "Vertex AI's agents use up to 40 % of a small machine's memory. Choose a larger one (vertex_machine)."),
    _ErrorPattern(Reason.USER_ERROR, r"The replica (?P<replica>\S+) exited with a non-zero status of (?P<code>\d+)",
        "The program failed without a record of the cause.",
        "See its log.", certain=False),
    _ErrorPattern(Reason.INTERNAL, r"(?i)internal error",
        "Vertex AI had an internal error.",
        "Start it again: podlift resume continues from the last checkpoint."),
    _ErrorPattern(Reason.STOCKOUT, r"(?i)max.?wait|waiting.{0,30}expired|expired.{0,30}(wait|queue)",
        "No machine became available within the job's waiting time.",
        "Allow a longer wait, or try another region or accelerator: podlift accelerators."),
    _ErrorPattern(Reason.TIMEOUT,
        r"(?i)(exceeded|reached|over|past).{0,40}(timeout|time limit|deadline)|timed out|job timeout",
        "The job exceeded its time limit.",
        "Raise the limit: timeout (--timeout)."),
    _ErrorPattern(Reason.PERMISSION,
        r"PERMISSION_DENIED|[Pp]ermission .{0,80}denied|The caller does not have permission",
        "A permission is missing.",
        "Grant it to the account that the text names: the caller's, or the job's service account (vertex_service_account)."),
)
# fmt: on
# Reasons of errors whose text is unknown, by google.rpc.Code and by HTTP status.
_OF_CODES = {
    7: Reason.PERMISSION,
    13: Reason.INTERNAL,
    16: Reason.PERMISSION,
    400: Reason.REFUSED,
    401: Reason.PERMISSION,
    403: Reason.PERMISSION,
    404: Reason.REFUSED,
    429: Reason.QUOTA,
}  # fmt: skip
EXPIRED = Diagnosis(
    reason=Reason.STOCKOUT,
    sentence="The job expired: no machine became available within its waiting time.",
    advice="Allow a longer wait (jobSpec.scheduling.maxWaitDuration in vertex_raw), or try another region or accelerator: "
    "podlift accelerators.",
)
# Vertex AI reports no text for a job that waits in the queue.
QUEUED = Diagnosis(
    reason=Reason.QUOTA,
    sentence="A job stays queued while other jobs of the project use the quota that it needs, and starts when they end.",
    advice=f"To start sooner, cancel one of them, choose another region, or request a higher quota: {_QUOTAS}.",
)
TAKEN_AWAY = Diagnosis(
    reason=Reason.PREEMPTED,
    sentence="A spot machine was taken away, and no other was available.",
    advice="Resume it later, or submit it with vertex_provisioning='standard'.",
)


def diagnose(text: str, code: int = 0, *, provisioning: str = "standard") -> Diagnosis:
    """Explain an error text of Vertex AI. An unknown one is quoted. `code` is a google.rpc.Code or an HTTP status."""
    vendor_text = " ".join(text.split())
    for row in _PATTERNS:
        match = re.search(row.pattern, vendor_text)
        if match is not None:
            return _from_match(row, match, vendor_text, provisioning)
    if code == _CANCELLED:
        return Diagnosis(reason=Reason.CANCELLED, sentence="The job was cancelled.", vendor_text=vendor_text)
    reason = _OF_CODES.get(code, Reason.INFRASTRUCTURE)
    # A rejected request never became a job.
    sentence = (
        ""
        if code >= _HTTP
        else "The job ended."
        if vendor_text
        else "The job ended, and Vertex AI does not report why."
    )
    return Diagnosis(reason=reason, sentence=sentence, vendor_text=vendor_text, certain=False)


def diagnose_program(text: str) -> Diagnosis | None:
    """Explain an error that a program received from one of Google's services; None if it is of another kind."""
    joined = " ".join(text.split())
    for row in _PATTERNS:
        match = re.search(row.pattern, joined) if row.program else None
        if match is not None:
            return replace(_from_match(row, match, joined, "standard"), vendor_text="")
    return None


def _from_match(row: _ErrorPattern, match: re.Match[str], vendor_text: str, provisioning: str) -> Diagnosis:
    groups = match.groupdict()
    reason, sentence, certain = row.reason, row.sentence, row.certain
    signal = _SIGNALS.get(int(groups.get("code") or 0))
    if signal is not None:
        # Exit codes above 128 stand for a signal.
        reason, certain = Reason.PREEMPTED if signal == "SIGTERM" else Reason.KILLED, False
        sentence = f"A task was killed by {signal}."
    advice = row.advice if isinstance(row.advice, str) else row.advice(match, provisioning)
    replica = (groups.get("replica") or "").rstrip(".,:")
    diagnosis = Diagnosis(reason=reason, sentence=sentence, advice=advice, vendor_text=vendor_text, replica=replica)
    return replace(diagnosis, certain=certain, busy=row.busy, signal=signal or "")
