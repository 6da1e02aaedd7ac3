"""The rows of `podlift doctor --backend vertex`: the gaps of a project before its first job, with commands that fill them.

Read-only. A resource the caller cannot read is reported as unknown, never as missing.

Sources: REST references of Service Usage v1 (services.batchGet), Resource Manager v1 (projects.get), IAM v1
(serviceAccounts.get), Artifact Registry v1 (repositories.get) and Cloud Build v1 (builds.list, getDefaultServiceAccount).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from ....checks import buckets
from ....checks.check import Check, Level, Proposed, Row, bad, fine, mended_by, unknown
from ....hardware import pricing
from ....hardware.regions import CHEAPEST
from ....job.findings import Facts
from ....job.job import Job
from ....job.targets import Target
from ....text import and_more, joined
from .. import client, service
from ..checks import online as online_checks
from ..client import ServiceReply, read
from ..images.recipe import REPOSITORY, create_repository
from ..options import Vertex
from . import offline, probe, proposal, rights
from .proposal import BUILD_IMAGE, INIT, LOGIN, create_bucket
from .rights import Resource, gcloud

_APIS = ("aiplatform.googleapis.com", "storage.googleapis.com", "logging.googleapis.com")
_BUILD_APIS = ("cloudbuild.googleapis.com", "artifactregistry.googleapis.com")
# They pull images, whichever account the program has.
_AGENTS = ("gcp-sa-aiplatform-cc", "gcp-sa-aiplatform")
_IMAGE = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<name>[^/:@]+)/.+")
_MAX_RIGHTS = 4
_OK, _DENIED, _MISSING = 200, 401, 404


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """The inputs of the checks, and the known facts about the caller."""

    job: Job
    target: Vertex
    project: str
    number: str  # of the project, "" if unknown
    member: str  # the caller, as policies name it
    bucket: str  # "" if none is set
    about: ServiceReply  # the answer about it
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

    def rows(self, job: Job, target: Target, root: str) -> list[Row]:
        service.check()
        options = Vertex.of(target)
        project = options.project or ""
        answer = read(
            client.PROJECTS, f"/v1/projects/{quote(project, safe='')}" if project else "/v1/projects", project=project
        )
        looks: list[Row] = []
        if answer.status == _DENIED:
            checks = [mended_by("credentials", "error", answer.error, LOGIN)]
            checks += _not_asked(["project", *_LOOKS], "there are no credentials", options)
        elif not answer.status:
            checks = [unknown("credentials", f"whether they are accepted: {answer.error}", "check the network")]
            checks += _not_asked(["project", *_LOOKS], "there is no answer", options)
        else:
            member = _caller(project)
            here = f" on {service.service_name()}" if service.stand_in() else ""
            checks = [fine("credentials", f"accepted{here}; {member}"), _project(project, answer)]
            if project:
                number = str(answer.body.get("projectNumber") or _number(project))
                setup = _read_setup(job, options, root, member, number)
                looks = [Row(name, partial(look, setup), online=True) for name, look in _LOOKS.items()]
            else:
                checks += _not_asked(_LOOKS, "no project is set", options)
        return [Row("credentials", lambda: checks), *looks, Row("cmek", partial(_never_known, options))]

    def proposed(self, existing: Mapping[str, Proposed], environ: Mapping[str, str]) -> list[Proposed]:
        service.check()
        return proposal.settings(existing, environ)


def _not_asked(names: Sequence[str] | Mapping[str, object], why: str, target: Vertex) -> list[Check]:
    return [unknown(name, f"not asked: {why}") for name in names if name != "keeper" or target.keeper]


def _caller(project: str) -> str:
    """Return the caller, as a policy names it; else a text that the shell replaces by it."""
    credentials: Any = getattr(client.session(client.PROJECTS, project), "credentials", None)
    account = getattr(credentials, "service_account_email", "")
    if "@" in str(account):
        return f"serviceAccount:{account}"
    email = read("https://openidconnect.googleapis.com", "/v1/userinfo").body.get("email")
    return f"user:{email}" if email else rights.BY_SHELL


def _project(project: str, answer: ServiceReply) -> Check:
    if not project:
        return mended_by("project", "error", "none is set", INIT)
    if answer.status != _OK:
        return unknown(
            "project", f"whether {project} exists: {answer.error}", "", gcloud("projects", "describe", project)
        )
    state = str(answer.body.get("lifecycleState", ""))
    if state not in ("ACTIVE", ""):
        return mended_by("project", "error", f"{project} is {state}", gcloud("projects", "undelete", project))
    return fine("project", f"{project}, number {answer.body.get('projectNumber', 'not known')}")


def _read_setup(job: Job, target: Vertex, root: str, member: str, number: str) -> _Setup:
    project = str(target.project)
    bucket = "" if root.startswith("gs://<") else root.removeprefix("gs://").partition("/")[0]
    about = ServiceReply(status=0)
    if bucket:
        about = read(client.STORAGE, f"/storage/v1/b/{quote(bucket, safe='')}", project=project)
    if CHEAPEST in target.regions:
        facts: Facts = offline.facts(job, target, root)
        if about.status == _OK:
            facts = replace(facts, online={"bucket": {"name": bucket, "exists": True, "about": about.body}})
        target = Vertex.of(target.located(job.resources, facts)[0])
    return _Setup(
        job=job,
        target=target,
        project=project,
        number=number,
        member=member,
        bucket=bucket,
        about=about,
        region=target.region_names[0],
    )


def _who_may(setup: _Setup, resource: Resource, permission: str) -> str:
    """Return a sentence that names the caller's missing right for a change, "" if the caller has it."""
    if not rights.mine(resource, permission, project=setup.project).missing:
        return ""
    return f"You lack {permission} {resource.words}. Ask someone who has it to run:"


