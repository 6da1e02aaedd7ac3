"""What a project lacks before its first job on Vertex AI: one line for each thing, with the command that mends it.

Everything here only reads. What the caller may not read is unknown, never missing.

Sources: REST references of Service Usage v1 (services.batchGet), Resource Manager v1 (projects.get), IAM v1
(serviceAccounts.get), Artifact Registry v1 (repositories.get) and Cloud Build v1 (builds.list, getDefaultServiceAccount).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from ...checks import buckets, vertex_online
from ...checks.check import Check, Level, bad, fine, mended_by, unknown
from ...hardware import pricing
from ...hardware.regions import CHEAPEST
from ...job.findings import Facts
from ...job.job import Job
from ...job.policies import Target, Vertex
from ...storage import emulator
from ...text import and_more, emulator_at, joined
from ..setup import Proposed
from . import VertexBackend, client, probe, proposal, reads, rights, service
from .proposal import BUILD_IMAGE, INIT, REPOSITORY, create_bucket
from .reads import read
from .rights import Granted, Resource, gcloud

_LOGIN = "gcloud auth application-default login"
_APIS = ("aiplatform.googleapis.com", "storage.googleapis.com", "logging.googleapis.com")
_BUILD_APIS = ("cloudbuild.googleapis.com", "artifactregistry.googleapis.com")
# They pull images, whichever account the program has.
_AGENTS = ("gcp-sa-aiplatform-cc", "gcp-sa-aiplatform")
_IMAGE = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<name>[^/:@]+)/.+")
_WORKERS = 8
_SHOWN = 4
_OK, _MISSING = 200, 404


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is checked, and what is known of the one who asks."""

    job: Job
    target: Vertex
    project: str
    number: str  # of the project, "" if it is not known
    member: str  # the caller, as policies name it
    bucket: str  # "" if none is set
    about: reads.ServiceReply  # the answer about it
    region: str  # the first one

    @property
    def repository(self) -> tuple[str, str, str]:
        """The project, the location and the name of the repository of images."""
        match = _IMAGE.fullmatch(next(iter(self.images), ""))
        return (
            (match["project"], match["location"], match["name"]) if match else (self.project, self.region, REPOSITORY)
        )

    @property
    def build_level(self) -> Level:
        """Builds are needed as long as there is no image."""
        return "warning" if self.images else "error"

    @property
    def images(self) -> list[str]:
        return [name for name in self.target.images_for(self.job.resources).values() if name]


class VertexSetup:
    """The setup service of the backend called "vertex"."""

    def checks(self, job: Job, target: Target, root: str) -> Iterator[Check]:
        service.check_emulator()
        options = Vertex.of(target)
        project = options.project or ""
        answer = read(
            reads.PROJECTS, f"/v1/projects/{quote(project, safe='')}" if project else "/v1/projects", project=project
        )
        if answer.status == 401:
            yield mended_by("credentials", "error", answer.error, _LOGIN)
            yield from _not_asked(["project", *_GROUPS], "there are no credentials", options)
            return
        if not answer.status:
            yield unknown("credentials", f"whether they are accepted: {answer.error}", "check the network")
            yield from _not_asked(["project", *_GROUPS], "there is no answer", options)
            return
        member = _caller(project)
        here = f" on the {emulator_at(emulator.asked())}" if emulator.asked() else ""
        yield fine("credentials", f"accepted{here}; {member}")
        yield _project(project, answer)
        if not project:
            yield from _not_asked(_GROUPS, "no project is set", options)
            return
        number = str(answer.found.get("projectNumber") or _number(project))
        asked = _asked(job, options, root, member, number)
        with ThreadPoolExecutor(_WORKERS) as pool:
            for found in pool.map(lambda check: list(check(asked)), _GROUPS.values()):
                yield from found
        yield from _never_known(options)

    def proposed(self, given: Mapping[str, Proposed], environ: Mapping[str, str]) -> dict[str, Proposed]:
        service.check_emulator()
        return proposal.proposed(given, environ)


