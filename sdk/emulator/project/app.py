"""Service Usage, Resource Manager, IAM, Artifact Registry and Cloud Build, for the checks and the setup of a project.

Made after the REST references and the requests of gcloud 528; nothing of it was recorded from the real services.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from .. import messages
from ..answers import HARMLESS, RestCall, RestService
from ..connections import Journal
from ..errors import words
from ..faults import About, FaultRules
from ..vertex.environment import project_number
from ..vertex.errors import VertexApiError
from .state import CALLER, PROJECT, ProjectState, account_name, agents

T = TypeVar("T", list[Any], dict[str, Any])
_VERTEX = "aiplatform.googleapis.com"
_PROJECT = r"/v1/projects/(?P<project>[^/:]+)"
_PLACE = rf"{_PROJECT}/locations/(?P<place>[a-z0-9-]+)"
_REPOSITORY = rf"{_PLACE}/repositories/(?P<id>[a-z0-9-]+)"
_ACCOUNT = rf"{_PROJECT}/serviceAccounts/(?P<id>[^/:]+)"
_POLICY = r":(?P<verb>getIamPolicy|setIamPolicy|testIamPermissions)"
# Method, decoded path, operation.
_ROUTES = (
    ("GET", "/v1/userinfo", "userinfo.get"),
    ("GET", "/v1/projects", "projects.list"),
    ("GET", _PROJECT, "projects.get"),
    ("POST", _PROJECT + _POLICY, "projects.{verb}"),
    ("GET", rf"{_PROJECT}/services:batchGet", "apis.get"),
    ("POST", rf"{_PROJECT}/services:batchEnable", "apis.enable"),
    ("POST", rf"{_PROJECT}/services/(?P<id>[a-z0-9.-]+):enable", "apis.enable"),
    (
        "POST",
        rf"{_PROJECT.replace('v1', 'v1beta1')}/services/(?P<id>[a-z0-9.-]+):generateServiceIdentity",
        "identities.create",
    ),
    ("GET", rf"{_PROJECT}/serviceAccounts", "serviceAccounts.list"),
    ("POST", rf"{_PROJECT}/serviceAccounts", "serviceAccounts.create"),
    ("GET", _ACCOUNT, "serviceAccounts.get"),
    ("POST", _ACCOUNT + _POLICY, "serviceAccounts.{verb}"),
    ("POST", rf"{_PLACE}/repositories", "repositories.create"),
    ("GET", _REPOSITORY, "repositories.get"),
    ("GET", rf"{_REPOSITORY}:(?P<verb>getIamPolicy)", "repositories.{verb}"),
    ("POST", rf"{_REPOSITORY}:(?P<verb>setIamPolicy|testIamPermissions)", "repositories.{verb}"),
    ("GET", rf"{_PLACE}/operations/repository-(?P<id>[a-z0-9-]+)", "repositories.operation"),
    ("GET", rf"{_PLACE}/defaultServiceAccount", "builds.account"),
    ("POST", "/v1/iam:troubleshoot", "iam.troubleshoot"),
)
_PARAMETERS = HARMLESS | words("options.requestedPolicyVersion pageSize pageToken orderBy filter names repositoryId")


def _project_of(call: RestCall) -> str:
    return call.project or PROJECT


def _resource(call: RestCall) -> str:
    """Return the full name of a request's resource."""
    kind = call.operation.partition(".")[0]
    if kind == "serviceAccounts":
        return account_name(call.id)
    if kind == "projects":
        return f"//cloudresourcemanager.googleapis.com/projects/{_project_of(call)}"
    return repository_name(_project_of(call), call.named["place"], call.id)


def repository_name(project: str, place: str, name: str) -> str:
    return f"//artifactregistry.googleapis.com/projects/{project}/locations/{place}/repositories/{name}"


