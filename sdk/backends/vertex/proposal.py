"""Settings of Vertex AI that fit what a user has: from gcloud's configuration, credentials, and requests that only look.

Sources: gcloud topic configurations; REST references of Resource Manager v1 (projects.list), Cloud Storage v1 (buckets.list)
and IAM v1 (serviceAccounts.list).
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ...checks import buckets, vertex_online
from ...hardware import regions
from ...storage import emulator
from ...text import and_more, emulator_at
from ..setup import Proposed
from . import client, reads
from .reads import ServiceReply, read
from .rights import gcloud

INIT, BUILD_IMAGE = "podlift init vertex", "podlift image --submit"
# What podlift makes is called so, and is preferred to others.
REPOSITORY = OURS = "podlift"
_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "GCLOUD_PROJECT")
_REGION_VARIABLES = ("CLOUDSDK_AI_REGION", "CLOUDSDK_COMPUTE_REGION")
# Accounts that Google has made, and that have too many rights.
_GOOGLES = re.compile(r".*(-compute@developer|@appspot)\.gserviceaccount\.com")
_SHOWN = 5
_DEFAULT = "podlift's default"
_NO_PROJECT = Proposed(source="no project is set", known=False)
_NO_IMAGE = f"{BUILD_IMAGE} builds one, and writes it below [vertex.images]"


def proposed(given: Mapping[str, Proposed], environ: Mapping[str, str]) -> dict[str, Proposed]:
    """Return a proposal for each setting: what is given, else what was found."""
    # Tools of this machine know nothing of an emulator's projects.
    config = {} if emulator.asked() else _gcloud(environ)
    variables = {} if emulator.asked() else environ
    project = given.get("project") or _project(config, variables)
    name = str(project.value or "")
    listed = _buckets(name)
    places = given.get("places")
    region = places or given.get("regions") or _region(config, variables, given.get("bucket"), listed)
    if isinstance(region.value, str):
        region = replace(region, value=tuple(each.strip() for each in region.value.split(",")))
    place = str((region.value or [""])[0]).partition(":")[0]
    rest: dict[str, Callable[[], Proposed]] = {
        "bucket": lambda: _bucket(name, place, listed),
        "service_account": lambda: _account(name),
    }
    if not name and region.source == _DEFAULT:
        region = _NO_PROJECT
    # Images for each family of hardware stand for the one image.
    if not given.get("images"):
        rest["image"] = lambda: Proposed(source=_NO_IMAGE, command=BUILD_IMAGE) if name else _NO_PROJECT
    # A list of places stands for the regions.
    found = {"project": project, **({} if places else {"regions": region})}
    return {**found, **{field: given.get(field) or make() for field, make in rest.items()}}


def create_bucket(name: str, project: str, region: str) -> str:
    options = ("--uniform-bucket-level-access", "--soft-delete-duration=0")
    return gcloud(
        "storage", "buckets", "create", f"gs://{name}", f"--project={project}", f"--location={region}", *options
    )


def _gcloud(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of gcloud's active configuration, such as "core/project"."""
    found = configparser.ConfigParser(interpolation=None)
    with suppress(OSError, RuntimeError, ValueError, configparser.Error):
        home = Path(environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud")
        named = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or (home / "active_config").read_text().strip()
        found.read_string((home / "configurations" / f"config_{named or 'default'}").read_text())
    return {f"{section}/{key}": text for section in found.sections() for key, text in found.items(section)}


def _project(config: Mapping[str, str], variables: Mapping[str, str]) -> Proposed:
    for name in _PROJECT_VARIABLES:
        if variables.get(name):
            return Proposed(value=variables[name], source=name)
    if config.get("core/project"):
        return Proposed(value=config["core/project"], source="gcloud's configuration")
    given: Any = None
    with suppress(client.VertexRejectedError):
        given = getattr(client.session(reads.PROJECTS), "credentials", None)
    for attribute in ("project_id", "quota_project_id"):
        if isinstance(named := getattr(given, attribute, None), str) and named:
            return Proposed(value=named, source="the credentials")
    answer = read(reads.PROJECTS, "/v1/projects?" + urlencode({"filter": "lifecycleState:ACTIVE"}))
    names = [str(each.get("projectId")) for each in answer.items("projects")]
    choose = f"{INIT} --vertex-project PROJECT"
    if len(names) == 1:
        return Proposed(value=names[0], source=f"the only project{_here()}")
    if names:
        return Proposed(source=f"several: {and_more(names, _SHOWN)}", command=choose)
    if answer.status == 401:
        return Proposed(source=answer.error, command="gcloud auth application-default login")
    return Proposed(source=answer.error or "no project is listed", command=choose)


def _here() -> str:
    return f" of the {emulator_at(emulator.asked())}" if emulator.asked() else ""


def _buckets(project: str) -> ServiceReply:
    if not project:
        return ServiceReply(status=0, error="no project is set")
    query = urlencode({"project": project, "maxResults": 1000})
    return read(reads.STORAGE, f"/storage/v1/b?{query}", project=project)


def _fitting(listed: ServiceReply, region: str = "") -> dict[str, str]:
    """Return the buckets in which runs can live, and their regions: if one is podlift's, only those."""
    found = {
        str(each.get("name")): str(each.get("location", "")).lower()
        for each in listed.items("items")
        if not vertex_online.unfit("", each, "", "")
    }
    found = {name: place for name, place in found.items() if region in ("", place)}
    return {name: place for name, place in found.items() if OURS in name} or found


def _region(
    config: Mapping[str, str], variables: Mapping[str, str], bucket: Proposed | None, listed: ServiceReply
) -> Proposed:
    for name in _REGION_VARIABLES:
        if variables.get(name):
            return Proposed(value=(variables[name],), source=name)
    for key in ("ai/region", "compute/region"):
        if config.get(key):
            return Proposed(value=(config[key],), source=f"gcloud's configuration ({key})")
    places = {str(each.get("name")): str(each.get("location", "")).lower() for each in listed.items("items")}
    named = str(bucket.value).partition("/")[0] if bucket else ""
    fitting = {named: places[named]} if named in places else _fitting(listed)
    if len(set(fitting.values())) == 1:
        name, place = next(iter(fitting.items()))
        return Proposed(value=(place,), source=f"the location of gs://{name}")
    return Proposed(value=(regions.DEFAULT,), source=_DEFAULT)


def _bucket(project: str, region: str, listed: ServiceReply) -> Proposed:
    fitting = list(_fitting(listed, region))
    if len(fitting) == 1:
        return Proposed(value=fitting[0], source=f"a bucket in {region}{_here()}")
    if fitting:
        several = f"several in {region}: {and_more(fitting, _SHOWN)}"
        return Proposed(source=several, command=f"{INIT} --vertex-bucket BUCKET")
    if not project:
        return _NO_PROJECT
    why = listed.error or f"{project} has none in {region}"
    command = create_bucket(buckets.new_name(project, OURS), project, region)
    return Proposed(source=why, command=command, known=not listed.error)


def _account(project: str) -> Proposed:
    if not project:
        return _NO_PROJECT
    answer = read(
        reads.ACCOUNTS, f"/v1/projects/{quote(project, safe='')}/serviceAccounts?pageSize=100", project=project
    )
    emails = [str(each.get("email")) for each in answer.items("accounts") if not each.get("disabled")]
    own = [each for each in emails if not _GOOGLES.fullmatch(each)]
    own = [each for each in own if each.startswith(OURS)] or own
    if len(own) == 1:
        return Proposed(value=own[0], source=f"a service account of {project}{_here()}")
    if own:
        return Proposed(source=f"several: {and_more(own, _SHOWN)}", command=f"{INIT} --vertex-service-account ACCOUNT")
    command = gcloud("iam", "service-accounts", "create", OURS, f"--project={project}")
    return Proposed(source=answer.error or f"{project} has none of yours", command=command, known=not answer.error)
