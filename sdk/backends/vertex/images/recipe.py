"""The recipe of an image, and the request to Cloud Build for it. Pure, except that it reads a Dockerfile.

The Dockerfile is part of the request: no source is uploaded, and the account of the build needs no right on a bucket.

Sources: REST reference of Cloud Build v1, projects.locations.builds; price page of Cloud Build (read 2026-11-23).
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from ....errors import InputError, nearest
from ....hardware import regions
from ....hardware.regions import CHEAPEST
from ....job.images import EMULATED, FAMILIES
from ...services import ImageDraft
from .. import service
from ..checks.target import ACCOUNT, PROJECT
from ..options import Vertex

DOCKERFILE = Path(__file__).parent / "Dockerfile"
REPOSITORY = "podlift"
# Of the default machine, e2-standard-2, on which a billing account has 2,500 minutes a month for nothing.
USD_A_MINUTE = 0.006
# Estimates: no build was measured. The packages for GPUs have some GB.
MINUTES = {"cpu": 4, "gpu": 12, "tpu": 6}
_BUILDER = "gcr.io/cloud-builders/docker"
_TIMEOUT = "3600s"
# Cloud Build accepts arguments of 10,000 characters.
_LONGEST = 9_000
_TAG = 16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_COPIES = re.compile(r"^\s*(?:COPY|ADD)\s+(?!--from=)", re.MULTILINE | re.IGNORECASE)


def price(family: str) -> float:
    """Return the US dollars of a build, if no minute is free."""
    return MINUTES[family] * USD_A_MINUTE


def advice(family: str) -> str:
    """Return the command that builds the image of a family, with its minutes and its price."""
    return (
        f"podlift image {family} --submit, which builds one with Cloud Build in about {MINUTES[family]} minutes for about "
        f"{price(family):.2f} USD"
    )


def draft(family: str, target: Vertex, region: str | None, account: str | None, dockerfile: Path | None) -> ImageDraft:
    problems = _mistakes(family, target, region, account)
    text = _read(dockerfile or DOCKERFILE, family, problems)
    if problems:
        raise InputError(problems)
    region, project = region or target.region_names[0], str(target.project)
    tag = hashlib.sha256(f"{family}\n{text}".encode()).hexdigest()[:_TAG]
    # A project of a domain, example.com:mine, is a folder of it in the names of images.
    name = f"{region}-docker.pkg.dev/{project.replace(':', '/')}/{REPOSITORY}/{family}:{tag}"
    return ImageDraft(
        family=family,
        name=name,
        build=_build(family, name, tag, text, f"projects/{project}/serviceAccounts/{account}" if account else ""),
        parent=f"projects/{project}/locations/{region}",
        minutes=MINUTES[family],
        usd=round(price(family), 4),
        dockerfile=str(dockerfile or DOCKERFILE),
        service="Cloud Build",
        command=f"gcloud builds submit --no-source --config=FILE --region={region} --project={project}",
    )


def create_repository(project: str, region: str, name: str = REPOSITORY) -> str:
    options = ("--repository-format=docker", f"--location={region}", f"--project={project}")
    return shlex.join(["gcloud", "artifacts", "repositories", "create", name, *options])


def repository(draft: ImageDraft) -> str:
    """Return the name of its repository in the API."""
    return f"{draft.parent}/repositories/{REPOSITORY}"


def reference(draft: ImageDraft, digest: str) -> str:
    """Return an image's name by its digest, "" for a malformed digest. An emulator's image is marked: no registry has it."""
    name = draft.name.rpartition(":")[0]
    return f"{name}{EMULATED if service.stand_in() else '@'}{digest}" if _DIGEST.fullmatch(digest) else ""


def _build(family: str, name: str, tag: str, text: str, account: str) -> Mapping[str, object]:
    # No text of a setting is part of the script. In Cloud Build, $$ is a dollar sign.
    end = f"DOCKERFILE_{tag}"
    script = f'docker build --target "$TARGET" --tag "$IMAGE" - <<"{end}"\n{text.rstrip()}\n{end}\n'
    step = {
        "name": _BUILDER,
        "entrypoint": "bash",
        "env": ["DOCKER_BUILDKIT=1", f"TARGET={family}", f"IMAGE={name}"],
        "args": ["-c", script.replace("$", "$$")],
    }
    return {
        "steps": [step],
        "images": [name],
        "tags": ["podlift", f"podlift-{family}", _content_tag(tag)],
        "timeout": _TIMEOUT,
        # Without a bucket for logs, which an account of the build would need rights on.
        "options": {"logging": "CLOUD_LOGGING_ONLY"},
        **({"serviceAccount": account} if account else {}),
    }


def _content_tag(tag: str) -> str:
    return f"podlift-content-{tag}"


def filter_of(draft: ImageDraft) -> str:
    """Return the filter for builds of this content."""
    return f'tags="{_content_tag(draft.name.rpartition(":")[2])}"'


def _mistakes(family: str, target: Vertex, region: str | None, account: str | None) -> list[str]:
    problems = []
    if family not in FAMILIES:
        problems.append(f"Unknown family of hardware. Received: {family!r}. {nearest(family, FAMILIES)}")
    if target.project is None:
        problems.append(
            "No project is configured for vertex. Next: --vertex-project, PODLIFT_VERTEX_PROJECT, or a table [vertex] in "
            "podlift.toml."
        )
    elif not PROJECT.fullmatch(target.project):
        problems.append(f"Not the id of a project. Received: {target.project!r}.")
    region = region or target.region_names[0]
    if region == CHEAPEST:
        problems.append(
            "vertex_regions='cheapest' does not name a region for the build. Next: --region REGION, the region of the bucket."
        )
    elif region not in regions.KNOWN:
        problems.append(f"Not a region. Received: {region!r}. Nearest: {regions.meant(region)!r}.")
    if account is not None and not ACCOUNT.fullmatch(account):
        problems.append(f"Not a service account: NAME@PROJECT.iam.gserviceaccount.com. Received: {account!r}.")
    return problems


def _read(path: Path, family: str, problems: list[str]) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        problems.append(f"The Dockerfile cannot be read: {reason}. Received: {str(path)!r}.")
        return ""
    stage_names = re.findall(r"^\s*FROM\s.*\sAS\s+(\S+)", text, re.MULTILINE | re.IGNORECASE)
    if family not in stage_names and family in FAMILIES:
        stages = f"Known: {', '.join(stage_names)}" if stage_names else "It names no stage"
        problems.append(f"{str(path)!r} has no stage {family!r}. {stages}. Next: FROM ... AS {family}.")
    if _COPIES.search(text):
        problems.append(
            f"{str(path)!r} copies files, and none are uploaded. Next: leave COPY and ADD out: your code is no part of the "
            "image, and requirements can be named in a line with pip install."
        )
    if len(text) > _LONGEST:
        problems.append(f"{str(path)!r} is too long: {len(text)} characters, and Cloud Build accepts {_LONGEST}.")
    return text