def _not_asked(names: Sequence[str] | Mapping[str, object], why: str, target: Vertex) -> Iterator[Check]:
    yield from (unknown(name, f"not asked: {why}") for name in names if name != "keeper" or target.keeper)
    yield from _never_known(target)


def _caller(project: str) -> str:
    """Return who asks, as a policy names it; else what the shell replaces by it."""
    given: Any = getattr(client.session(reads.PROJECTS, project), "credentials", None)
    account = getattr(given, "service_account_email", "")
    if "@" in str(account):
        return f"serviceAccount:{account}"
    email = read("https://openidconnect.googleapis.com", "/v1/userinfo").found.get("email")
    return f"user:{email}" if email else rights.BY_SHELL


def _project(project: str, answer: reads.ServiceReply) -> Check:
    if not project:
        return mended_by("project", "error", "none is set", INIT)
    if answer.status != _OK:
        return unknown(
            "project", f"whether {project} exists: {answer.error}", "", gcloud("projects", "describe", project)
        )
    state = str(answer.found.get("lifecycleState", ""))
    if state not in ("ACTIVE", ""):
        return mended_by("project", "error", f"{project} is {state}", gcloud("projects", "undelete", project))
    return fine("project", f"{project}, number {answer.found.get('projectNumber', 'not known')}")


def _asked(job: Job, target: Vertex, root: str, member: str, number: str) -> _Asked:
    project = str(target.project)
    bucket = "" if root.startswith("gs://<") else root.removeprefix("gs://").partition("/")[0]
    about = (
        read(reads.STORAGE, f"/storage/v1/b/{quote(bucket, safe='')}", project=project)
        if bucket
        else reads.ServiceReply(status=0)
    )
    if CHEAPEST in target.regions:
        facts: Facts = VertexBackend().probe(job, target, root=root, online=False)
        if about.status == _OK:
            facts = replace(facts, online={"bucket": {"name": bucket, "exists": True, "about": about.found}})
        target = Vertex.of(target.placed(job.resources, facts)[0])
    return _Asked(
        job=job,
        target=target,
        project=project,
        number=number,
        member=member,
        bucket=bucket,
        about=about,
        region=target.place_regions[0],
    )


def _who_may(asked: _Asked, resource: Resource, permission: str) -> str:
    """Return whom to ask for a change that the caller may not make, "" if the caller may."""
    if rights.mine(resource, permission, project=asked.project).granted[permission] is not False:
        return ""
    return f"You lack {permission} {resource.words}. Ask someone who has it to run:"


def _granted(
    asked: _Asked, name: str, resource: Resource, answers: Granted, member: str, level: Level = "error", first: str = ""
) -> Check:
    """Judge the rights of a member on a resource; `first` is the command to run before one that grants them."""
    command = f"{first} && {resource.command(member)}" if first else resource.command(member)
    lacking, not_known, who = answers.those(False), answers.those(None), member.partition(":")[2]
    if lacking:
        said = f"{who} lacks {and_more(lacking, _SHOWN)} {resource.words}"
        return mended_by(name, level, said, command, _who_may(asked, resource, resource.granting))
    if not_known:
        said = f"whether {who} has {and_more(not_known, _SHOWN)} {resource.words}: {answers.why}"
        return unknown(name, said, "if not:", command)
    return fine(name, f"{who} has what {resource.role} gives {resource.words}")


def _services(project: str, apis: Sequence[str]) -> reads.ServiceReply:
    names = urlencode([("names", f"projects/{project}/services/{each}") for each in apis])
    return read(reads.APIS, f"/v1/projects/{quote(project, safe='')}/services:batchGet?{names}", project=project)


def _number(project: str) -> str:
    """Return the number of a project that the caller may not read, by the names of its APIs; "" if it is not known."""
    names = [str(each.get("name", "")) for each in _services(project, _APIS[:1]).items("services")]
    return next((name.split("/")[1] for name in names if re.match(r"projects/\d+/", name)), "")


