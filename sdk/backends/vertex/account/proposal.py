"""Settings of Vertex AI that fit a user's account: from gcloud's configuration, credentials, and read-only requests.

Sources: gcloud topic configurations; REST references of Resource Manager v1 (projects.list), Cloud Storage v1 (buckets.list)
and IAM v1 (serviceAccounts.list).
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ....checks import buckets
from ....checks.check import Proposed, not_found, proposed
from ....hardware import regions
from ....text import and_more
from .. import client, service
from ..checks import online as online_checks
from ..client import ServiceReply, read
from .rights import gcloud

INIT, BUILD_IMAGE = "podlift init vertex", "podlift image --submit"
LOGIN = "gcloud auth application-default login"
# The name of resources that podlift makes; they are preferred to others.
_OURS = "podlift"
_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "GCLOUD_PROJECT")
_REGION_VARIABLES = ("CLOUDSDK_AI_REGION", "CLOUDSDK_COMPUTE_REGION")
# Accounts that Google has made, and that have too many rights.
_GOOGLES = re.compile(r".*(-compute@developer|@appspot)\.gserviceaccount\.com")
_MAX_NAMES = 5


def settings(existing: Mapping[str, Proposed], environ: Mapping[str, str]) -> list[Proposed]:
    """Return a value for each setting: the existing one, else a proposal."""
    # Tools of this machine have no access to an emulator's projects.
    config = {} if service.stand_in() else _gcloud(environ)
    variables = {} if service.stand_in() else environ
    project = existing.get("project") or _project(config, variables)
    name = str(project.value or "")
    listed = _buckets(name)
    region = existing.get("regions") or _region(name, config, variables, existing.get("bucket"), listed)
    if isinstance(region.value, str):
        region = replace(region, value=tuple(region_name.strip() for region_name in region.value.split(",")))
    first = region.value[0].partition(":")[0] if isinstance(region.value, tuple) else ""
    proposals = [project, region, existing.get("bucket") or _bucket(name, first, listed)]
    proposals.append(existing.get("service_account") or _account(name))
    return [*proposals, existing.get("image") or _image(name)]


def create_bucket(name: str, project: str, region: str) -> str:
    options = ("--uniform-bucket-level-access", "--soft-delete-duration=0")
    return gcloud(
        "storage", "buckets", "create", f"gs://{name}", f"--project={project}", f"--location={region}", *options
    )


def _gcloud(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of gcloud's active configuration, such as "core/project"."""
    config = configparser.ConfigParser(interpolation=None)
    with suppress(OSError, RuntimeError, ValueError, configparser.Error):
        home = Path(environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud")
        named = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or (home / "active_config").read_text().strip()
        config.read_string((home / "configurations" / f"config_{named or 'default'}").read_text())
    return {f"{section}/{key}": text for section in config.sections() for key, text in config.items(section)}


def _project(config: Mapping[str, str], variables: Mapping[str, str]) -> Proposed:
    for name in _PROJECT_VARIABLES:
        if variables.get(name):
            return proposed("project", variables[name], name)
    if config.get("core/project"):
        return proposed("project", config["core/project"], "gcloud's configuration")
    credentials: Any = None
    with suppress(client.VertexRejectedError):
        credentials = getattr(client.session(client.PROJECTS), "credentials", None)
    for attribute in ("project_id", "quota_project_id"):
        if isinstance(named := getattr(credentials, attribute, None), str) and named:
            return proposed("project", named, "the credentials")
    answer = read(client.PROJECTS, "/v1/projects?" + urlencode({"filter": "lifecycleState:ACTIVE"}))
    if answer.status == 401:
        return not_found("project", answer.error, LOGIN)
    names = [str(about.get("projectId")) for about in answer.items("projects")]
    none = answer.error or "no project is listed"
    return _only("project", names, "the only project", "", none, f"{INIT} --vertex-project PROJECT")


def _only(name: str, names: Sequence[str], source: str, where: str, none: str, choose: str) -> Proposed:
    """Return the only fitting name; of several none, and the command that chooses one."""
    if len(names) == 1:
        here = f" of {service.service_name()}" if service.stand_in() else ""
        return proposed(name, names[0], f"{source}{here}")
    return not_found(name, f"several{where}: {and_more(names, _MAX_NAMES)}" if names else none, choose)


def _no_project(name: str) -> Proposed:
    return not_found(name, "no project is set", known=False)


def _buckets(project: str) -> ServiceReply:
    if not project:
        return ServiceReply(status=0, error="no project is set")
    query = urlencode({"project": project, "maxResults": 1000})
    return read(client.STORAGE, f"/storage/v1/b?{query}", project=project)


def _fitting(listed: ServiceReply, region: str = "") -> dict[str, str]:
    """Return the buckets in which runs can live, and their regions: if any are podlift's, only podlift's."""
    fitting = {
        str(bucket.get("name")): str(bucket.get("location", "")).lower()
        for bucket in listed.items("items")
        if not online_checks.unfit("", bucket, "", "")
    }
    fitting = {name: where for name, where in fitting.items() if region in ("", where)}
    return {name: where for name, where in fitting.items() if _OURS in name} or fitting


def _region(
    project: str,
    config: Mapping[str, str],
    variables: Mapping[str, str],
    bucket: Proposed | None,
    listed: ServiceReply,
) -> Proposed:
    for name in _REGION_VARIABLES:
        if variables.get(name):
            return proposed("regions", (variables[name],), name)
    for key in ("ai/region", "compute/region"):
        if config.get(key):
            return proposed("regions", (config[key],), f"gcloud's configuration ({key})")
    locations = {str(about.get("name")): str(about.get("location", "")).lower() for about in listed.items("items")}
    named = str(bucket.value).partition("/")[0] if bucket else ""
    fitting = {named: locations[named]} if named in locations else _fitting(listed)
    if len(set(fitting.values())) == 1:
        name, region = next(iter(fitting.items()))
        return proposed("regions", (region,), f"the location of gs://{name}")
    return proposed("regions", (regions.DEFAULT,), "podlift's default") if project else _no_project("regions")


def _bucket(project: str, region: str, listed: ServiceReply) -> Proposed:
    if not project:
        return _no_project("bucket")
    fitting = list(_fitting(listed, region))
    if fitting:
        choose = f"{INIT} --vertex-bucket BUCKET"
        return _only("bucket", fitting, f"a bucket in {region}", f" in {region}", "", choose)
    why = listed.error or f"{project} has none in {region}"
    command = create_bucket(buckets.new_name(project, _OURS), project, region)
    return not_found("bucket", why, command, known=not listed.error)


def _account(project: str) -> Proposed:
    if not project:
        return _no_project("service_account")
    answer = read(
        client.ACCOUNTS, f"/v1/projects/{quote(project, safe='')}/serviceAccounts?pageSize=100", project=project
    )
    emails = [str(account.get("email")) for account in answer.items("accounts") if not account.get("disabled")]
    own = [account for account in emails if not _GOOGLES.fullmatch(account)]
    own = [account for account in own if account.startswith(_OURS)] or own
    if own:
        choose = f"{INIT} --vertex-service-account ACCOUNT"
        return _only("service_account", own, f"a service account of {project}", "", "", choose)
    command = gcloud("iam", "service-accounts", "create", _OURS, f"--project={project}")
    return not_found("service_account", answer.error or f"{project} has none of yours", command, known=not answer.error)


def _image(project: str) -> Proposed:
    why = f"{BUILD_IMAGE} builds one, and writes it below [vertex.image]"
    return not_found("image", why, BUILD_IMAGE) if project else _no_project("image")
