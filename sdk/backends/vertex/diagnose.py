"""What the error texts of Vertex AI mean: the reason, a sentence, and what to do about it. Pure, and one table.

The texts are those of Google's documentation, of its clients and of real jobs (read 2026-11); adding one is adding a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...status import Reason

_QUOTAS = "https://console.cloud.google.com/iam-admin/quotas"
_CANCELLED = 1
_SIGNALS = {134: "SIGABRT", 139: "SIGSEGV", 137: "SIGKILL", 143: "SIGTERM"}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a text means.

    Args:
        reason: for the run's status.
        sentence: what is wrong.
        advice: what to do; "" where nothing can be said.
        said: the vendor's own words.
        replica: the replica that it is about, such as "workerpool0-0"; "" for none.
        certain: False where the text was not recognised, or tells only that something has failed.
        busy: True where the same request is taken after a while.
    """

    reason: Reason
    sentence: str
    advice: str = ""
    said: str = ""
    replica: str = ""
    certain: bool = True
    busy: bool = False

    @property
    def message(self) -> str:
        """All of it in one paragraph."""
        said = f'Vertex AI says: "{self.said}"' if self.said else ""
        return " ".join(part for part in (self.sentence, said, self.advice) if part)


@dataclass(frozen=True, kw_only=True)
class _Row:
    pattern: str
    reason: Reason
    sentence: str
    advice: str | Callable[[re.Match[str], str], str] = ""
    certain: bool = True
    busy: bool = False


def _quota(match: re.Match[str], provisioning: str) -> str:
    metrics = [name.strip() for name in match["metrics"].strip().rstrip(".").split(",") if name.strip()]
    kind = "" if provisioning == "standard" else " Spot and flex-start machines count against the preemptible_ quotas."
    return (
        f"Ask for more of {', '.join(metrics)} in that region: {_QUOTAS}. These quotas are Vertex AI's own, beside those of "
        f"Compute Engine.{kind}"
    )


def _stockout(_: re.Match[str], provisioning: str) -> str:
    others = {
        "spot": "vertex_provisioning='standard'",
        "flex": "a longer wait",
        "standard": "vertex_provisioning='flex', which waits (GPUs)",
    }
    return f"It is no question of quota. Try another region or accelerator (podlift accelerators), or {others[provisioning]}."


def _act_as(_: re.Match[str], __: str) -> str:
    return "Whoever submits needs roles/iam.serviceAccountUser on the job's service account (vertex_service_account)."


def _enable(match: re.Match[str], _: str) -> str:
    return f"gcloud services enable {match['service'] or 'aiplatform.googleapis.com'} --project=PROJECT"


