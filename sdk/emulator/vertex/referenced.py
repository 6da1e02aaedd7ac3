"""The resources that a request refers to: buckets, images and an account, which have to exist, in the right place.

Sources: python-aiplatform#885 and #1073 for the sentences about buckets and accounts, Google's page on troubleshooting for the
one about repositories. Whether a missing image is refused at creation or fails the job is not documented: here it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...backends.vertex.checks.target import RETIRED_IMAGE
from ...job.images import EMULATED
from ..builds.builds import IMAGE
from ..builds.store import StoredResources
from ..faults import FaultRules
from ..gcs.state import StorageState
from ..project.app import repository_name
from ..project.state import ProjectState, account_name, agents
from . import bodies
from .environment import project_number
from .errors import VertexApiError, invalid

ACT_AS, _PULL = "iam.serviceAccounts.actAs", "artifactregistry.repositories.downloadArtifacts"


@dataclass(frozen=True, kw_only=True)
class References:
    """Validates the references of requests, in the emulator's own buckets, project and registry."""

    storage: StorageState
    project: ProjectState
    registry: StoredResources
    faults: FaultRules

    def check_job(self, project: str, region: str, job: Mapping[str, Any], spec: str) -> None:
        """Validate a custom job; its specification is in the field `spec` of the request."""
        uri = job.get("jobSpec", {}).get("baseOutputDirectory", {}).get("outputUriPrefix", "")
        if (bucket := bodies.bucket_of(uri)) and not self.storage.has_bucket(bucket):
            text = f"The Cloud Storage bucket {bucket!r} of the output directory does not exist."
            raise invalid([(f"{spec}.base_output_directory.output_uri_prefix", text)])
        for path in (uri, *_packages(job)):
            self.check_location(path, region)
        for agent in agents(project_number(project)):
            if not self.project.exists(account_name(agent)):
                # The first training makes them.
                self.project.create(account_name(agent))
        images = images_of(job)
        for image in images:
            self._check_image(project, image)
        if retired := [image for image in images if RETIRED_IMAGE.match(image)]:
            text = (
                "Image {} was not found: it is past its end of availability, and can no longer be used or downloaded."
            )
            raise invalid([("", text.format(image)) for image in retired])

    def check_location(self, uri: str, region: str) -> None:
        """Reject a path in an existing bucket that is elsewhere, or in several regions."""
        bucket = bodies.bucket_of(uri)
        if not bucket or not self.storage.has_bucket(bucket):
            return
        location = self.storage.bucket(bucket).location.lower()
        if location != region:
            text = (
                f"The Cloud Storage bucket of `{uri.rstrip('/')}` is in location `{location}`. It must be in the same "
                f"regional location as the service location `{region}`."
            )
            raise VertexApiError(400, text, status="FAILED_PRECONDITION")

    def check_account(self, account: str, caller: str) -> None:
        """Reject an account, "" for none, that does not exist or that the caller may not use."""
        name = account_name(account)
        if account and not (
            self.project.exists(name) and self.project.grants(caller, name, ACT_AS) and not self.faults.denies(ACT_AS)
        ):
            text = f"You do not have permission to act as service_account: {account}. (or it may not exist)."
            raise VertexApiError(400, text)

    def _check_image(self, project: str, image: str) -> None:
        named = IMAGE.fullmatch(image)
        if named is None:
            return
        resource = repository_name(named["project"], named["region"], named["id"])
        repository = resource.partition(".com/")[2]
        if not self.project.exists(resource) or self._is_missing(repository, image, named):
            raise VertexApiError(400, f"Image {image} was not found.")
        for account in agents(project_number(project)):
            if not self.project.grants(account, resource, _PULL):
                text = f"{account} does not have permission to access Artifact Registry repository {repository}."
                raise VertexApiError(403, text)

    def _is_missing(self, repository: str, image: str, named: re.Match[str]) -> bool:
        """Return whether the registry has an image of this name, but not this one. Of other names nothing is known."""
        package = named["package"]
        uris = [str(stored["uri"]) for stored in self.registry.below(f"{repository}/dockerImages")]
        exists = any(uri.partition("@")[0].rpartition("/")[2] == package for uri in uris)
        if not exists and EMULATED not in image:
            return False
        if named["digest"]:
            return self.registry.get(f"{repository}/dockerImages/{package}@{named['digest']}") is None
        return self.registry.get(f"{repository}/packages/{package}/tags/{named['tag'] or 'latest'}") is None


def _packages(job: Mapping[str, Any]) -> Iterator[str]:
    for pool in job.get("jobSpec", {}).get("workerPoolSpecs", []):
        yield from pool.get("pythonPackageSpec", {}).get("packageUris", [])


def images_of(job: Mapping[str, Any]) -> list[str]:
    """Return the images of a job, each once."""
    pools = job.get("jobSpec", {}).get("workerPoolSpecs", [])
    images = [pool.get("containerSpec", {}).get("imageUri", "") for pool in pools]
    images += [pool.get("pythonPackageSpec", {}).get("executorImageUri", "") for pool in pools]
    return list(dict.fromkeys(filter(None, images)))
