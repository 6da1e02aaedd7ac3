"""Whether a keeper may do what it is for, by the answers of Google's own services.

Only an account itself can test its permissions (testIamPermissions): the keeper does so when it starts. Anyone else has to ask
the Policy Troubleshooter about it, which knows only what the one who asks may read.

Sources: REST references of Cloud Resource Manager v1 (projects.testIamPermissions), IAM v1
(serviceAccounts.testIamPermissions), Cloud Storage v1 (buckets.testIamPermissions) and Policy Troubleshooter v1
(iam.troubleshoot).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from ...spec.policies import Keeper
from ...storage import emulator
from . import client

JOBS = tuple(f"aiplatform.customJobs.{verb}" for verb in ("create", "get", "list", "cancel"))
# The least of roles/storage.objectAdmin that podlift uses.
OBJECTS = tuple(f"storage.objects.{verb}" for verb in ("create", "get", "list", "delete"))
ACT_AS = "iam.serviceAccounts.actAs"
_TROUBLESHOOTER = "https://policytroubleshooter.googleapis.com"
_TIMEOUT_S = (3.0, 8.0)
_WORKERS = 8
_ACCESS = {"GRANTED": True, "NOT_GRANTED": False}


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource, and the permissions that the keeper needs on it."""

    words: str  # such as "in the project mine"
    name: str  # for the Policy Troubleshooter
    host: str  # which answers for it
    path: str  # of testIamPermissions
    permissions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found: permissions with their resources, in words."""

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    why: str = ""  # why something is unknown


def resources(keeper: Keeper, project: str, bucket: str) -> list[Resource]:
    accounts = dict.fromkeys(each for each in (keeper.program_account, keeper.account) if each)
    return [
        Resource(
            words=f"in the project {project}",
            name=f"//cloudresourcemanager.googleapis.com/projects/{project}",
            host="https://cloudresourcemanager.googleapis.com",
            path=f"/v1/projects/{quote(project)}:testIamPermissions",
            permissions=JOBS,
        ),
        *(
            Resource(
                words=f"on {account}",
                name=f"//iam.googleapis.com/projects/-/serviceAccounts/{account}",
                host="https://iam.googleapis.com",
                path=f"/v1/projects/-/serviceAccounts/{quote(account)}:testIamPermissions",
                permissions=(ACT_AS,),
            )
            for account in accounts
        ),
        Resource(
            words=f"on gs://{bucket}",
            name=f"//storage.googleapis.com/projects/_/buckets/{bucket}",
            host="https://storage.googleapis.com",
            path=f"/storage/v1/b/{quote(bucket)}/iam/testPermissions?"
            + urlencode([("permissions", each) for each in OBJECTS]),
            permissions=OBJECTS,
        ),
    ]


def own(wanted: Sequence[Resource]) -> Checked:
    """Return what this process itself may not do."""

    def granted(resource: Resource) -> Iterator[bool | None]:
        storage = "?" in resource.path
        answer = _ask(resource.host, resource.path, None if storage else {"permissions": list(resource.permissions)})
        names = answer.get("permissions", [])
        for permission in resource.permissions:
            # What is granted is listed, and the list is left out if nothing is.
            yield None if "error" in answer else isinstance(names, list) and permission in names

    return _checked(wanted, [list(granted(each)) for each in wanted], "it cannot be tested")


def of_account(account: str, wanted: Sequence[Resource]) -> Checked:
    """Return what another account may not do."""
    reasons: list[str] = []

    def granted(asked: tuple[str, str]) -> bool | None:
        name, permission = asked
        about = {"principal": account, "fullResourceName": name, "permission": permission}
        answer = _ask(_TROUBLESHOOTER, "/v1/iam:troubleshoot", {"accessTuple": about})
        reasons.extend([str(answer["error"])] if "error" in answer else [])
        return _ACCESS.get(str(answer.get("access")))

    with ThreadPoolExecutor(_WORKERS) as pool:
        answers = [list(pool.map(granted, ((each.name, one) for one in each.permissions))) for each in wanted]
    return _checked(wanted, answers, reasons[0] if reasons else "these credentials may not read who has it")


def _checked(wanted: Sequence[Resource], answers: Sequence[Sequence[bool | None]], why: str) -> Checked:
    found: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for resource, granted in zip(wanted, answers, strict=True):
        for permission, answer in zip(resource.permissions, granted, strict=True):
            found[answer].append(f"{permission} {resource.words}")
    return Checked(missing=tuple(found[False]), unknown=tuple(found[None]), why=why if found[None] else "")


def _ask(host: str, path: str, body: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return the response, or {"error": why there is none}."""
    url = (emulator.checked_address() or host) + path
    try:
        more: dict[str, object] = {"json": body} if body is not None else {}
        response = client.session(url).request("GET" if body is None else "POST", url, timeout=_TIMEOUT_S, **more)
        found = response.json()
    except Exception as error:  # of any library for credentials: nothing is known then
        return {"error": emulator.mask_token(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")}
    if response.status_code != 200 or not isinstance(found, dict):
        text = found.get("error", {}).get("message", "") if isinstance(found, dict) else ""
        return {"error": f"{response.status_code}: {text or response.reason}"}
    return found