def _granted(
    setup: _Setup, name: str, resource: Resource, account: str = "", level: Level = "error", first: str = ""
) -> Check:
    """Judge the rights of a service account on a resource, by default of the caller; `first` runs before the grant."""
    member = f"serviceAccount:{account}" if account else setup.member
    who, command = member.partition(":")[2], " && ".join(filter(None, (first, resource.command(member))))
    if account:
        lack = rights.of_member(account, resource, project=setup.project)
    else:
        lack = rights.mine(resource, project=setup.project)
    if lack.missing:
        text = f"{who} lacks {and_more(lack.missing, _MAX_RIGHTS)} {resource.words}"
        return mended_by(name, level, text, command, _who_may(setup, resource, resource.granting))
    if lack.unknown:
        text = f"whether {who} has {and_more(lack.unknown, _MAX_RIGHTS)} {resource.words}: {lack.why}"
        return unknown(name, text, "if not:", command)
    return fine(name, f"{who} has what {resource.role} gives {resource.words}")


def _there(
    setup: _Setup,
    name: str,
    what: str,
    answer: ServiceReply,
    create: str,
    owner: str,
    right: str,
    level: Level = "error",
) -> Check:
    """Judge whether a resource exists; else name the command that creates it, its project, and the required right."""
    if answer.status == _MISSING:
        return mended_by(name, level, f"there is no {what}", create, _who_may(setup, rights.in_project(owner), right))
    if answer.status != _OK:
        return unknown(name, f"whether there is {what}: {answer.error}", "if not:", create)
    return fine(name, what)


def _services(project: str, apis: Sequence[str]) -> ServiceReply:
    names = urlencode([("names", f"projects/{project}/services/{api}") for api in apis])
    return read(client.APIS, f"/v1/projects/{quote(project, safe='')}/services:batchGet?{names}", project=project)


def _number(project: str) -> str:
    """Return the number of a project that the caller may not read, by the names of its APIs; "" if it is not known."""
    names = [str(service.get("name", "")) for service in _services(project, _APIS[:1]).items("services")]
    return next((name.split("/")[1] for name in names if re.match(r"projects/\d+/", name)), "")


def _enabled(setup: _Setup, name: str, apis: Sequence[str], level: Level) -> Check:
    answer = _services(setup.project, apis)
    states = {
        str(service.get("name", "")).rpartition("/")[2]: service.get("state") for service in answer.items("services")
    }
    disabled = [api for api in apis if states.get(api) == "DISABLED"]
    command = gcloud("services", "enable", *(disabled or apis), f"--project={setup.project}")
    if disabled:
        before = _who_may(setup, rights.in_project(setup.project), "serviceusage.services.enable")
        text = f"{joined(disabled, 'and')} {'is' if len(disabled) == 1 else 'are'} disabled in {setup.project}"
        return mended_by(name, level, text, command, before)
    not_known = [api for api in apis if states.get(api) != "ENABLED"]
    if not_known:
        text = f"whether {joined(not_known, 'and')} are enabled: {answer.error or 'the answer does not say it'}"
        return unknown(name, text, "if not:", command)
    return fine(name, f"{joined(apis, 'and')} are enabled")