def _enabled(asked: _Asked, name: str, apis: Sequence[str], level: Level) -> Check:
    answer = _services(asked.project, apis)
    states = {str(each.get("name", "")).rpartition("/")[2]: each.get("state") for each in answer.items("services")}
    disabled = [each for each in apis if states.get(each) == "DISABLED"]
    command = gcloud("services", "enable", *(disabled or apis), f"--project={asked.project}")
    if disabled:
        before = _who_may(asked, rights.in_project(asked.project), "serviceusage.services.enable")
        said = f"{joined(disabled, 'and')} {'is' if len(disabled) == 1 else 'are'} disabled in {asked.project}"
        return mended_by(name, level, said, command, before)
    not_known = [each for each in apis if states.get(each) != "ENABLED"]
    if not_known:
        said = f"whether {joined(not_known, 'and')} are enabled: {answer.error or 'the answer does not say it'}"
        return unknown(name, said, "if not:", command)
    return fine(name, f"{joined(apis, 'and')} are enabled")


def _apis(asked: _Asked) -> Iterator[Check]:
    yield _enabled(asked, "apis", _APIS, "error")


def _jobs(asked: _Asked) -> Iterator[Check]:
    for name, permissions in (("jobs", rights.JOBS), ("logs", (rights.LOGS,))):
        resource = rights.in_project(asked.project, *permissions)
        yield _granted(asked, name, resource, rights.mine(resource, project=asked.project), asked.member)


def _bucket(asked: _Asked) -> Iterator[Check]:
    name, about = asked.bucket, asked.about.found
    if not name:
        yield mended_by("bucket", "error", "none is set", INIT)
        return
    if asked.about.status == _MISSING:
        before = _who_may(asked, rights.in_project(asked.project), "storage.buckets.create")
        yield mended_by("bucket", "error", f"there is no gs://{name}", _create(asked, name), before)
        return
    if asked.about.status != _OK:
        said = f"the location of gs://{name} and what it keeps: {asked.about.error}"
        yield unknown("bucket", said, "", gcloud("storage", "buckets", "describe", f"gs://{name}"))
        return
    yield _place(asked, name, str(about.get("location", "")).lower())
    options = {
        "soft-delete": (buckets.soft_delete(about), buckets.NO_SOFT_DELETE),
        "versioning": (buckets.versioning(about), buckets.NO_VERSIONING),
    }
    for check, (cost, option) in options.items():
        off = fine(check, "off: removed objects cost nothing")
        yield mended_by(check, "warning", cost, buckets.update(name, option)) if cost else off


def _place(asked: _Asked, name: str, place: str) -> Check:
    regions = asked.target.place_regions
    wrong = vertex_online.unfit(name, asked.about.found, asked.region, "").partition(" Next:")[0].rstrip(".")
    if not wrong and place not in regions and not asked.target.staging_buckets:
        wrong = f"gs://{name} is in {place}, but the job is in {joined(regions, 'or')}"
    if not wrong:
        return fine("bucket", f"gs://{name} is in {place}")
    # A bucket stays where it was made.
    other = buckets.new_name(name, asked.region)
    return mended_by(
        "bucket", "error", wrong, _create(asked, other), f"Make another, and set vertex_bucket = {other!r}:"
    )


def _create(asked: _Asked, name: str) -> str:
    return create_bucket(name, asked.project, asked.region)


def _objects(asked: _Asked) -> Iterator[Check]:
    if asked.bucket and asked.about.status != _MISSING:
        resource = rights.on_bucket(asked.bucket)
        yield _granted(asked, "objects", resource, rights.mine(resource, project=asked.project), asked.member)


