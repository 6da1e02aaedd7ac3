"""Who has the rights that podlift needs, and the commands that grant them, by the answers of Google's own services.

Only an account itself can test its permissions (testIamPermissions): the keeper does so when it starts. Any other caller uses
the Policy Troubleshooter, which only takes into account the policies that this caller may read.

Sources: REST references of Cloud Resource Manager v1 (projects.testIamPermissions), IAM v1
(serviceAccounts.testIamPermissions), Cloud Storage v1 (buckets.testIamPermissions), Artifact Registry v1
(repositories.testIamPermissions) and Policy Troubleshooter v1 (iam.troubleshoot); the list of predefined roles.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from ....job.targets import Keeper
from .. import client
from ..client import ServiceReply, read

JOBS = tuple(f"aiplatform.customJobs.{verb}" for verb in ("create", "get", "list", "cancel"))
# The least of roles/storage.objectAdmin that podlift uses.
OBJECTS = tuple(f"storage.objects.{verb}" for verb in ("create", "get", "list", "delete"))
ACT_AS = "iam.serviceAccounts.actAs"
LOGS = "logging.logEntries.list"
WRITE_LOGS = "logging.logEntries.create"
BUILD = "cloudbuild.builds.create"
PULL, PUSH = (f"artifactregistry.repositories.{verb}Artifacts" for verb in ("download", "upload"))
# The narrowest predefined role that has a permission.
_ROLES = {
    **dict.fromkeys(JOBS, "roles/aiplatform.user"),
    **dict.fromkeys(OBJECTS, "roles/storage.objectAdmin"),
    ACT_AS: "roles/iam.serviceAccountUser",
    LOGS: "roles/logging.viewer",
    WRITE_LOGS: "roles/logging.logWriter",
    BUILD: "roles/cloudbuild.builds.editor",
    PULL: "roles/artifactregistry.reader",
    PUSH: "roles/artifactregistry.writer",
}
# The caller, where only gcloud has the account.
BY_SHELL = "user:$(gcloud config get account)"
_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource, and the permissions that an account needs on it."""

    words: str  # such as "in the project mine"
    name: str  # for the Policy Troubleshooter
    host: str  # which answers for it
    path: str  # of testIamPermissions
    permissions: tuple[str, ...]
    grant: tuple[str, ...]  # the words of the gcloud command that changes its policy
    granting: str  # the permission for that

    @property
    def role(self) -> str:
        return _ROLES[self.permissions[0]]

    def command(self, member: str) -> str:
        """Return the command that grants a member the role on this resource, and on nothing else."""
        flag = f"--member={member}"
        return f"{gcloud(*self.grant)} {flag if member == BY_SHELL else shlex.quote(flag)} --role={self.role}"


@dataclass(frozen=True, kw_only=True)
class Lack:
    """Which permissions are missing, which are not known, and why."""

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    why: str = ""


def gcloud(*words: str) -> str:
    """Return a command for a shell, whatever its words are."""
    return shlex.join(["gcloud", *words])


def in_project(project: str, *permissions: str) -> Resource:
    return Resource(
        words=f"in the project {project}",
        name=f"//cloudresourcemanager.googleapis.com/projects/{project}",
        host=client.PROJECTS,
        path=f"/v1/projects/{quote(project, safe='')}:testIamPermissions",
        permissions=permissions,
        # Without a condition: gcloud would prompt for one where the policy has others.
        grant=("projects", "add-iam-policy-binding", project, "--condition=None"),
        granting="resourcemanager.projects.setIamPolicy",
    )


def on_account(account: str) -> Resource:
    return Resource(
        words=f"on {account}",
        name=f"//iam.googleapis.com/projects/-/serviceAccounts/{account}",
        host=client.ACCOUNTS,
        path=f"/v1/projects/-/serviceAccounts/{quote(account, safe='')}:testIamPermissions",
        permissions=(ACT_AS,),
        grant=("iam", "service-accounts", "add-iam-policy-binding", account),
        granting="iam.serviceAccounts.setIamPolicy",
    )


def on_bucket(bucket: str) -> Resource:
    return Resource(
        words=f"on gs://{bucket}",
        name=f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        host=client.STORAGE,
        path=f"/storage/v1/b/{quote(bucket, safe='')}/iam/testPermissions",
        permissions=OBJECTS,
        grant=("storage", "buckets", "add-iam-policy-binding", f"gs://{bucket}"),
        granting="storage.buckets.setIamPolicy",
    )


def on_repository(project: str, location: str, name: str, permission: str) -> Resource:
    path = f"projects/{project}/locations/{location}/repositories/{name}"
    return Resource(
        words=f"on the repository {name} in {location}",
        name=f"//artifactregistry.googleapis.com/{path}",
        host=client.REPOSITORIES,
        path=f"/v1/{path}:testIamPermissions",
        permissions=(permission,),
        grant=(
            *("artifacts", "repositories", "add-iam-policy-binding", name),
            *(f"--location={location}", f"--project={project}"),
        ),
        granting="artifactregistry.repositories.setIamPolicy",
    )


def resources(keeper: Keeper, project: str, bucket: str) -> list[Resource]:
    accounts = dict.fromkeys(account for account in (keeper.program_account, keeper.account) if account)
    return [in_project(project, *JOBS), *map(on_account, accounts), on_bucket(bucket)]


def mine(resource: Resource, *permissions: str, project: str = "") -> Lack:
    """Return the permissions that this process itself lacks, by default of the resource's own; see `client.session`."""
    needed = permissions or resource.permissions
    if resource.host == client.STORAGE:
        answer = read(
            resource.host, f"{resource.path}?{urlencode([('permissions', right) for right in needed])}", project=project
        )
    else:
        answer = read(resource.host, resource.path, {"permissions": list(needed)}, project=project)
    if answer.error:
        return Lack(unknown=needed, why=answer.error)
    # The answer lists the granted permissions, and has no list if there are none.
    names = answer.body.get("permissions", [])
    return Lack(missing=tuple(right for right in needed if not isinstance(names, list) or right not in names))


def of_member(account: str, resource: Resource, *, project: str = "") -> Lack:
    """Return the permissions that another account lacks."""

    def ask(permission: str) -> ServiceReply:
        about = {"principal": account, "fullResourceName": resource.name, "permission": permission}
        return read(client.TROUBLESHOOTER, "/v1/iam:troubleshoot", {"accessTuple": about}, project=project)

    with ThreadPoolExecutor(_WORKERS) as pool:
        answers = dict(zip(resource.permissions, pool.map(ask, resource.permissions), strict=True))
    access = {permission: answer.body.get("access") for permission, answer in answers.items()}
    unknown = tuple(permission for permission, answered in access.items() if answered not in ("GRANTED", "NOT_GRANTED"))
    errors = [answer.error for answer in answers.values() if answer.error]
    why = [*errors, "these credentials may not read who has it"][0] if unknown else ""
    missing = tuple(permission for permission, answered in access.items() if answered == "NOT_GRANTED")
    return Lack(missing=missing, unknown=unknown, why=why)


def on_each(resources: Sequence[Resource], look: Callable[[Resource], Lack]) -> Lack:
    """Return the lacking permissions on several resources, each with its resource in words."""
    lacks = [(resource.words, look(resource)) for resource in resources]
    return Lack(
        missing=tuple(f"{permission} {words}" for words, lack in lacks for permission in lack.missing),
        unknown=tuple(f"{permission} {words}" for words, lack in lacks for permission in lack.unknown),
        why=next((lack.why for _, lack in lacks if lack.why), ""),
    )
