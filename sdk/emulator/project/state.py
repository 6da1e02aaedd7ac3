"""The state of the emulated project. Everything is enabled, exists and is granted, unless `POST /_project` takes it away."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError, nearest
from ...storage import small_files

# Who sends the requests, and the project that a client finds.
CALLER = "you@example.com"
PROJECT = "podlift"
_FIELDS = {"disabled": str, "absent": str, "withheld": dict}
_WITHHELD = {"member", "resource", "role", "permissions"}

Policy = dict[str, Any]


def account_name(email: str) -> str:
    return f"//iam.googleapis.com/projects/-/serviceAccounts/{email}"


def agents(number: str) -> list[str]:
    """Return the agents of Vertex AI in a project: they pull images, and do not exist before they are needed."""
    return [
        f"service-{number}@{agent}.iam.gserviceaccount.com" for agent in ("gcp-sa-aiplatform-cc", "gcp-sa-aiplatform")
    ]


class ProjectState:
    """Safe to use from any thread. Resources have the full names that the Policy Troubleshooter takes.

    "disabled" are APIs, "absent" service accounts and repositories. A member has a "withheld" permission only once it has the
    role on the resource.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.RLock()
        self._state: dict[str, Any] = {}
        self._forget()
        if file.exists():
            self._state |= self._stored()

    def _stored(self) -> dict[str, Any]:
        try:
            stored = json.loads(small_files.read(self._file))
            kinds = {name: type(value) for name, value in self._state.items()}
            if not isinstance(stored, dict) or any(
                type(value) is not kinds.get(name) for name, value in stored.items()
            ):
                raise ValueError("it does not describe a project")
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"The state of the emulated project cannot be read: {str(error) or 'it is nested too deeply'}. Received: "
                f"{str(self._file)!r}. Next: remove it, and everything is enabled and granted again."
            ) from None
        return stored

    def clear(self) -> None:
        with self._lock:
            self._forget()
            self._file.unlink(missing_ok=True)

    def _forget(self) -> None:
        self._state = {"disabled": [], "absent": [], "withheld": [], "created": [], "policies": {}, "changes": 0}

    def set_up(self, state: object) -> None:
        """Replace the missing items; InputError if `state` is not valid."""
        problems = list(_mistakes(state))
        if problems or not isinstance(state, dict):
            raise InputError(problems or [f"Expected an object. Received: {str(state)[:100]!r}."])
        with self._lock:
            self._forget()
            self._state |= state
            self._save()

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            return {name: self._state[name] for name in (*_FIELDS, "policies")}

    def enabled(self, service: str) -> bool:
        return service not in self._state["disabled"]

    def enable(self, services: Iterable[str]) -> None:
        with self._lock:
            named = set(services)
            self._state["disabled"] = [name for name in self._state["disabled"] if name not in named]
            self._save()

    def exists(self, resource: str) -> bool:
        return resource not in self._state["absent"]

    def create(self, resource: str) -> bool:
        """Create a resource; False if it exists already."""
        with self._lock:
            new = resource in self._state["absent"] or resource not in self._state["created"]
            self._state["absent"] = [name for name in self._state["absent"] if name != resource]
            self._state["created"] = [*self._state["created"], *([resource] if new else [])]
            self._save()
        return new

    def created(self, prefix: str) -> list[str]:
        return [name for name in self._state["created"] if name.startswith(prefix)]

    def policy(self, resource: str) -> Policy:
        stored: Policy = self._state["policies"].get(resource, {"bindings": [], "etag": _etag(0)})
        return {"version": 1, **stored}

    def set_policy(self, resource: str, policy: Mapping[str, Any]) -> Policy | None:
        """Replace a policy; None if another client has changed it since it was read."""
        with self._lock:
            if policy.get("etag", self.policy(resource)["etag"]) != self.policy(resource)["etag"]:
                return None
            self._state["changes"] += 1
            new_policy = {"bindings": list(policy.get("bindings", ())), "etag": _etag(self._state["changes"])}
            self._state["policies"][resource] = new_policy
            self._save()
        return self.policy(resource)

    def wrong(self, policy: object) -> str:
        """Return why no service stores a policy, as a sentence, "" if all do."""
        bindings = policy.get("bindings", []) if isinstance(policy, dict) else None
        if not isinstance(bindings, list) or not all(isinstance(binding, dict) for binding in bindings):
            return f"A policy has a list of bindings, which are objects. Received: {str(policy)[:100]}."
        members = [binding.get("members", []) for binding in bindings]
        if not all(isinstance(listed, list) for listed in members):
            return f"The members of a binding are a list. Received: {str(members)[:100]}."
        named = [str(member) for listed in members for member in listed if str(member).startswith("serviceAccount:")]
        emails = (member.partition(":")[2] for member in named)
        absent = next((email for email in emails if not self.exists(account_name(email))), "")
        return absent and f"Service account {absent} does not exist."

    def grants(self, member: str, resource: str, permission: str) -> bool:
        """Return whether a member, given by its email address, has a permission."""
        return self.exists(account_name(member)) and not any(
            permission in entry["permissions"]
            and entry["resource"] == resource
            and entry["member"].partition(":")[2] == member
            and not self._bound(entry)
            for entry in self._state["withheld"]
        )

    def _bound(self, withheld: Mapping[str, Any]) -> bool:
        bindings = self.policy(withheld["resource"])["bindings"]
        return any(
            binding.get("role") == withheld["role"] and withheld["member"] in binding.get("members", ())
            for binding in bindings
        )

    def _save(self) -> None:
        part = self._file.with_name(f"{self._file.name}.part")
        part.touch(mode=0o600)
        part.write_text(json.dumps(self._state))
        part.replace(self._file)


def _mistakes(state: object) -> Iterable[str]:
    for name, entries in state.items() if isinstance(state, dict) else ():
        kind = _FIELDS.get(name)
        if kind is None:
            yield f"Unknown field {name[:100]!r}. {nearest(name, list(_FIELDS))}"
        elif not isinstance(entries, list) or not all(isinstance(entry, kind) for entry in entries):
            yield f"{name} is a list of {'texts' if kind is str else 'objects'}. Received: {str(entries)[:100]!r}."
        elif kind is dict and any(set(entry) != _WITHHELD for entry in entries):
            yield f"Each of {name} has the fields {', '.join(sorted(_WITHHELD))}."


def _etag(number: int) -> str:
    return base64.b64encode(f"policy {number}".encode()).decode()
