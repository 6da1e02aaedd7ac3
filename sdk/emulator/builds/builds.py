"""The builds of Cloud Build: they end at once, as the fault rules say, and push a digest that is computed from their steps."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from ..errors import words
from ..faults import About, FaultRules
from ..project.state import ProjectState
from ..vertex.environment import project_number
from ..vertex.errors import VertexApiError, invalid
from ..vertex.timing import EmulatorClock, format_time
from .store import Body, StoredResources

_FIELDS = words("steps images tags timeout options serviceAccount logsBucket")
_OF_STEP = words("name entrypoint args env id timeout")
_ENDED = words("SUCCESS FAILURE INTERNAL_ERROR TIMEOUT CANCELLED EXPIRED")
IMAGE = re.compile(
    r"(?P<region>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<id>[^/]+)/(?P<package>[^/:@]+)"
    r"(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]+))?"
)
_TERM = re.compile(r'\s*(?P<field>tags|status)\s*=\s*"?(?P<value>[\w.-]+)"?\s*')
_ACCOUNT = re.compile(r"projects/[^/]+/serviceAccounts/\S+@\S+")
_MAX_ARG = 10_000
_WITHOUT_BUCKET = ("CLOUD_LOGGING_ONLY", "NONE")
_UNKNOWN = "podlift's emulator does not know this field."
_TYPE = "type.googleapis.com/google.devtools.cloudbuild.v1"
# The sentences of Cloud Build for each kind of failure.
_DETAILS = {
    "USER_BUILD_STEP": "Build step failure: build step 0 failed: step exited with non-zero status: 1",
    "PUSH_IMAGE_NOT_FOUND": "failed to find one or more images after execution of build steps",
    "PUSH_NOT_AUTHORIZED": "push error: denied: permission artifactregistry.repositories.uploadArtifacts denied",
    "PUSH_FAILED": "push error: name unknown: Repository not found",
}


class Builds:
    def __init__(
        self, stored: StoredResources, project: ProjectState, clock: EmulatorClock, faults: FaultRules
    ) -> None:
        self._stored, self._project, self._clock, self._faults = stored, project, clock, faults

    def now(self) -> str:
        return format_time(self._clock.now())

    def create(self, parent: str, build: Body) -> Body:
        if problems := _problems(build):
            raise invalid(problems)
        region, number = parent.rpartition("/")[2], project_number(parent.split("/")[1])
        id = str(uuid.uuid4())
        about = {
            "name": f"projects/{number}/locations/{region}/builds/{id}",
            "id": id,
            "projectId": parent.split("/")[1],
            "status": "QUEUED",
            "createTime": self.now(),
            "logUrl": f"https://console.cloud.google.com/cloud-build/builds;region={region}/{id}?project={number}",
        }
        if (build.get("options") or {}).get("logging") not in _WITHOUT_BUCKET:
            # Where gcloud reads the log of a build.
            about["logsBucket"] = build.get("logsBucket") or f"gs://{number}.cloudbuild-logs.googleusercontent.com"
        self._stored.put(f"{parent}/builds/{id}", {**build, **about})
        return self._operation(parent, {**build, **about})

    def get(self, name: str) -> Body:
        """Return a build. A created one takes its next step, as if time had passed between two reads."""
        build = self._stored.existing(name)
        if build["status"] == "QUEUED":
            build |= {"status": "WORKING", "startTime": self.now()}
        elif build["status"] == "WORKING" and not self._faults.for_job("hold", _about(build)):
            build |= {**self._ended(name, build), "finishTime": self.now()}
        else:
            return build
        self._stored.put(name, build)
        return build

    def _ended(self, name: str, build: Mapping[str, Any]) -> Body:
        fault = self._faults.for_job("fail_build", _about(build))
        ends = fault.ends if fault else self._pushed(name, build)
        if isinstance(ends, dict):
            return {"status": "SUCCESS", "results": ends}
        if ends not in _DETAILS:
            return {"status": ends, "statusDetail": f"Injected fault: {ends}"}
        detail = _DETAILS[ends]
        return {"status": "FAILURE", "statusDetail": detail, "failureInfo": {"type": ends, "detail": detail}}

    def _pushed(self, name: str, build: Mapping[str, Any]) -> str | Body:
        """Store the images and their tags; return the results of the build, or why the push failed."""
        digest = f"sha256:{hashlib.sha256(json.dumps(build['steps'], sort_keys=True).encode()).hexdigest()}"
        pushed = []
        for image in build.get("images", ()):
            match = IMAGE.fullmatch(image)
            parent = f"projects/{match['project']}/locations/{match['region']}" if match else ""
            repository = f"{parent}/repositories/{match['id']}" if match else ""
            if (
                match is None
                or not match["tag"]
                or not self._project.exists(f"//artifactregistry.googleapis.com/{repository}")
            ):
                return "PUSH_FAILED"
            stored = f"{repository}/dockerImages/{match['package']}@{digest}"
            uri = f"{image.rpartition(':')[0]}@{digest}"
            self._stored.put(
                stored,
                {"name": stored, "uri": uri, "tags": [match["tag"]], "imageSizeBytes": "1", "uploadTime": self.now()},
            )
            package = f"{repository}/packages/{match['package']}"
            tag = f"{package}/tags/{match['tag']}"
            self._stored.put(tag, {"name": tag, "version": f"{package}/versions/{digest}"})
            pushed.append({"name": image, "digest": digest})
        return {"images": pushed}

    def listed(self, parent: str, filter: str) -> Body:
        terms = [_TERM.fullmatch(term) for term in filter.split(" AND ")] if filter else []
        if not all(terms):
            text = 'podlift\'s emulator supports filters of the form: tags="TAG" AND status="STATUS".'
            raise invalid([("filter", f"{text} Received: {filter[:100]}")])
        builds = [
            build
            for build in self._stored.below(f"{parent}/builds")
            if all(term["value"] in _values(build, term["field"]) for term in terms if term)
        ]
        return {"builds": builds} if builds else {}

    def cancel(self, name: str) -> Body:
        build = self._stored.existing(name)
        if build["status"] in _ENDED:
            raise VertexApiError(400, "Cannot cancel a build that has already finished.", status="FAILED_PRECONDITION")
        build |= {"status": "CANCELLED", "finishTime": self.now()}
        self._stored.put(name, build)
        return build

    def operation(self, parent: str, id: str) -> Body:
        return self._operation(parent, self.get(f"{parent}/builds/{id[2:]}"))

    def _operation(self, parent: str, build: Mapping[str, Any]) -> Body:
        about = {"metadata": {"@type": f"{_TYPE}.BuildOperationMetadata", "build": build}}
        operation: Body = {"name": f"{parent}/operations/b-{build['id']}", **about}
        if build["status"] in _ENDED:
            operation |= {"done": True, "response": {"@type": f"{_TYPE}.Build", **build}}
        return operation


def _about(build: Mapping[str, Any]) -> About:
    return About(" ".join(build.get("tags", ())), build["name"].split("/")[3])


def _values(build: Mapping[str, Any], field: str) -> list[str]:
    value = build.get(field, [])
    return value if isinstance(value, list) else [value]


def _problems(build: Body) -> list[tuple[str, str]]:
    problems = [(name, _UNKNOWN) for name in sorted(build.keys() - _FIELDS)]
    steps = build.get("steps")
    if not isinstance(steps, list) or not steps or not all(isinstance(entry, dict) for entry in steps):
        return [*problems, ("build.steps", "invalid build: no steps specified")]
    for number, step in enumerate(steps):
        where = f"build.steps[{number}]"
        problems += [(f"{where}.{name}", _UNKNOWN) for name in sorted(step.keys() - _OF_STEP)]
        problems += [] if step.get("name") else [(f"{where}.name", "a build step has no name")]
        for text in step.get("args", ()):
            if len(text) > _MAX_ARG:
                problems.append((f"{where}.args", f"build step {number} arg is too long (max: {_MAX_ARG})"))
            if loose := re.search(r"(?<!\$)(?:\$\$)*\$(\w+|\{\w+\})", text):
                problems.append((f"{where}.args", f'"{loose[1]}" is not a valid built-in substitution'))
    if build.get("serviceAccount"):
        if _ACCOUNT.fullmatch(build["serviceAccount"]) is None:
            problems.append(("build.service_account", "Not the name of a service account."))
        options = build.get("options") or {}
        owned = options.get("defaultLogsBucketBehavior") == "REGIONAL_USER_OWNED_BUCKET"
        if options.get("logging") not in _WITHOUT_BUCKET and not build.get("logsBucket") and not owned:
            text = (
                "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) use the "
                "REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use either "
                "CLOUD_LOGGING_ONLY / NONE logging options"
            )
            problems.append(("build.options.logging", text))
    return problems
