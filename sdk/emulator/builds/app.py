"""Cloud Build and Artifact Registry as an ASGI application: builds of images, tags and images. `project` has the repositories.

Made after the documented shape, not recorded. No build runs Docker: it ends at once, and its image is a digest of the build's
steps, so that the same content gives the same digest.

Sources: REST references of Cloud Build v1 (projects.locations.builds) and Artifact Registry v1 (repositories, packages.tags,
dockerImages), and the messages of google-cloud-build 3.43 and google-cloud-artifact-registry 1.23.
"""

from __future__ import annotations

from pathlib import Path

from ..answers import HARMLESS, RestCall, RestService
from ..connections import Journal
from ..errors import words
from ..faults import About, FaultRules
from ..messages import read_object
from ..project.state import ProjectState
from ..vertex.errors import VertexApiError
from ..vertex.timing import EmulatorClock
from .builds import Builds
from .store import Body, StoredResources

_PLACE = r"/v1/(?P<place>projects/[^/:]+(?::[^/:]+)?/locations/[^/:]+)"
_REPOSITORY = f"{_PLACE}/repositories/(?P<id>[^/:]+)"
# Method, decoded path, operation.
_ROUTES = (
    ("POST", f"{_PLACE}/builds", "builds.create"),
    ("GET", f"{_PLACE}/builds", "builds.list"),
    ("GET", f"{_PLACE}/builds/(?P<id>[^/:]+)", "builds.get"),
    ("POST", f"{_PLACE}/builds/(?P<id>[^/:]+):cancel", "builds.cancel"),
    ("GET", rf"{_REPOSITORY}/packages/(?P<package>[^/]+)/tags/(?P<tag>[^/]+)", "tags.get"),
    ("GET", f"{_REPOSITORY}/dockerImages", "dockerImages.list"),
    ("GET", f"{_REPOSITORY}/dockerImages/(?P<image>[^/]+)", "dockerImages.get"),
    # Operations of Vertex AI have a number.
    ("GET", f"{_PLACE}/operations/(?P<id>b-[^/:]+)", "buildOperations.get"),
)
_PARAMETERS = {
    "builds.create": HARMLESS | words("projectId"),
    "builds.list": HARMLESS | words("filter pageSize pageToken projectId"),
    "builds.get": HARMLESS | words("projectId id"),
    "dockerImages.list": HARMLESS | words("pageSize pageToken orderBy"),
}


class BuildsApp(RestService):
    routes, parameters = _ROUTES, _PARAMETERS

    def __init__(
        self, folder: Path, project: ProjectState, clock: EmulatorClock, faults: FaultRules, journal: Journal
    ) -> None:
        super().__init__(faults, journal)
        self._project = project
        self.stored = StoredResources(folder)
        self._builds = Builds(self.stored, project, clock, faults)
        self.clear, self.close = self.stored.clear, self.stored.close

    def about(self, call: RestCall) -> About:
        return About(call.id, call.named["place"].rpartition("/")[2])

    async def perform(self, call: RestCall) -> Body:
        operation, named, parent = call.operation, call.named, call.named["place"]
        if operation == "builds.create":
            return self._builds.create(parent, read_object(call.body))
        if operation == "builds.list":
            return self._builds.listed(parent, call.query.get("filter", ""))
        if operation in ("builds.get", "builds.cancel"):
            name = f"{parent}/builds/{named['id']}"
            return self._builds.get(name) if operation == "builds.get" else self._builds.cancel(name)
        if operation == "buildOperations.get":
            return self._builds.operation(parent, named["id"])
        repository = f"{parent}/repositories/{named['id']}"
        if not self._project.exists(f"//artifactregistry.googleapis.com/{repository}"):
            raise VertexApiError(404, f"{repository} was not found.")
        if operation == "dockerImages.list":
            return {"dockerImages": list(self.stored.below(f"{repository}/dockerImages"))}
        within = {
            "tags.get": f"/packages/{named.get('package')}/tags/{named.get('tag')}",
            "dockerImages.get": f"/dockerImages/{named.get('image')}",
        }
        return self.stored.existing(repository + within[operation])