# In the order in which they are tried: what is special stands before what is general.
_ROWS: tuple[_Row, ...] = (
    _Row(
        pattern=r"quota metrics exceed quota limits:\s*(?P<metrics>[\w./, -]+)",
        reason=Reason.QUOTA,
        sentence="The job asks for more than the project's quota.",
        advice=_quota,
    ),
    _Row(
        pattern=r"RATE_LIMIT_EXCEEDED|Quota exceeded for quota metric .*per minute",
        reason=Reason.QUOTA,
        sentence="Too many requests were sent in a minute.",
        advice="Wait a minute.",
        busy=True,
    ),
    _Row(
        pattern=r"Quota '?(?P<metrics>[\w.-]+)'? exceeded|Quota exceeded for quota metric '(?P<other>[^']+)'",
        reason=Reason.QUOTA,
        sentence="The project's quota is used up.",
        advice=lambda match, _: f"Ask for more of {match['metrics'] or match['other']}: {_QUOTAS}.",
    ),
    _Row(
        pattern=r"Resources are insufficient in region|STOCKOUT|ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources",
        reason=Reason.STOCKOUT,
        sentence="Google had no such machine to give, in any zone of the region, or took it back and had no other.",
        advice=_stockout,
    ),
    _Row(
        pattern=r"[Mm]achine type \S+ is not supported",
        reason=Reason.REFUSED,
        sentence="Vertex AI does not offer this machine for training, or not in this region.",
        advice="Name another one or another region: podlift accelerators.",
    ),
    _Row(
        pattern=r"[Uu]nsupported region|[Ll]ocation \S+ is not (found|supported)",
        reason=Reason.REFUSED,
        sentence="There is no Vertex AI training in this region.",
        advice="Name another one (vertex_regions).",
    ),
    _Row(
        pattern=r"(dual|multi)-region|bucket.{0,80}(same|different|must be in).{0,20}(region|location)",
        reason=Reason.REFUSED,
        sentence="The bucket is not in the job's region.",
        advice="Vertex AI wants a bucket of one region, the job's: gcloud storage buckets create gs://NAME --location=REGION.",
    ),
    _Row(
        pattern=r"actAs|iam\.serviceAccounts\.actAs",
        reason=Reason.PERMISSION,
        sentence="The caller may not run jobs as this service account.",
        advice=_act_as,
    ),
    _Row(
        pattern=r"[Ss]ervice account \S+ (does not exist|was not found|not found)",
        reason=Reason.REFUSED,
        sentence="There is no such service account.",
        advice="Name one that exists (vertex_service_account): gcloud iam service-accounts list.",
    ),
    _Row(
        pattern=r"does not have permission to access Artifact Registry|artifactregistry\.repositories\.downloadArtifacts",
        reason=Reason.IMAGE,
        sentence="The image may not be pulled: Vertex AI's own service agents pull it, never the job's service account.",
        advice=(
            "Give roles/artifactregistry.reader to service-NUMBER@gcp-sa-aiplatform-cc.iam.gserviceaccount.com and "
            "service-NUMBER@gcp-sa-aiplatform.iam.gserviceaccount.com."
        ),
    ),
    _Row(
        pattern=r"MANIFEST_UNKNOWN|[Ff]ailed to pull image|ErrImagePull|ImagePullBackOff|[Ii]mage .{1,300}?not (be )?found",
        reason=Reason.IMAGE,
        sentence="There is no such image, or it cannot be pulled.",
        advice="Look for its name and tag (vertex_image); prebuilt TensorFlow images of Vertex AI are retired.",
    ),
    _Row(
        pattern=r"SERVICE_DISABLED|has not been used in project \S+ before|(?P<service>\w+\.googleapis\.com) is disabled",
        reason=Reason.PERMISSION,
        sentence="The API is not enabled in this project.",
        advice=lambda match, _: _enable(match, ""),
    ),
    _Row(
        pattern=r"CONSUMER_INVALID|Permission denied on resource project|project \S+ (was )?not found",
        reason=Reason.PERMISSION,
        sentence="There is no such project, or it is not open to the caller.",
        advice="It wants the project's id, not its name (vertex_project): gcloud projects list.",
    ),
    _Row(
        pattern=r"aiplatform\.customJobs\.\w+",
        reason=Reason.PERMISSION,
        sentence="The caller may not work with jobs in this project.",
        advice="It takes roles/aiplatform.user on the project.",
    ),
    _Row(
        pattern=r"storage\.objects\.\w+|storage\.buckets\.\w+",
        reason=Reason.PERMISSION,
        sentence="The job may not use the bucket.",
        advice="Its service account needs roles/storage.objectAdmin on it.",
    ),
    _Row(
        pattern=r"ACCESS_TOKEN_SCOPE_INSUFFICIENT|insufficient authentication scopes",
        reason=Reason.PERMISSION,
        sentence="The default service account of Vertex AI cannot do this from inside a job.",
        advice="Name a service account of your own (vertex_service_account).",
    ),
    _Row(
        pattern=r"UNAUTHENTICATED|invalid authentication credentials|could not automatically determine credentials",
        reason=Reason.PERMISSION,
        sentence="There are no valid credentials.",
        advice="gcloud auth application-default login",
    ),
    _Row(
        pattern=r"project\W+[\w-]*-tp\b|[a-z0-9]{8,}-tp\b",
        reason=Reason.USER_ERROR,
        sentence="The program took the project in which Google keeps its machines for its own.",
        advice="Give clients the project by name; the environment has its number as CLOUD_ML_PROJECT_ID.",
    ),
    _Row(
        pattern=r"instance/service-accounts/\S*identity|identity token.{0,60}404|404.{0,80}identity",
        reason=Reason.PERMISSION,
        sentence="The metadata server of a job with its own service account gives no identity tokens.",
        advice="Ask iamcredentials.googleapis.com for one: generateIdToken.",
    ),
    _Row(
        pattern=r"ConnectTimeout.{0,120}(pypi|simple|index|pip)|(pip|index).{0,160}ConnectTimeout",
        reason=Reason.INFRASTRUCTURE,
        sentence="The machines have no way to the package index.",
        advice="Put what is required into the image.",
    ),
    _Row(
        pattern=r"The replica (?P<replica>\S+) ran out of memory",
        reason=Reason.OUT_OF_MEMORY,
        sentence="A replica ran out of memory.",
        advice="Vertex AI's own agents take up to 40 % of a small machine: name a larger one (machine).",
    ),
    _Row(
        pattern=r"The replica (?P<replica>\S+) exited with a non-zero status of (?P<code>\d+)",
        reason=Reason.USER_ERROR,
        sentence="The program failed, and left no record of why.",
        advice="Its log says more.",
        certain=False,
    ),
    _Row(
        pattern=r"(?i)internal error",
        reason=Reason.INFRASTRUCTURE,
        sentence="Vertex AI failed itself.",
        advice="Start it again: podlift resume goes on from the last checkpoint.",
    ),
    _Row(
        pattern=r"(?i)max.?wait|waiting.{0,30}expired|expired.{0,30}(wait|queue)",
        reason=Reason.STOCKOUT,
        sentence="No machine became free in the time that the job would wait.",
        advice="Let it wait longer, or ask elsewhere: podlift accelerators.",
    ),
    _Row(
        pattern=r"(?i)(exceeded|reached|over|past).{0,40}(timeout|time limit|deadline)|timed out|job timeout",
        reason=Reason.TIMEOUT,
        sentence="The job took longer than it may.",
        advice="Give it more time: timeout (--timeout).",
    ),
    _Row(
        pattern=r"PERMISSION_DENIED|[Pp]ermission .{0,80}denied|The caller does not have permission",
        reason=Reason.PERMISSION,
        sentence="A permission is missing.",
    ),
)
EXPIRED = Diagnosis(
    reason=Reason.STOCKOUT,
    sentence="The job has expired: no machine became free in the time that it would wait.",
    advice="Let it wait longer (raw: scheduling.maxWaitDuration), or ask elsewhere: podlift accelerators.",
)


