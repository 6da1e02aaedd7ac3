"""The needs of a schedule on Vertex AI: an account of its project, and nothing of the machine that creates it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ....hardware import regions
from ....job.findings import Facts, Finding, error, warning
from ....job.job import Job
from ....text import joined
from ..options import Vertex

_OF_PROJECT = re.compile(r"[^@\s]+@(?P<project>[a-z][a-z0-9.-]+)\.iam\.gserviceaccount\.com")
_OF_APP_ENGINE = re.compile(r"(?P<project>[a-z][a-z0-9.-]+)@appspot\.gserviceaccount\.com")
# Its address has the number of the project, which a plan does not know.
_OF_COMPUTE_ENGINE = re.compile(r"[0-9]+-compute@developer\.gserviceaccount\.com")
# Cloud Scheduler's description names the root.
_LONGEST_ROOT = 300


def run(
    job: Job,
    target: Vertex,
    facts: Facts,
    *,
    root: str,
    notify: Sequence[str],
    location: str = "",
) -> Iterator[Finding]:
    """Return the findings for a schedule of a job.

    Args:
        job: the job of its firings.
        target: where.
        facts: the facts about the image.
        root: where its records live.
        notify: its notifications.
        location: where Cloud Scheduler is to keep it, "" for the region of the first location.
    """
    yield from _account(target)
    if location and not regions.is_region(location):
        yield error(
            f"location: Cloud Scheduler is in regions such as us-central1. Received: {location!r}. Nearest: "
            f"{regions.meant(location)!r}"
        )
    elif (where := location or target.region_names[0]) in regions.WITHOUT_SCHEDULER:
        near = regions.nearby(where, tuple(name for name in regions.KNOWN if name not in regions.WITHOUT_SCHEDULER))
        yield error(
            f"There is no Cloud Scheduler in {where}. It can keep a job in another region, which fires into this one. Nearest: "
            f"location={near!r}"
        )
    if job.copied:
        yield error(
            f"{joined(job.copied, 'and')}: a copied value (FromCaller(), --env NAME) comes from the machine that submits, and "
            "none is there when a slot fires. Next: --env NAME=VALUE, which stores the value with the schedule, or "
            "Secret(...), which each firing reads from Secret Manager"
        )
    variables = [text.removeprefix("webhook:") for text in notify if text.startswith("webhook:") and "/" not in text]
    if variables:
        name, stored = variables[0], [variable for variable in variables if variable in job.env]
        remark = f" --env {stored[0]} would store the URL, which is a secret, with the schedule." if stored else ""
        yield error(
            f"notify: webhook:{name} names a variable of the machine that fires, and for Vertex AI that is a container, which "
            f"has no {joined(variables, 'and')}.{remark} Next: put the URL into Secret Manager (gcloud secrets create {name} "
            f"--data-file=-), and write webhook:projects/{target.project or 'PROJECT'}/secrets/{name}/versions/latest"
        )
    if len(root) > _LONGEST_ROOT:
        yield error(f"The root of a schedule has at most {_LONGEST_ROOT} characters. Received: {len(root)}")
    for field, named in target.named_images.items():
        yield from _image(field, "The keeper's image" if field == "image.keeper" else "The image", named, facts)


def _account(target: Vertex) -> Iterator[Finding]:
    """The default account of Vertex AI may not create jobs. Cloud Scheduler only accepts accounts of the project."""
    account = target.keeper_service_account or target.service_account
    project = target.project or "PROJECT"
    mine = f"vertex_keeper_service_account='NAME@{project}.iam.gserviceaccount.com'"
    create = f"gcloud iam service-accounts create NAME --project={project}"
    if account is None:
        yield error(
            "Cloud Scheduler needs a service account, as which it creates the job of each firing. Received: neither "
            f"vertex_keeper_service_account nor vertex_service_account. Next: {mine}; the plan then lists its rights. To make "
            f"one: {create}"
        )
        return
    match = _OF_PROJECT.fullmatch(account) or _OF_APP_ENGINE.fullmatch(account)
    if match is None:
        if not _OF_COMPUTE_ENGINE.fullmatch(account):
            yield error(f"This is not a service account of a project. Received: {account!r}. Next: {mine}")
    elif target.project and not target.project.isdigit() and match["project"] != target.project:
        yield error(
            f"Cloud Scheduler only accepts service accounts of its project, which is {target.project!r}. Received: "
            f"{account!r}, of the project {match['project']!r}. Next: {mine}, which may differ from the account of the "
            f"program; to make one: {create}"
        )


def _image(field: str, subject: str, image: str, facts: Facts) -> Iterator[Finding]:
    """A tag may name another image at a later slot."""
    if not image or "@sha256:" in image:
        return
    answer = facts.online.get(field) or {}
    digest = str(answer.get("digest") or "")
    base = re.sub(r":[^:/@]+$", "", image)
    command = f"docker buildx imagetools inspect {image}"
    if ".pkg.dev/" in image:
        command = f"gcloud artifacts docker images describe {image} --format='value(image_summary.digest)'"
    digest_hint = "" if digest else f"; to see the digest: {command}"
    pinned = f"Next: vertex_{field}='{base}@{digest or 'sha256:...'}'{digest_hint}"
    yield warning(
        f"{subject} is named by a tag: if someone pushes another image with that tag, later slots run it. Received: "
        f"{image!r}. {pinned}"
    )
