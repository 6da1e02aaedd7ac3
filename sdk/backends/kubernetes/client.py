"""The API of a Kubernetes cluster: the calls that podlift makes, with a timeout, retries, and classified errors.

lightkube reads the kubeconfig, authenticates and sends; all objects are plain JSON, so that nothing of `raw` is lost. A Job has
the name of its run: creating it again finds it, and never starts a second one.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from ...clock import Clock, SystemClock
from ...errors import AlreadyExistsError, InputError, MissingError, PodliftError, UnavailableError, nearest
from ...storage.retry import Retries
from ...text import innermost
from ..job_run import RejectedError
from .objects import CONTAINER, JOBSET, LABELS, RUN_LABEL
from .options import Kubernetes

if TYPE_CHECKING:
    from lightkube import Client
    from lightkube.config.kubeconfig import SingleConfig

_TIMEOUT_S, _RETRY_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 20.0, 30.0, 0.25, 4.0
_UNAUTHENTICATED, _FORBIDDEN, _MISSING, _CONFLICT, _TOO_MANY, _UNKNOWN = 401, 403, 404, 409, 429, 500
_PLURALS = {
    "Job": "jobs", "JobSet": "jobsets", "Pod": "pods", "Secret": "secrets", "Event": "events", "Workload": "workloads",
    "LocalQueue": "localqueues", "PersistentVolumeClaim": "persistentvolumeclaims", "Node": "nodes",
}  # fmt: skip
_GLOBAL, _KUEUE = ("Node",), "kueue.x-k8s.io/v1beta1"
_VERSIONS = {"Job": "batch/v1", "JobSet": JOBSET, "Workload": _KUEUE, "LocalQueue": _KUEUE}
# These answers have the status of a missing right.
_ADMISSION = ("exceeded quota", "failed quota", "denied the request", "being terminated")
EXTRA = "The backend kubernetes needs lightkube. Next: pip install 'podlift[kubernetes]'."
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class PodState:
    """A pod, as far as it tells why a run waits or has failed."""

    name: str
    phase: str
    waiting: str = ""  # why its container does not run: "ImagePullBackOff: ..."
    unschedulable: str = ""  # why no node takes it
    code: int | None = None  # the exit code of its container
    reason: str = ""  # of that exit: "OOMKilled", "Error", "Evicted"
    message: str = ""  # the last lines of its output


@dataclass(frozen=True, kw_only=True)
class KubernetesJob:
    """A Job or a JobSet with its pods."""

    id: str
    status: str  # "Suspended", "Pending", "Running", "Complete" or "Failed"
    reason: str = ""  # of its failure: "PodFailurePolicy", "DeadlineExceeded"
    message: str = ""
    started: float | None = None  # Unix time
    ended: float | None = None
    pods: tuple[PodState, ...] = field(default=())
    hidden: str = ""  # why the client does not see the pods

    @property
    def over(self) -> bool:
        return self.status in ("Complete", "Failed")

    @property
    def failed(self) -> bool:
        return self.status == "Failed"

    @property
    def is_waiting(self) -> bool:
        return not (self.over or self.hidden) and not any(pod.phase != "Pending" for pod in self.pods)


def configured(target: Kubernetes) -> SingleConfig:
    """Return the context of the kubeconfig that a target names; InputError if there is none."""
    try:
        from lightkube import KubeConfig
        from lightkube.config.models import User
    except ImportError:
        raise InputError(EXTRA) from None
    try:
        if os.pathsep in os.environ.get("KUBECONFIG", ""):
            raise InputError(
                "KUBECONFIG names several files. Next: kubectl config view --flatten > FILE, and KUBECONFIG=FILE."
            )
        config = KubeConfig.from_env()
        if target.context and target.context not in config.contexts:
            raise InputError(
                f"There is no such context in the kubeconfig. Received: {target.context!r}. "
                f"{nearest(target.context, list(config.contexts))} Next: kubectl config get-contexts."
            )
        chosen = config.get(target.context)
    except InputError:
        raise
    except Exception as error:  # the parsers of lightkube raise their own
        where = os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise InputError(
            f"There is no usable kubeconfig: {innermost(error)} (looked at {where}). Next: set KUBECONFIG, or let the tool of "
            "your cluster write it, such as gcloud container clusters get-credentials CLUSTER."
        ) from error
    if chosen is None:
        raise InputError("The kubeconfig has no current context. Next: --kubernetes-context NAME.")
    # As kubectl does. lightkube requires a user.
    return chosen if chosen.user is not None else chosen._replace(user=User())


class Cluster:
    """One namespace of one cluster."""

    def __init__(self, target: Kubernetes, *, clock: Clock | None = None) -> None:
        self._target, self._clock = target, clock or SystemClock()
        self._client: Client | None = None
        self.namespace = target.namespace or "default"

    @property
    def name(self) -> str:
        return f"the namespace {self.namespace} of {self._target.context or 'the current context'}"

    def create(self, body: Mapping[str, Any], *, rehearsed: bool = False) -> Mapping[str, Any]:
        """Create an object, or return the one of that name; `rehearsed` lets the cluster check all of it and create nothing."""
        kind, name = str(body["kind"]), str(body["metadata"]["name"])
        try:
            return self._repeated(kind, "create", lambda api, resource: api.create(resource(body), dry_run=rehearsed))
        except AlreadyExistsError:
            if kind == "Secret":
                # The client has no right to read it.
                return body
        existing = self.get(kind, name)
        if (existing["metadata"].get("labels") or {}).get(RUN_LABEL) != (body["metadata"].get("labels") or {}).get(
            RUN_LABEL
        ):
            raise RejectedError(f"{self.name} has another {kind} of the name {name!r}.", _CONFLICT)
        return existing

    def get(self, kind: str, name: str, *, within_s: float | None = None) -> Mapping[str, Any]:
        """Return an object; MissingError if there is none."""
        return self._repeated(kind, "get", lambda api, resource: api.get(resource, name), within_s)

    def job(self, kind: str, name: str, *, within_s: float | None = None) -> KubernetesJob:
        """Return a Job or JobSet with its pods; MissingError if there is none."""
        data = self.get(kind, name, within_s=within_s)
        # Others label the job itself as well, such as Kueue.
        labels = {key: value for key, value in (data["metadata"].get("labels") or {}).items() if key in LABELS}
        try:
            return _job(data, self.listed("Pod", labels=labels, within_s=within_s))
        except RejectedError as error:
            return _job(data, [], hidden=str(error))

    def listed(self, kind: str, *, within_s: float | None = None, **which: Any) -> list[Mapping[str, Any]]:
        """Return the objects of a kind, with certain `labels` or `fields`."""
        return self._repeated(kind, "list", lambda api, resource: list(api.list(resource, **which)), within_s)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object with all that belongs to it. Has no effect if there is none."""
        from lightkube.types import CascadeType

        background = CascadeType.BACKGROUND
        with suppress(MissingError):
            self._repeated(kind, "delete", lambda api, resource: api.delete(resource, name, cascade=background))

    def _repeated(self, kind: str, verb: str, call: Callable[[Client, Any], _T], within_s: float | None = None) -> _T:
        """Return the result of a call. `within_s`: how long to repeat it if there is no answer."""
        limit_s = _RETRY_S if within_s is None else within_s
        tries = Retries.within(limit_s, self._clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)

        def send() -> _T:
            with self._translated(kind, verb):
                return call(self._connected(), plain_resource(kind))

        return tries.until_answered(send)

    def _connected(self) -> Client:
        if self._client is None:
            config = configured(self._target)
            import httpx2
            from lightkube import Client

            self._client = Client(config=config, namespace=self.namespace, timeout=httpx2.Timeout(_TIMEOUT_S))
            weakref.finalize(self, self._client.close)
        return self._client

    @contextmanager
    def _translated(self, kind: str, verb: str) -> Iterator[None]:
        import httpx2
        import msgspec
        from lightkube.core.exceptions import ApiError, ConfigError

        try:
            yield
        except PodliftError:
            raise
        except ApiError as error:
            raise self._error(kind, verb, error.status.code or 0, error.status.message or str(error)) from error
        except ConfigError as error:
            raise InputError(f"The credentials of the kubeconfig cannot be used: {innermost(error)}") from error
        except httpx2.HTTPStatusError as error:
            raise self._error(kind, verb, error.response.status_code, error.response.text[:300]) from error
        except httpx2.HTTPError as error:
            raise UnavailableError(f"The Kubernetes API of {self.name} does not answer: {innermost(error)}") from error
        except (OSError, ValueError, LookupError, httpx2.InvalidURL, msgspec.MsgspecError) as error:
            # A plugin for credentials that is not installed, or a server of another kind.
            raise InputError(
                f"The server of the kubeconfig or its credentials cannot be used: {innermost(error)}"
            ) from error

    def _error(self, kind: str, verb: str, code: int, message: str) -> PodliftError:
        what, detail = f"{verb} {_PLURALS[kind]}", " ".join(message.split())
        if code == _CONFLICT and verb == "create":
            return AlreadyExistsError(detail)
        if code == _MISSING and detail.startswith("namespaces "):
            return RejectedError(
                f"There is no namespace {self.namespace!r} in this cluster. Next: kubectl create namespace {self.namespace}, "
                "or --kubernetes-namespace NAME.",
                code,
            )
        if code == _MISSING and kind == "JobSet" and verb == "create":
            return RejectedError(
                "Parameter servers and evaluators need JobSet, which this cluster lacks. Next: install it "
                "(https://jobset.sigs.k8s.io), or train with workers only.",
                code,
            )
        if code == _MISSING:
            return MissingError(detail)
        if code == _UNAUTHENTICATED:
            return RejectedError(
                f"The cluster does not accept the credentials of the kubeconfig: {detail}. Next: log in again.", code
            )
        if code == _FORBIDDEN and not any(words in detail for words in _ADMISSION):
            group = f' in the API group "{_VERSIONS[kind].partition("/")[0]}"' if kind in _VERSIONS else ""
            return RejectedError(
                f"No permission to {what}{group} in the namespace {self.namespace}: {detail}. Next: bind the Role in "
                "docs/how-to/kubernetes.md, or ask for it.",
                code,
            )
        if code == _TOO_MANY or code >= _UNKNOWN:
            return UnavailableError(f"The Kubernetes API of {self.name} answers {code}: {detail}")
        return RejectedError(f"The cluster refuses to {what}: {detail}", code)