def _account(asked: _Asked) -> Iterator[Check]:
    account = asked.target.service_account
    if account is None:
        yield fine(
            "account", "none is set: programs run as Vertex AI's own agent, which can use nothing but the bucket"
        )
        return
    answer = read(reads.ACCOUNTS, f"/v1/projects/-/serviceAccounts/{quote(account, safe='')}", project=asked.project)
    if answer.status == _MISSING:
        name, _, owner = account.partition("@")
        owner = owner.partition(".")[0]
        before = _who_may(asked, rights.in_project(owner), "iam.serviceAccounts.create")
        command = gcloud("iam", "service-accounts", "create", name, f"--project={owner}")
        yield mended_by("account", "error", f"there is no {account}", command, before)
        return
    exists = fine("account", account)
    yield exists if answer.status == _OK else unknown("account", f"whether {account} exists: {answer.error}")
    resource = rights.on_account(account)
    yield _granted(asked, "actas", resource, rights.mine(resource, project=asked.project), asked.member)
    if asked.bucket and asked.about.status != _MISSING:
        stored = rights.on_bucket(asked.bucket)
        yield _granted(
            asked,
            "storage",
            stored,
            rights.of_member(account, stored, project=asked.project),
            f"serviceAccount:{account}",
        )


def _keeper(asked: _Asked) -> Iterator[Check]:
    kept = asked.target.kept_by(asked.job.limits, asked.job.retry)
    if kept is None or not asked.bucket:
        return
    for each in rights.resources(kept, asked.project, asked.bucket):
        yield _granted(
            asked,
            "keeper",
            each,
            rights.of_member(kept.account, each, project=asked.project),
            f"serviceAccount:{kept.account}",
        )


def _image(asked: _Asked) -> Iterator[Check]:
    for family, name in asked.target.images_for(asked.job.resources).items():
        command = f"podlift image {family} --submit" if family else BUILD_IMAGE
        if name is None:
            yield mended_by("image", "error", f"none is recorded for {family.upper()}s", command)
            continue
        known = probe.image(name)
        reason = str(known["error"]).rstrip(".")
        if known["exists"]:
            yield fine("image", f"{name} exists")
        elif known["exists"] is None:
            yield unknown("image", f"whether {name} exists: {reason}")
        else:
            yield mended_by("image", "error", f"there is no image {name} ({reason})", command)


def _pull(asked: _Asked) -> Iterator[Check]:
    foreign = next((name for name in asked.images if not _IMAGE.fullmatch(name)), "")
    if foreign:
        yield unknown("pull", f"whether Vertex AI may pull {foreign}: it is not in Artifact Registry")
        return
    if not asked.number:
        yield unknown("pull", "which accounts pull images: the project's number is not known")
        return
    resource = rights.on_repository(*asked.repository, rights.PULL)
    # Before its first training a project has no agents, and no policy may name what does not exist.
    made = gcloud("beta", "services", "identity", "create", f"--service={_APIS[0]}", f"--project={asked.project}")
    for agent in _AGENTS:
        account = f"service-{asked.number}@{agent}.iam.gserviceaccount.com"
        yield _granted(
            asked,
            "pull",
            resource,
            rights.of_member(account, resource, project=asked.project),
            f"serviceAccount:{account}",
            first=made,
        )


def _builds(asked: _Asked) -> Iterator[Check]:
    level, (project, location, name) = asked.build_level, asked.repository
    yield _enabled(asked, "build-apis", _BUILD_APIS, level)
    own = rights.in_project(asked.project, rights.BUILD)
    yield _granted(asked, "build", own, rights.mine(own, project=asked.project), asked.member, level)
    place = f"/v1/projects/{quote(asked.project, safe='')}/locations/{asked.region}"
    answer = read(reads.BUILDS, f"{place}/defaultServiceAccount", project=asked.project)
    account = str(answer.found.get("serviceAccountEmail", "")).rpartition("/")[2]
    resource = rights.on_repository(project, location, name, rights.PUSH)
    if account:
        needed = {"build-account": resource, "build-logs": rights.in_project(asked.project, rights.WRITE_LOGS)}
        for check, each in needed.items():
            answers = rights.of_member(account, each, project=asked.project)
            yield _granted(asked, check, each, answers, f"serviceAccount:{account}", level)
    else:
        yield unknown("build-account", f"which account builds: {answer.error or 'the project has no default one'}")
    yield _repository(asked, level)
    answer = read(reads.BUILDS, f"{place}/builds?pageSize=1", project=asked.project)
    if answer.status == _OK:
        yield fine("build-region", f"Cloud Build answers in {asked.region}")
    elif answer.status in (400, _MISSING):
        said = f"Cloud Build does not build in {asked.region}: {answer.error}"
        yield bad("build-region", level, said, "choose another of vertex_regions, or build elsewhere")
    else:
        yield unknown("build-region", f"whether Cloud Build builds in {asked.region}: {answer.error}")


