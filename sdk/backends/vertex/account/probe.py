"""Queries the bucket, the image and the quotas of a plan, in parallel and with short timeouts.

The responses become facts of the plan, which `checks.online` evaluates.

Sources (read 2026-11-21): REST reference of Service Usage v1beta1, services.consumerQuotaMetrics; the registry's HTTP API v2
(HEAD of a manifest), which Artifact Registry speaks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from urllib.parse import quote

from ....clock import SystemClock
from ....errors import InputError, StoreError
from ....hardware import pricing
from ....hardware.regions import CHEAPEST
from ....job.findings import Facts
from ....job.images import EMULATED
from ....job.job import Job
from ....storage import emulator
from ....storage.gcs.files import BucketFiles
from ....storage.gcs.requests import GcsStatusError as Refusal
from ....storage.retry import RetryPolicy
from .. import client
from ..checks import job_rules
from ..checks import online as online_checks
from ..options import Vertex
from . import locations, rights

_RETRY = RetryPolicy(connect_s=3.0, read_s=5.0, total_s=8.0, first_s=8.0)
_TIMEOUT_S = (3.0, 5.0)
_SERVICE = "aiplatform.googleapis.com"
# Registries that accept Google's tokens. Others are not queried.
_REGISTRY = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io")
_IMAGE = re.compile(r"(?P<host>[^/]+)/(?P<path>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?")
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
# The properties of a bucket that are used.
_BUCKET_FIELDS = ("location", "locationType", "softDeletePolicy", "versioning")
_WORKERS = 8

OnlineFacts = dict[str, object]


def probe_online(job: Job, target: Vertex, root: str, offline_facts: Facts) -> OnlineFacts:
    """Return the responses for `Facts.online`, without responses for missing settings. `offline_facts` needed no request."""
    emulator.checked_address()
    if CHEAPEST in target.regions and "bucket" not in offline_facts.online and not root.startswith("gs://<"):
        offline_facts = replace(offline_facts, online={"bucket": bucket(root)})
    target = Vertex.of(target.located(job.resources, offline_facts)[0])
    queries: dict[str, Callable[[], OnlineFacts]] = {
        "keeper": partial(_keeper, job, target, root),
        "settings": partial(settings, target),
        "quotas": partial(quotas, job, target),
        **{key: partial(image, named) for key, named in target.named_images.items()},
    }
    if not root.startswith("gs://<"):
        queries["bucket"] = partial(bucket, root)
    if output := online_checks.raw_output(target):
        queries["output"] = partial(bucket, output)
    with ThreadPoolExecutor(_WORKERS) as pool:
        futures = {name: pool.submit(query) for name, query in queries.items()}
        facts = {name: answer for name, future in futures.items() if (answer := future.result())}
    about = facts.get("bucket", {}).get("about")
    locations.store(root, about if isinstance(about, dict) else {}, os.environ, SystemClock().now())
    return {**facts}


def _keeper(job: Job, target: Vertex, root: str) -> OnlineFacts:
    """Return which rights the account of the keeper lacks, and which are not known; {} without a keeper."""
    keeper = target.kept_by(job.limits, job.retry)
    if keeper is None or not target.project or root.startswith("gs://<"):
        return {}
    bucket = root.removeprefix("gs://").partition("/")[0]
    resources = rights.resources(keeper, target.project, bucket)
    return asdict(rights.on_each(resources, partial(rights.of_member, keeper.account)))


def settings(target: Vertex) -> OnlineFacts:
    """Return the facts about the resources that settings name: by "setting", or by "setting@region" for one of each region."""
    facts: OnlineFacts = {}
    for name, value in target.passed_on.items():
        if name == "persistent_resource":
            paths = {
                f"{name}@{region}": (
                    f"https://{region}-aiplatform.googleapis.com",
                    f"/v1/projects/{target.project}/locations/{region}/persistentResources/{value}",
                )
                for region in target.region_names
            }
        else:
            paths = {name: _resource(name, value)}
        facts |= {key: _exists(target, host, path) for key, (host, path) in paths.items()}
    return facts


def _resource(name: str, value: str) -> tuple[str, str]:
    """Return the service of a named resource, and its path there."""
    if name == "network":
        return "https://compute.googleapis.com", f"/compute/v1/{value}"
    if name == "kms_key":
        return "https://cloudkms.googleapis.com", f"/v1/{value}"
    return f"https://{job_rules.region_of(value)}-aiplatform.googleapis.com", f"/v1/{value}"


def _exists(target: Vertex, host: str, path: str) -> OnlineFacts:
    if emulator.address():
        return {**_unknown("the emulator has no such resources, and passes the name on"), "about": {}}
    # Another finding reports a malformed name, which must not become another address.
    whole = re.fullmatch(r"https://[a-z0-9.-]+/[\w./:-]+", host + path, re.ASCII)
    if not target.project or not whole or ".." in path or "//-" in host:
        return {**_unknown("its name or the project is missing or malformed"), "about": {}}
    answer = client.read(host, path, project=target.project)
    return {**_answered(answer.status, answer.error), "about": dict(answer.body)}


def bucket(root: str) -> OnlineFacts:
    """Return whether a root's bucket can be used ("exists", None if unknown), and its properties ("about")."""
    name = root.removeprefix("gs://").partition("/")[0]
    try:
        about = BucketFiles(root, retry=_RETRY).bucket_info()
    except (StoreError, InputError) as error:
        # Without a response, it is unknown.
        status = error.__cause__.code if isinstance(error.__cause__, Refusal) else 0
        exists = False if status in (401, 403, 404) else None
        return {"name": name, "exists": exists, "status": status, "error": str(error), "about": {}}
    return {
        "name": name,
        "exists": True,
        "status": 200,
        "error": "",
        "about": {key: about[key] for key in _BUCKET_FIELDS if key in about},
    }