def devices_of_nodes(target: Kubernetes) -> dict[str, object]:
    """Return the devices of all nodes and the values of their labels, or why they are not known."""
    try:
        nodes = Cluster(target).listed("Node", within_s=3.0)
    except PodliftError as error:
        return {"unknown": str(error)}
    devices = {name for node in nodes for name in (node.get("status") or {}).get("allocatable") or {}}
    labels = {f"{key}={value}" for node in nodes for key, value in (node["metadata"].get("labels") or {}).items()}
    return {"devices": sorted(devices), "labels": sorted(label for label in labels if "cloud.google.com/gke" in label)}


@functools.cache
def plain_resource(kind: str) -> Any:
    """Return a resource whose objects are plain JSON. It is not in lightkube's registry, which the program may fill as well."""
    from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info

    group, _, version = _VERSIONS.get(kind, "v1").rpartition("/")
    about = {"_api_info": create_api_info(group, version, kind, _PLURALS[kind])}
    return type(kind, (GenericGlobalResource if kind in _GLOBAL else GenericNamespacedResource,), about)


def _job(data: Mapping[str, Any], pods: list[Mapping[str, Any]], hidden: str = "") -> KubernetesJob:
    status = data.get("status") or {}
    conditions = {entry["type"]: entry for entry in status.get("conditions") or [] if entry.get("status") == "True"}
    over = conditions.get("Complete") or conditions.get("Completed")
    bad = conditions.get("Failed")
    states = tuple(_pod(pod) for pod in pods)
    if over or bad:
        word = "Complete" if over else "Failed"
    elif (data.get("spec") or {}).get("suspend"):
        word = "Suspended"
    else:
        word = "Running" if status.get("ready") or any(pod.phase == "Running" for pod in states) else "Pending"
    end = over or bad or {}
    return KubernetesJob(
        id=str(data["metadata"]["name"]),
        status=word,
        reason=str(end.get("reason") or ""),
        message=str(end.get("message") or ""),
        started=_time(status.get("startTime")),
        ended=_time(end.get("lastTransitionTime")),
        pods=states,
        hidden=hidden,
    )


def _pod(data: Mapping[str, Any]) -> PodState:
    status = data.get("status") or {}
    containers: list[dict[str, Any]] = status.get("containerStatuses") or []
    # A mesh adds containers of its own.
    own = next((entry for entry in containers if entry.get("name") == CONTAINER), containers[0] if containers else {})
    container = own.get("state") or {}
    waiting, ended = container.get("waiting") or {}, container.get("terminated") or {}
    conditions: list[dict[str, Any]] = status.get("conditions") or []
    placed = next((condition for condition in conditions if condition.get("type") == "PodScheduled"), dict[str, Any]())
    quiet = waiting.get("reason") in (None, "ContainerCreating", "PodInitializing")
    return PodState(
        name=str(data["metadata"]["name"]),
        phase=str(status.get("phase") or "Pending"),
        waiting="" if quiet else f"{waiting['reason']}: {waiting.get('message') or ''}".rstrip(": "),
        unschedulable=str(placed.get("message") or "") if placed.get("reason") == "Unschedulable" else "",
        code=ended.get("exitCode"),
        reason=str(ended.get("reason") or status.get("reason") or ""),
        message=str(ended.get("message") or status.get("message") or ""),
    )


def _time(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