def _repository(asked: _Asked, level: Level) -> Check:
    project, location, name = asked.repository
    where = f"{name} in {location} of {project}"
    path = f"projects/{quote(project, safe='')}/locations/{location}/repositories/{quote(name, safe='')}"
    answer = read(reads.REPOSITORIES, f"/v1/{path}", project=asked.project)
    options = ("--repository-format=docker", f"--location={location}", f"--project={project}")
    create = gcloud("artifacts", "repositories", "create", name, *options)
    if answer.status == _MISSING:
        before = _who_may(asked, rights.in_project(project), "artifactregistry.repositories.create")
        return mended_by("build-repo", level, f"there is no repository {where}", create, before)
    if answer.status != _OK:
        return unknown("build-repo", f"whether there is a repository {where}: {answer.error}", "if not:", create)
    if answer.found.get("format") != "DOCKER":
        said = f"the repository {where} is for {answer.found.get('format')}, not for images"
        return bad("build-repo", level, said, "name another one in vertex_image")
    return fine("build-repo", f"the repository {where}")


def _quotas(asked: _Asked) -> Iterator[Check]:
    project, target, job = asked.project, asked.target, asked.job
    needed = [each for rented in target.rentals(job.resources, job.limits) for each in pricing.quotas(rented)]
    for each in dict.fromkeys(needed):
        if each.metric is None or each.amount is None:
            yield unknown("quota", f"whether it is enough for {each.what}: what counts against it is not documented")
    metrics = dict.fromkeys(each.metric for each in needed if each.metric and each.amount)
    known = {each: probe.quota(project, each, target.place_regions) for each in metrics}
    page = vertex_online.quota_page(project)
    for limit in vertex_online.limits(known, job, target):
        wanted = limit.needed
        if limit.error:
            yield unknown("quota", f"{wanted.metric} in {limit.where}: {limit.error}", f"see {page}")
        elif limit.too_low:
            request = f"request {wanted.amount} of {wanted.metric} in {limit.where}, and wait for the approval: {page}"
            yield bad("quota", "error", limit.text, request)
        elif limit.limit is None:
            yield unknown("quota", limit.text, f"see {page}")
        else:
            yield fine("quota", limit.text)


def _never_known(target: Vertex) -> Iterator[Check]:
    """Yield what no request of an ordinary user tells."""
    spec = target.raw.get("jobSpec")
    network = spec.get("network") if isinstance(spec, dict) else None
    project = target.project or "PROJECT"
    policies = gcloud("resource-manager", "org-policies", "list", f"--project={project}")
    yield unknown("cmek", "whether the organisation demands keys of its own (CMEK), and who may use them", "", policies)
    where = f"the network {network} lets through" if network else "Google's network lets through for jobs"
    yield unknown("network", f"what {where}: whether a job reaches your data and package index")
    said = f"whether {target.project or 'the project'} is inside a perimeter of VPC Service Controls"
    yield unknown("vpc-sc", said, "ask those who manage the organisation")
    yield unknown("org-policy", "which policies of the organisation restrict regions, images or accounts", "", policies)


# In the order of the output.
_GROUPS: dict[str, Callable[[_Asked], Iterator[Check]]] = {
    "apis": _apis,
    "jobs": _jobs,
    "bucket": _bucket,
    "objects": _objects,
    "account": _account,
    "keeper": _keeper,
    "image": _image,
    "pull": _pull,
    "build": _builds,
    "quota": _quotas,
}