def _apis(setup: _Setup) -> Iterator[Check]:
    yield _enabled(setup, "apis", _APIS, "error")


def _jobs(setup: _Setup) -> Iterator[Check]:
    yield _granted(setup, "jobs", rights.in_project(setup.project, *rights.JOBS))
    yield _granted(setup, "logs", rights.in_project(setup.project, rights.LOGS))


def _bucket(setup: _Setup) -> Iterator[Check]:
    name, answer = setup.bucket, setup.about
    if not name:
        yield mended_by("bucket", "error", "none is set", INIT)
    elif answer.status == _MISSING:
        create = create_bucket(name, setup.project, setup.region)
        yield _there(setup, "bucket", f"gs://{name}", answer, create, setup.project, "storage.buckets.create")
    elif answer.status != _OK:
        text = f"the location and the retention of gs://{name}: {answer.error}"
        yield unknown("bucket", text, "", gcloud("storage", "buckets", "describe", f"gs://{name}"))
    else:
        yield _fits(setup, name, str(answer.body.get("location", "")).lower())
        yield from buckets.retention_checks(name, answer.body)


def _fits(setup: _Setup, name: str, there: str) -> Check:
    regions = setup.target.region_names
    wrong = online_checks.unfit(name, setup.about.body, setup.region, "").partition(" Next:")[0].rstrip(".")
    if not wrong and there not in regions:
        wrong = f"gs://{name} is in {there}, but the job is in {joined(regions, 'or')}"
    if not wrong:
        return fine("bucket", f"gs://{name} is in {there}")
    # A bucket stays where it was made.
    other = buckets.new_name(name, setup.region)
    create = create_bucket(other, setup.project, setup.region)
    return mended_by("bucket", "error", wrong, create, f"Make another, and set vertex_bucket = {other!r}:")


def _objects(setup: _Setup) -> Iterator[Check]:
    if setup.bucket and setup.about.status != _MISSING:
        yield _granted(setup, "objects", rights.on_bucket(setup.bucket))


def _account(setup: _Setup) -> Iterator[Check]:
    account = setup.target.service_account
    if account is None:
        agent = "Vertex AI's own agent, which can use nothing but the bucket"
        yield fine("account", f"none is set: programs run as {agent}")
        return
    answer = read(client.ACCOUNTS, f"/v1/projects/-/serviceAccounts/{quote(account, safe='')}", project=setup.project)
    name, _, owner = account.partition("@")
    owner = owner.partition(".")[0]
    create = gcloud("iam", "service-accounts", "create", name, f"--project={owner}")
    yield _there(setup, "account", account, answer, create, owner, "iam.serviceAccounts.create")
    if answer.status == _MISSING:
        return
    yield _granted(setup, "actas", rights.on_account(account))
    if setup.bucket and setup.about.status != _MISSING:
        yield _granted(setup, "storage", rights.on_bucket(setup.bucket), account)


def _keeper(setup: _Setup) -> Iterator[Check]:
    keeper = setup.target.kept_by(setup.job.limits, setup.job.retry)
    if keeper is not None and setup.bucket:
        for resource in rights.resources(keeper, setup.project, setup.bucket):
            yield _granted(setup, "keeper", resource, keeper.account)


def _image(setup: _Setup) -> Iterator[Check]:
    for family, name in setup.target.images_for(setup.job.resources).items():
        command = f"podlift image {family} --submit" if family else BUILD_IMAGE
        if name is None:
            yield mended_by("image", "error", f"none is recorded for {family.upper()}s", command)
            continue
        answer = probe.image(name)
        reason = str(answer["error"]).rstrip(".")
        if answer["exists"]:
            yield fine("image", f"{name} exists")
        elif answer["exists"] is None:
            yield unknown("image", f"whether {name} exists: {reason}")
        else:
            yield mended_by("image", "error", f"there is no image {name} ({reason})", command)


def _pull(setup: _Setup) -> Iterator[Check]:
    foreign = next((name for name in setup.images if not _IMAGE.fullmatch(name)), "")
    if foreign:
        yield unknown("pull", f"whether Vertex AI may pull {foreign}: it is not in Artifact Registry")
        return
    if not setup.number:
        yield unknown("pull", "which accounts pull images: the project's number is not known")
        return
    resource = rights.on_repository(*setup.repository, rights.PULL)
    # Before its first training a project has no agents, and a policy can only name existing accounts.
    create = gcloud("beta", "services", "identity", "create", f"--service={_APIS[0]}", f"--project={setup.project}")
    for agent in _AGENTS:
        account = f"service-{setup.number}@{agent}.iam.gserviceaccount.com"
        yield _granted(setup, "pull", resource, account, first=create)