class ProjectApp(RestService):
    routes = _ROUTES
    every_parameter = _PARAMETERS

    def __init__(self, state: ProjectState, faults: FaultRules, journal: Journal) -> None:
        super().__init__(faults, journal)
        self._state = state
        self._handlers: Mapping[str, Callable[[RestCall], dict[str, Any]]] = {
            "userinfo.get": lambda call: {"email": CALLER, "email_verified": True},
            "projects.list": lambda call: {"projects": [_project(PROJECT)]},
            "projects.get": lambda call: _project(_project_of(call)),
            "apis.get": self._services,
            "apis.enable": self._enable,
            "identities.create": self._create_identity,
            "serviceAccounts.list": self._accounts,
            "serviceAccounts.create": self._create_account,
            "serviceAccounts.get": lambda call: _account(call.id),
            "repositories.create": self._create_repository,
            "repositories.get": lambda call: _repository(_resource(call)),
            "repositories.operation": _repository_made,
            "builds.account": self._builder,
            "iam.troubleshoot": self._troubleshoot,
            "getIamPolicy": lambda call: self._state.policy(_resource(call)),
            "setIamPolicy": self._set_policy,
            "testIamPermissions": self._test,
        }

    def about(self, call: RestCall) -> About:
        return About(call.id)

    async def perform(self, call: RestCall) -> dict[str, Any]:
        if call.operation.partition(".")[0] in ("serviceAccounts", "repositories") and "id" in call.named:
            self._check_exists(call)
        return self._handlers[call.named.get("verb") or call.operation](call)

    def _check_exists(self, call: RestCall) -> None:
        if not self._state.exists(_resource(call)):
            raise VertexApiError(404, f"{_resource(call).partition('.com/')[2]} was not found.")

    def _services(self, call: RestCall) -> dict[str, Any]:
        names = [name.rpartition("/")[2] for name in call.request.query_params.getlist("names")]
        number = project_number(_project_of(call))
        services = [
            {
                "name": f"projects/{number}/services/{service}",
                "config": {"name": service},
                "state": "ENABLED" if self._state.enabled(service) else "DISABLED",
                "parent": f"projects/{number}",
            }
            for service in names
        ]
        return {"services": services}

    def _enable(self, call: RestCall) -> dict[str, Any]:
        one = call.id
        self._state.enable([one] if one else map(str, _field(call, "serviceIds", list)))
        return _done("operations/enabled", "google.api.serviceusage.v1.EnableServiceResponse")

    def _accounts(self, call: RestCall) -> dict[str, Any]:
        emails = [f"trainer@{_project_of(call)}.iam.gserviceaccount.com"]
        emails += [email.rpartition("/")[2] for email in self._state.created(account_name(""))]
        there = [email for email in dict.fromkeys(emails) if self._state.exists(account_name(email))]
        return {"accounts": [_account(email) for email in there]}

    def _create_account(self, call: RestCall) -> dict[str, Any]:
        email = f"{messages.read_object(call.body).get('accountId', '')}@{_project_of(call)}.iam.gserviceaccount.com"
        if not self._state.create(account_name(email)):
            raise VertexApiError(409, f"Service account {email.partition('@')[0]} already exists within project.")
        return _account(email)

    def _create_identity(self, call: RestCall) -> dict[str, Any]:
        if call.id != _VERTEX:
            raise VertexApiError(
                405, f"podlift's emulator has no agents of {call.named['id']}.", status="UNIMPLEMENTED"
            )
        emails = agents(project_number(_project_of(call)))
        for email in emails:
            self._state.create(account_name(email))
        return _done(
            "operations/identity", "google.api.serviceusage.v1beta1.ServiceIdentity", email=emails[-1], uniqueId="1"
        )

    def _create_repository(self, call: RestCall) -> dict[str, Any]:
        named_call = replace(call, named={**call.named, "id": call.query.get("repositoryId", "")})
        if not self._state.create(_resource(named_call)):
            raise VertexApiError(409, "the repository already exists")
        return _repository_made(named_call)

    def _builder(self, call: RestCall) -> dict[str, Any]:
        number = project_number(_project_of(call))
        parent = f"projects/{_project_of(call)}/locations/{call.named['place']}"
        email = f"projects/{_project_of(call)}/serviceAccounts/{number}-compute@developer.gserviceaccount.com"
        return {"name": f"{parent}/defaultServiceAccount", "serviceAccountEmail": email}

    def _set_policy(self, call: RestCall) -> dict[str, Any]:
        policy = messages.read_object(call.body).get("policy", {})
        if wrong := self._state.wrong(policy):
            raise VertexApiError(400, wrong)
        changed = self._state.set_policy(_resource(call), policy)
        if changed is None:
            text = "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
            raise VertexApiError(409, text, status="ABORTED")
        return changed

    def _test(self, call: RestCall) -> dict[str, Any]:
        names = [str(permission) for permission in _field(call, "permissions", list)]
        return {
            "permissions": [permission for permission in names if self._granted(CALLER, _resource(call), permission)]
        }

    def _troubleshoot(self, call: RestCall) -> dict[str, Any]:
        access = _field(call, "accessTuple", dict)
        names = (str(access.get(name, "")) for name in ("principal", "fullResourceName", "permission"))
        return {"access": "GRANTED" if self._granted(*names) else "NOT_GRANTED"}

    def _granted(self, member: str, resource: str, permission: str) -> bool:
        return not self._faults.denies(permission) and self._state.grants(member, resource, permission)


def _field(call: RestCall, name: str, kind: type[T]) -> T:
    """Return a field of a body, empty if there is none."""
    value = messages.read_object(call.body).get(name)
    if not isinstance(value, kind | None):
        raise VertexApiError(400, f"The field {name} of this request is of another type. Received: {str(value)[:100]}.")
    return kind() if value is None else value


def _project(name: str) -> dict[str, Any]:
    return {"projectNumber": project_number(name), "projectId": name, "lifecycleState": "ACTIVE", "name": name}


def _account(email: str) -> dict[str, Any]:
    project = email.partition("@")[2].partition(".")[0]
    return {"name": f"projects/{project}/serviceAccounts/{email}", "projectId": project, "email": email}


def _repository(name: str) -> dict[str, Any]:
    return {"name": name.partition(".com/")[2], "format": "DOCKER", "mode": "STANDARD_REPOSITORY"}


def _repository_made(call: RestCall) -> dict[str, Any]:
    name = f"projects/{_project_of(call)}/locations/{call.named['place']}/operations/repository-{call.named['id']}"
    return _done(name, "google.devtools.artifactregistry.v1.Repository", **_repository(_resource(call)))


def _done(name: str, kind: str, /, **response: Any) -> dict[str, Any]:
    return {"name": name, "done": True, "response": {"@type": f"type.googleapis.com/{kind}", **response}}