def diagnose(text: str, code: int = 0, *, provisioning: str = "standard") -> Diagnosis:
    """Return what an error text of Vertex AI means; one that nobody knows is passed on as it is.

    Args:
        text: of a refused request or of a job's error.
        code: its number, as google.rpc.Code; 0 where there is none.
        provisioning: what kind of machines were asked for.
    """
    said = " ".join(text.split())
    for row in _ROWS:
        match = re.search(row.pattern, said)
        if match is not None:
            return _made(row, match, said, provisioning)
    if code == _CANCELLED:
        return Diagnosis(reason=Reason.CANCELLED, sentence="The job was cancelled.", said=said)
    if not said:
        return Diagnosis(
            reason=Reason.INFRASTRUCTURE, sentence="The job ended, and Vertex AI does not say why.", certain=False
        )
    return Diagnosis(reason=Reason.INFRASTRUCTURE, sentence="The job ended.", said=said, certain=False)


def _made(row: _Row, match: re.Match[str], said: str, provisioning: str) -> Diagnosis:
    groups = match.groupdict()
    reason, sentence, certain = row.reason, row.sentence, row.certain
    signal = _SIGNALS.get(int(groups.get("code") or 0))
    if signal is not None:
        # A program's own exit codes stay below 128: this one was ended by a signal.
        reason, certain = Reason.PREEMPTED if signal == "SIGTERM" else Reason.KILLED, False
        sentence = f"A task was killed by {signal}."
    advice = row.advice if isinstance(row.advice, str) else row.advice(match, provisioning)
    replica = (groups.get("replica") or "").rstrip(".,:")
    found = Diagnosis(reason=reason, sentence=sentence, advice=advice, said=said, replica=replica)
    return replace(found, certain=certain, busy=row.busy)