def _builds(setup: _Setup) -> Iterator[Check]:
    level = setup.build_level
    yield _enabled(setup, "build-apis", _BUILD_APIS, level)
    yield _granted(setup, "build", rights.in_project(setup.project, rights.BUILD), level=level)
    parent = f"/v1/projects/{quote(setup.project, safe='')}/locations/{setup.region}"
    answer = read(client.BUILDS, f"{parent}/defaultServiceAccount", project=setup.project)
    account = str(answer.body.get("serviceAccountEmail", "")).rpartition("/")[2]
    if account:
        pushed = rights.on_repository(*setup.repository, rights.PUSH)
        yield _granted(setup, "build-account", pushed, account, level)
        yield _granted(setup, "build-logs", rights.in_project(setup.project, rights.WRITE_LOGS), account, level)
    else:
        yield unknown("build-account", f"which account builds: {answer.error or 'the project has no default one'}")
    yield _repository(setup, level)
    answer = read(client.BUILDS, f"{parent}/builds?pageSize=1", project=setup.project)
    if answer.status == _OK:
        yield fine("build-region", f"Cloud Build answers in {setup.region}")
    elif answer.status in (400, _MISSING):
        text = f"Cloud Build does not build in {setup.region}: {answer.error}"
        yield bad("build-region", level, text, "choose another of vertex_regions, or build elsewhere")
    else:
        yield unknown("build-region", f"whether Cloud Build builds in {setup.region}: {answer.error}")


def _repository(setup: _Setup, level: Level) -> Check:
    project, location, name = setup.repository
    what = f"repository {name} in {location} of {project}"
    path = f"projects/{quote(project, safe='')}/locations/{location}/repositories/{quote(name, safe='')}"
    answer = read(client.REPOSITORIES, f"/v1/{path}", project=setup.project)
    create = create_repository(project, location, name)
    if answer.status == _OK and answer.body.get("format") != "DOCKER":
        text = f"the {what} is for {answer.body.get('format')}, not for images"
        return bad("build-repo", level, text, "name another one in vertex_image")
    return _there(setup, "build-repo", what, answer, create, project, "artifactregistry.repositories.create", level)


def _quotas(setup: _Setup) -> Iterator[Check]:
    target, job = setup.target, setup.job
    needed = [quota for rented in target.rentals(job.resources, job.limits) for quota in pricing.quotas(rented)]
    for quota in dict.fromkeys(needed):
        if quota.metric is None or quota.amount is None:
            yield unknown("quota", f"whether it is enough for {quota.what}: its metric is not documented")
    page = online_checks.quota_page(setup.project)
    for limit in online_checks.limits(probe.quotas(job, target), job, target):
        demand = limit.needed
        if limit.error:
            yield unknown("quota", f"{demand.metric} in {limit.where}: {limit.error}", f"see {page}")
        elif limit.too_low:
            request = f"request {demand.amount} of {demand.metric} in {limit.where}, and wait for the approval: {page}"
            yield bad("quota", "error", limit.text, request)
        elif limit.limit is None:
            yield unknown("quota", limit.text, f"see {page}")
        else:
            yield fine("quota", limit.text)


def _never_known(target: Vertex) -> Iterator[Check]:
    """Yield the rows that no request of an ordinary user can answer."""
    spec = target.raw.get("jobSpec")
    network = spec.get("network") if isinstance(spec, dict) else None
    project = target.project or "PROJECT"
    policies = gcloud("resource-manager", "org-policies", "list", f"--project={project}")
    yield unknown("cmek", "whether the organisation demands its own keys (CMEK), and who may use them", "", policies)
    where = f"the network {network} lets through" if network else "Google's network lets through for jobs"
    yield unknown("network", f"what {where}: whether a job reaches your data and package index")
    text = f"whether {target.project or 'the project'} is inside a perimeter of VPC Service Controls"
    yield unknown("vpc-sc", text, "ask the administrators of the organisation")
    yield unknown("org-policy", "which policies of the organisation restrict regions, images or accounts", "", policies)


# In the order of the output.
_LOOKS: dict[str, Callable[[_Setup], Iterator[Check]]] = {
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