def image(name: str, address: str | None = None) -> OnlineFacts:
    parts = _IMAGE.fullmatch(name)
    if address is None and emulator.address():
        return (
            _emulated_image(name, parts)
            if EMULATED in name
            else _unknown("the emulator only has the images that it built")
        )
    if parts is None or not (address or _REGISTRY.fullmatch(parts["host"])):
        return _unknown("only Artifact Registry can be queried with Google's credentials")
    url = f"{address or 'https://' + parts['host']}/v2/{parts['path']}/manifests/"
    reference = parts["digest"] or parts["tag"] or "latest"
    return _answered(*_head(url + quote(reference, safe=":"), {"Accept": _MANIFESTS}))


def _answered(status: int, error_text: str) -> OnlineFacts:
    if status in (200, 404):
        return {"exists": status == 200, "error": error_text if status == 404 else ""}
    return _unknown(error_text)


def _emulated_image(name: str, parts: re.Match[str] | None) -> OnlineFacts:
    folders = parts["path"].split("/") if parts else []
    if parts is None or len(folders) != 3:
        return {"exists": False, "error": "it has no repository"}
    region = parts["host"].partition("-docker.")[0]
    image = f"{folders[2]}@{parts['digest']}"
    path = f"/v1/projects/{folders[0]}/locations/{region}/repositories/{folders[1]}/dockerImages/{quote(image)}"
    answer = client.read(client.REPOSITORIES, path)
    return _answered(answer.status, answer.error)


def quotas(job: Job, target: Vertex) -> OnlineFacts:
    """Return the limits of each metric that a job counts against; {} without a project."""
    needed = [quota for rented in target.rentals(job.resources, job.limits) for quota in pricing.quotas(rented)]
    metrics = dict.fromkeys(quota.metric for quota in needed if target.project and quota.metric and quota.amount)
    with ThreadPoolExecutor(_WORKERS) as pool:
        return dict(zip(metrics, pool.map(partial(quota, target), metrics), strict=True))


def quota(target: Vertex, metric: str) -> OnlineFacts:
    """Return the limits of one metric by region, -1 for unlimited."""
    named = quote(metric, safe="")
    path = f"/v1beta1/projects/{target.project}/services/{_SERVICE}/consumerQuotaMetrics/{named}?view=FULL"
    answer = client.read(client.APIS, path, project=str(target.project))
    if answer.error:
        return _unknown(answer.error)
    limits = {region: _limit(answer.body, region) for region in target.region_names}
    return {
        "exists": True,
        "error": "",
        "limits": {region: limit for region, limit in limits.items() if limit is not None},
    }


def _limit(answer: Mapping[str, object], region: str) -> int | None:
    """Return the effective limit in a region: the lowest of all limits, each by its most specific bucket."""
    limits = []
    for limit in client.objects(answer, "consumerQuotaLimits"):
        buckets = client.objects(limit, "quotaBuckets")
        fitting = [bucket for bucket in buckets if bucket.get("dimensions", {}) in ({}, {"region": region})]
        # Ordered from the least to the most specific. An int64 is a string in JSON.
        effective = str(fitting[-1].get("effectiveLimit")) if fitting else ""
        limits += [int(effective)] if re.fullmatch(r"-?\d+", effective, re.ASCII) else []
    if not limits:
        return None
    return min((limit for limit in limits if limit >= 0), default=-1)


def _unknown(error_text: str) -> OnlineFacts:
    return {"exists": None, "error": error_text}


def _head(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Return the status (0 without a response), and an error text."""
    import requests
    from google.auth.exceptions import GoogleAuthError

    try:
        response = client.session(url).request("HEAD", url, headers=dict(headers), timeout=_TIMEOUT_S)
    except client.VertexRejectedError as error:
        # The finding about the bucket names the next step.
        return 0, str(error).partition(" Next:")[0]
    except (requests.RequestException, GoogleAuthError) as error:
        return 0, emulator.mask_token(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    # The answer to a HEAD has no body with more details.
    return response.status_code, f"{response.status_code}: {response.reason or 'no reason given'}"
