"""A Kubernetes cluster for tests: an API server on loopback whose pods are processes of this machine.

It has what podlift and kubectl call: discovery, Jobs, JobSets, Pods, Secrets, ConfigMaps, Services, events and logs, with
watches; the controllers of Jobs and JobSets; and faults. It admits, schedules and pulls nothing: methods decide.
"""

from __future__ import annotations

import asyncio
import copy
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..emulator.vertex import environment
from ..emulator.vertex.containers.client import ContainerConfig, Containers
from ..storage import own_folders

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from ..backends.kubernetes.options import Kubernetes

Object = dict[str, Any]
# The kind of each resource, by its group's version and its name in URLs.
_KINDS = {
    ("v1", "namespaces"): "Namespace",
    ("v1", "pods"): "Pod",
    ("v1", "secrets"): "Secret",
    ("v1", "configmaps"): "ConfigMap",
    ("v1", "services"): "Service",
    ("v1", "events"): "Event",
    ("v1", "nodes"): "Node",
    ("v1", "persistentvolumeclaims"): "PersistentVolumeClaim",
    ("batch/v1", "jobs"): "Job",
    ("jobset.x-k8s.io/v1alpha2", "jobsets"): "JobSet",
    ("kueue.x-k8s.io/v1beta1", "workloads"): "Workload",
    ("kueue.x-k8s.io/v1beta1", "localqueues"): "LocalQueue",
}
_GLOBAL = ("Namespace", "Node")
_QUEUE, _INDEX = "kueue.x-k8s.io/queue-name", "batch.kubernetes.io/job-completion-index"
_CONTROLLER = "batch.kubernetes.io/controller-uid"
_TICK_S, _POLL_S, _STOP_S = 0.2, 0.05, 30.0
_KILLED = 137


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass
class Fault:
    """A request that fails: the next `times` of a verb ("create", "get", "list", "watch", "delete") on a kind."""

    verb: str
    kind: str
    code: int
    message: str = "injected"
    times: int = 1


class KubernetesCluster:
    """One namespace "default" that exists, and nodes without end.

    Usage: `with KubernetesCluster(folder) as cluster: sdk.submit("train.py", backend=cluster.backend(), root=cluster.root)`

    Args:
        folder: the kubeconfig, the volume of the claim "shared", and the scratch folders of pods.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.volume, self.kubeconfig = folder / "volume", folder / "kubeconfig"
        self.volume.mkdir(parents=True, exist_ok=True)
        self.faults: list[Fault] = []
        self.jobset_installed = True
        # Why pods wait or are not created, as the cluster says it.
        self.unschedulable = self.bad_image = self.quota = ""
        self.requests: list[str] = []
        self._token = secrets.token_hex(16)
        self._objects: dict[tuple[str, str, str], Object] = {}  # by kind, namespace and name
        self._history: list[tuple[int, str, Object]] = []
        self._version, self._cut, self._stopping = 0, 0, False
        self._ended = threading.Event()
        self._lock = threading.RLock()
        self._logs: dict[str, list[str]] = {}
        self._started: set[str] = set()
        self._counted: set[str] = set()
        self._uids: dict[str, str] = {}  # the pod of a container, by its uid
        self._put("create", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default"}})
        for name, mode in (("shared", "ReadWriteMany"), ("single", "ReadWriteOnce")):
            about = {"metadata": {"name": name, "namespace": "default"}, "spec": {"accessModes": [mode]}}
            self._put("create", {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **about})
        queue = {"kind": "LocalQueue", "apiVersion": "kueue.x-k8s.io/v1beta1"}
        self._put("create", {**queue, "metadata": {"name": "gpus", "namespace": "default"}})
        about = {"name": "node-1", "labels": {"kubernetes.io/os": "linux"}}
        node = {"kind": "Node", "apiVersion": "v1", "metadata": about, "status": {"allocatable": {"cpu": "4"}}}
        self._put("create", node)

    # --- What a test does

    @property
    def root(self) -> str:
        """A root on the volume that the pods have, too."""
        return str(self.volume / "podlift")

    def backend(self, **more: Any) -> Kubernetes:
        """Return the value for `backend=` that runs here."""
        from ..backends.kubernetes.options import Kubernetes

        return Kubernetes(**{"image": "podlift/emulated", "claim": f"shared:{self.volume}", **more})

    def objects(self, kind: str) -> list[Object]:
        with self._lock:
            return [copy.deepcopy(item) for (name, _, _), item in self._objects.items() if name == kind]

    def pod_of(self, task_index: int) -> str:
        """Return the name of the newest running pod with an index."""
        pods = [pod for pod in self.objects("Pod") if pod["metadata"]["labels"].get(_INDEX) == str(task_index)]
        return str([pod for pod in pods if pod["status"]["phase"] == "Running"][-1]["metadata"]["name"])

    def evict(self, pod: str, *, grace_s: float | None = None) -> None:
        """Take a pod's node away with notice: SIGTERM, its grace, SIGKILL."""
        self._disrupt(pod, grace_s, "EvictionByEvictionAPI", "Eviction API: evicting")

    def lose_node(self, pod: str) -> None:
        """Take a pod's node away without notice."""
        self._disrupt(pod, 0.0, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")

    def _disrupt(self, pod: str, grace_s: float | None, reason: str, message: str) -> None:
        with self._lock:
            item = self._objects["Pod", "default", pod]
            _condition(item, "DisruptionTarget", "True", reason, message)
            self._terminate(item, grace_s)

    def kill(self, pod: str) -> None:
        """Kill a pod's container, as the kernel does without memory."""
        with self._lock:
            self._containers.stop([self._objects["Pod", "default", pod]["metadata"]["uid"]], 0.0)

    def admit(self) -> None:
        """Let Kueue admit all jobs."""
        with self._lock:
            for (kind, _, _), item in list(self._objects.items()):
                if kind in ("Job", "JobSet") and item["spec"].get("suspend"):
                    item["spec"]["suspend"] = False
                    self._put("update", item)

    def reset(self) -> None:
        """Forget the faults."""
        self.faults.clear()
        self.unschedulable = self.bad_image = self.quota = ""
        self.jobset_installed = True

    def cut_watches(self) -> None:
        """Close the connections of all watches."""
        self._cut += 1

    # --- Start and end

    def __enter__(self) -> KubernetesCluster:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        scratch = self.folder / "pods"
        (scratch / "root").mkdir(parents=True, exist_ok=True)
        (scratch / "gcs").mkdir(exist_ok=True)
        config = ContainerConfig(
            root=str(scratch / "root"),
            gcs=str(scratch / "gcs"),
            buckets=[],
            hosts="/etc/hosts",
            read_only=environment.read_only_folders(),
            scratch=str(scratch),
        )
        self._containers = Containers(config, self._on_line, self._on_exit)
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        app = Starlette(routes=[Route("/{path:path}", self._serve, methods=methods)])
        listener = socket.create_server(("127.0.0.1", 0))
        # kubectl sends the token of a user over TLS only: it is part of the address.
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/{self._token}"
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        )
        self._threads = [
            threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True),
            threading.Thread(target=self._control, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        self.kubeconfig.chmod(0o600)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping, self._server.should_exit = True, True
        self._ended.set()
        for thread in self._threads:
            thread.join(_STOP_S)
        self._containers.close()

    def _kubeconfig(self) -> Object:
        def entry(kind: str, value: Object) -> list[Object]:
            return [{"name": "podlift-test", kind: value}]

        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "podlift-test",
            "clusters": entry("cluster", {"server": self.url}),
            "users": entry("user", {}),
            "contexts": entry("context", {"cluster": "podlift-test", "user": "podlift-test", "namespace": "default"}),
        }

    # --- Requests

    async def _serve(self, request: Request) -> Response:
        from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse

        try:
            token, _, path = request.url.path.strip("/").partition("/")
            if not secrets.compare_digest(token, self._token):
                raise ApiError(401, "Unauthorized", "Unauthorized")
            body = await request.body()
            self.requests.append(f"{request.method} /{path}")
            answer = await asyncio.to_thread(self._answer, request.method, path, dict(request.query_params), body)
        except ApiError as error:
            return JSONResponse(_status(error.code, error.reason, str(error)), error.code)
        if isinstance(answer, str):
            return PlainTextResponse(answer)
        if isinstance(answer, _Stream):
            return StreamingResponse(answer.lines(), media_type="application/json")
        return JSONResponse(answer, 201 if request.method == "POST" else 200)

    def _answer(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Object | str | _Stream:
        parts = path.strip("/").split("/")
        if (discovery := self._discovery(parts)) is not None:
            return discovery
        version, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = _KINDS.get((version, rest[0] if rest else ""))
        if kind is None or (kind == "JobSet" and not self.jobset_installed):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        name, sub = (rest[1] if len(rest) > 1 else ""), (rest[2] if len(rest) > 2 else "")
        verb = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}.get(
            method, "get" if name else "list"
        )
        verb = "watch" if query.get("watch") in ("true", "1") else verb
        self._fail(verb, kind)
        if namespace and ("Namespace", "", namespace) not in self._objects:
            raise ApiError(404, "NotFound", f'namespaces "{namespace}" not found')
        with self._lock:
            if sub == "log":
                return self._log(namespace, name, query)
            if verb in ("list", "watch"):
                return self._list(kind, version, namespace, query, watch=verb == "watch")
            if verb == "create":
                return self._create(kind, namespace, json.loads(body), dry="dryRun" in query)
            item = self._objects.get((kind, "" if kind in _GLOBAL else namespace, name))
            if item is None:
                raise ApiError(404, "NotFound", f'{rest[0]} "{name}" not found')
            if verb == "delete":
                self._delete(item)
                return _status(200, "", "", status="Success")
            if verb in ("patch", "update"):
                changes = json.loads(body)
                merged = changes if verb == "update" else _merged(item, changes)
                return item if "dryRun" in query else self._put("update", merged)
            return item

    def _fail(self, verb: str, kind: str) -> None:
        for fault in self.faults:
            if fault.times and fault.verb == verb and fault.kind == kind:
                fault.times -= 1
                reason = {403: "Forbidden", 409: "AlreadyExists", 410: "Expired", 429: "TooManyRequests"}.get(
                    fault.code, "InternalError"
                )
                raise ApiError(fault.code, reason, fault.message)

    def _discovery(self, parts: list[str]) -> Object | None:
        groups = sorted({version for version, _ in _KINDS if "/" in version})
        if parts == ["version"]:
            return {"major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "linux/amd64"}
        if parts == ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if parts == ["apis"]:
            listed = []
            for group in groups:
                entry = {"groupVersion": group, "version": group.partition("/")[2]}
                listed.append({"name": group.partition("/")[0], "versions": [entry], "preferredVersion": entry})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        if parts[:2] == ["openapi", "v3"]:
            return _openapi("/".join(parts[2:]))
        version = "v1" if parts == ["api", "v1"] else "/".join(parts[1:]) if parts[0] == "apis" else ""
        if version in {served for served, _ in _KINDS}:
            verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
            resources = []
            for (group, plural), kind in _KINDS.items():
                if group == version:
                    about = {"name": plural, "singularName": kind.lower(), "namespaced": kind not in _GLOBAL}
                    categories = ["all"] if kind in ("Job", "Pod", "Service") else []
                    resources.append({**about, "kind": kind, "verbs": verbs, "categories": categories})
            logs = [{"name": "pods/log", "singularName": "", "namespaced": True, "kind": "Pod", "verbs": ["get"]}]
            resources += logs if version == "v1" else []
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
        return None

    def _create(self, kind: str, namespace: str, item: Object, *, dry: bool) -> Object:
        name = item["metadata"].get("name") or f"{item['metadata'].get('generateName', 'x')}{secrets.token_hex(3)[:5]}"
        item["metadata"] |= {"name": name, **({} if kind in _GLOBAL else {"namespace": namespace})}
        if (kind, namespace, name) in self._objects:
            raise ApiError(409, "AlreadyExists", f'{kind.lower()}s "{name}" already exists')
        item["metadata"] |= {"uid": secrets.token_hex(16), "creationTimestamp": _now()}
        if kind == "Job":
            item["spec"]["selector"] = {"matchLabels": {_CONTROLLER: item["metadata"]["uid"]}}
        if item["metadata"].get("labels", {}).get(_QUEUE) and kind in ("Job", "JobSet"):
            item["spec"]["suspend"] = True
            about = {"name": f"job-{name}", "namespace": namespace, "ownerReferences": [_reference(item)]}
            workload = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": about}
            message = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default"
            _condition(workload, "QuotaReserved", "False", "Pending", message)
            if not dry:
                self._put("create", workload)
        return item if dry else self._put("create", item)

    def _put(self, event: str, item: Object) -> Object:
        """Store an object, and let the watches see it."""
        self._version += 1
        about = item["metadata"]
        about["resourceVersion"] = str(self._version)
        key = (item["kind"], "" if item["kind"] in _GLOBAL else about.get("namespace", "default"), about["name"])
        word = {"create": "ADDED", "update": "MODIFIED", "delete": "DELETED"}[event]
        if event == "delete":
            self._objects.pop(key, None)
        else:
            self._objects[key] = item
        self._history.append((self._version, word, copy.deepcopy(item)))
        return item

    def _list(
        self, kind: str, version: str, namespace: str, query: Mapping[str, str], *, watch: bool
    ) -> Object | _Stream:
        def is_wanted(item: Object) -> bool:
            labels = item["metadata"].get("labels") or {}
            fields = {**_flat(item), "metadata.name": item["metadata"]["name"]}
            return (
                item["kind"] == kind
                and (not namespace or item["metadata"].get("namespace") == namespace)
                and all(labels.get(key) == value for key, value in _pairs(query.get("labelSelector", "")))
                and all(fields.get(key) == value for key, value in _pairs(query.get("fieldSelector", "")))
            )

        if watch and query.get("sendInitialEvents") == "true":
            # As a server of the version that discovery names; kubectl lists instead.
            raise ApiError(
                422, "Invalid", "sendInitialEvents is forbidden for watch without the WatchList feature gate"
            )
        if watch:
            after, limit_s = int(query.get("resourceVersion") or 0), float(query.get("timeoutSeconds") or 300)
            return _Stream(self, is_wanted, after, limit_s)
        items = [copy.deepcopy(item) for item in self._objects.values() if is_wanted(item)]
        about = {"kind": f"{kind}List", "apiVersion": version, "items": items}
        return {**about, "metadata": {"resourceVersion": str(self._version)}}

    def _log(self, namespace: str, name: str, query: Mapping[str, str]) -> str | _Stream:
        if ("Pod", namespace, name) not in self._objects:
            raise ApiError(404, "NotFound", f'pods "{name}" not found')
        if query.get("follow") == "true":
            return _Stream(self, lambda item: False, 0, 300, pod=name)
        return "".join(f"{line}\n" for line in self._logs.get(name, []))

    # --- Controllers

    def _control(self) -> None:
        while not self._stopping:
            with self._lock:
                for item in list(self._objects.values()):
                    if item["kind"] == "Job":
                        self._run_job(item)
                    elif item["kind"] == "JobSet":
                        self._run_jobset(item)
                    elif item["kind"] == "Pod":
                        self._run_pod(item)
            # Not time.sleep, which tests replace.
            self._ended.wait(_TICK_S / 2)

    def _owned(self, kind: str, owner: Object) -> list[Object]:
        uid = owner["metadata"]["uid"]
        return [
            item
            for item in list(self._objects.values())
            if item["kind"] == kind and any(ref["uid"] == uid for ref in item["metadata"].get("ownerReferences", ()))
        ]

    def _run_jobset(self, item: Object) -> None:
        if item["spec"].get("suspend") or _is_over(item):
            return
        jobs = {
            job["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]: job for job in self._owned("Job", item)
        }
        for part in item["spec"]["replicatedJobs"]:
            if part["name"] not in jobs:
                name = f"{item['metadata']['name']}-{part['name']}-0"
                labels = {**item["metadata"].get("labels", {}), "jobset.sigs.k8s.io/replicatedjob-name": part["name"]}
                about = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [_reference(item)]}
                spec = copy.deepcopy(part["template"]["spec"])
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}
                self._create("Job", "default", job, dry=False)
        targets = item["spec"].get("successPolicy", {}).get("targetReplicatedJobs") or list(jobs)
        failed = [job for job in jobs.values() if _has(job, "Failed")]
        if failed:
            why = f"jobset failed due to one or more job failures (first failed job: {failed[0]['metadata']['name']})"
            self._end(item, "Failed", "FailedJobs", why)
        elif jobs and all(name in jobs and _has(jobs[name], "Complete") for name in targets):
            self._end(item, "Completed", "AllJobsCompleted", "jobset completed successfully")

    def _run_job(self, item: Object) -> None:
        if _is_over(item):
            return
        spec, status = item["spec"], item.setdefault("status", {})
        pods = self._owned("Pod", item)
        if spec.get("suspend"):
            for pod in pods:
                self._terminate(pod, None)
            return
        if "startTime" not in status:
            status["startTime"], item["began"] = _now(), time.monotonic()
            self._put("update", item)
        limit = spec.get("activeDeadlineSeconds")
        if limit is not None and time.monotonic() - item["began"] > limit:
            self._end(item, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
            return
        done = {_index(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
        for pod in pods:
            if pod["status"]["phase"] == "Failed" and pod["metadata"]["uid"] not in self._counted:
                self._counted.add(pod["metadata"]["uid"])
                if why := self._failure(spec, pod):
                    self._end(item, "Failed", "PodFailurePolicy", why)
                    return
        early = {rule["succeededIndexes"] for rule in spec.get("successPolicy", {}).get("rules", ())}
        if early & done or len(done) == spec["completions"]:
            reason = "SuccessPolicy" if early & done else "CompletionsReached"
            self._end(item, "Complete", reason, "Reached expected number of succeeded pods")
            return
        if self.quota:
            self._warn(item, "FailedCreate", f"Error creating: pods is forbidden: {self.quota}")
            return
        living = {_index(pod) for pod in pods if pod["status"]["phase"] in ("Pending", "Running")}
        for index in range(spec["completions"]):
            if str(index) not in done | living:
                self._create_pod(item, str(index))

    def _failure(self, spec: Object, pod: Object) -> str:
        """Return why a pod's failure fails its job, by its policy."""
        state = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {}).get("terminated", {})
        code = state.get("exitCode", _KILLED)
        for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
            codes = rule.get("onExitCodes")
            hit = (
                (code in codes["values"]) == (codes["operator"] == "In")
                if codes
                else any(_has(pod, condition["type"]) for condition in rule["onPodConditions"])
            )
            if hit and rule["action"] == "FailJob":
                name = pod["metadata"]["name"]
                return f"Container task for pod default/{name} failed with exit code {code} matching FailJob rule"
            if hit:
                return ""
        return ""

    def _create_pod(self, job: Object, index: str) -> None:
        template = copy.deepcopy(job["spec"]["template"])
        labels = {**template["metadata"].get("labels", {}), _INDEX: index, _CONTROLLER: job["metadata"]["uid"]}
        name = f"{job['metadata']['name']}-{index}-{secrets.token_hex(3)[:5]}"
        about = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [_reference(job)]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}
        self._create("Pod", "default", {**pod, "status": {"phase": "Pending"}}, dry=False)

    def _run_pod(self, pod: Object) -> None:
        """Start the container of a pod as soon as nothing prevents it."""
        status, uid = pod["status"], pod["metadata"]["uid"]
        if status["phase"] != "Pending" or uid in self._started or pod["metadata"].get("deletionTimestamp"):
            return
        container = pod["spec"]["containers"][0]
        if self.unschedulable:
            _condition(pod, "PodScheduled", "False", "Unschedulable", self.unschedulable)
            return
        _condition(pod, "PodScheduled", "True", "", "")
        waits = ("ImagePullBackOff", self.bad_image) if self.bad_image else None
        values: dict[str, str] = {}
        for entry in container.get("env", ()):
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                name = source["secretKeyRef"]["name"]
                secret = self._objects.get(("Secret", "default", name))
                if secret is None:
                    waits = waits or ("CreateContainerConfigError", f'secret "{name}" not found')
                    continue
                values[entry["name"]] = secret["stringData"][source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                values[entry["name"]] = (
                    pod["metadata"]["labels"][_INDEX] if "index" in source["fieldRef"]["fieldPath"] else "127.0.0.1"
                )
            else:
                values |= environment.expand_env([entry], values)
        if waits:
            state = {"waiting": {"reason": waits[0], "message": waits[1]}}
            status["containerStatuses"] = [{"name": container["name"], "state": state}]
            return
        self._started.add(uid)
        self._uids[uid] = pod["metadata"]["name"]
        status |= {"phase": "Running", "podIP": "127.0.0.1", "startTime": _now()}
        state = {"running": {"startedAt": _now()}}
        status["containerStatuses"] = [{"name": container["name"], "ready": True, "state": state}]
        self._put("update", pod)
        home = self.folder / "pods" / uid
        (home / "tmp").mkdir(parents=True)
        python = environment.make_environment(home / ".local")
        path = f"{python['PATH']}:/usr/local/bin:/usr/bin:/bin"
        # /tmp and /home are emptyDirs of the pod.
        own = {"TMPDIR": str(home / "tmp"), "HOME": str(home), "LANG": "C.UTF-8", "HOSTNAME": pod["metadata"]["name"]}
        env = {**python, **values, **own, "PATH": path}
        command = [*container.get("command", ()), *container.get("args", ())]
        self._containers.start(uid, host=pod["metadata"]["name"], command=command, env=env, cwd=str(home))

    def _terminate(self, pod: Object, grace_s: float | None) -> None:
        if pod["status"]["phase"] not in ("Pending", "Running") or pod["metadata"].get("deletionTimestamp"):
            return
        pod["metadata"]["deletionTimestamp"] = _now()
        self._put("update", pod)
        if pod["metadata"]["uid"] in self._started:
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
            self._containers.stop([pod["metadata"]["uid"]], grace)
        else:
            self._put("delete", pod)

    def _delete(self, item: Object) -> None:
        """Delete an object and all that it owns; the pods that run get their grace."""
        for kind in ("Job", "Pod", "Secret", "Workload"):
            for owned in self._owned(kind, item):
                self._delete(owned)
        if item["kind"] == "Pod" and item["status"]["phase"] == "Running":
            item["deleted"] = True
            self._terminate(item, None)
        else:
            self._put("delete", item)

    def _end(self, item: Object, kind: str, reason: str, message: str) -> None:
        _condition(item, kind, "True", reason, message)
        self._put("update", item)
        for job in self._owned("Job", item):
            if not _is_over(job):
                self._delete(job)
        for pod in self._owned("Pod", item):
            self._terminate(pod, None)

    def _warn(self, item: Object, reason: str, message: str) -> None:
        name = f"{item['metadata']['name']}.{reason.lower()}"
        if ("Event", "default", name) in self._objects:
            return
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"}}
        event |= {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": _now()}
        self._put("create", {**event, "involvedObject": _reference(item)})

    def _on_line(self, uid: str, stream: str, line: str) -> None:
        self._logs.setdefault(self._uids[uid], []).append(line)

    def _on_exit(self, exited: dict[str, tuple[int, int]]) -> None:
        with self._lock:
            for uid, (code, _) in exited.items():
                name = self._uids[uid]
                own_folders.discard(str(self.folder / "pods"), uid, private=False)
                pod = self._objects.get(("Pod", "default", name))
                if pod is None:
                    continue
                tail = "\n".join(self._logs.get(name, [])[-40:])[-2048:]
                ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": _now()}
                state = {"terminated": {**ended, **({"message": tail} if code else {})}}
                pod["status"] |= {"phase": "Succeeded" if code == 0 else "Failed"}
                pod["status"]["containerStatuses"] = [{"name": "task", "ready": False, "state": state}]
                self._put("delete" if pod.get("deleted") else "update", pod)


class _Stream:
    """The lines of a watch, or of a log that is followed."""

    def __init__(
        self, cluster: KubernetesCluster, is_wanted: Callable[[Object], bool], after: int, limit_s: float, pod: str = ""
    ) -> None:
        self._cluster, self._is_wanted, self._after, self._pod = cluster, is_wanted, after, pod
        self._until, self._cut, self._line = time.monotonic() + limit_s, cluster._cut, 0

    async def lines(self) -> AsyncIterator[str]:
        cluster = self._cluster
        while time.monotonic() < self._until and self._cut == cluster._cut and not cluster._stopping:
            if self._pod:
                lines = cluster._logs.get(self._pod, [])[self._line :]
                self._line += len(lines)
                for line in lines:
                    yield f"{line}\n"
                pod = cluster._objects.get(("Pod", "default", self._pod))
                if not lines and (pod is None or pod["status"]["phase"] not in ("Pending", "Running")):
                    return
            for version, word, item in list(cluster._history):
                if version > self._after:
                    self._after = version
                    if self._is_wanted(item):
                        yield json.dumps({"type": word, "object": item}) + "\n"
            await asyncio.sleep(_POLL_S)


def _openapi(group: str) -> Object:
    """Return an index, or of one group as much as kubectl reads to let the server validate."""
    prefixes = {version: ("api/" if version == "v1" else "apis/") + version for version, _ in _KINDS}
    if not group:
        return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash=0"} for path in prefixes.values()}}
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("fieldValidation", "dryRun")]
    paths = {}
    for (version, plural), kind in _KINDS.items():
        if prefixes[version] == group:
            name, _, end = version.rpartition("/")
            about = {"group": name, "version": end, "kind": kind}
            patch = {"x-kubernetes-group-version-kind": about, "parameters": parameters, "responses": {}}
            paths[f"/{group}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.33.0"}, "paths": paths}


def _status(code: int, reason: str, message: str, *, status: str = "Failure") -> Object:
    about = {"status": status, "message": message, "reason": reason, "code": code}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, **about}


def _condition(item: Object, kind: str, value: str, reason: str, message: str) -> None:
    conditions = [entry for entry in item.setdefault("status", {}).get("conditions", []) if entry["type"] != kind]
    about = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": _now()}
    item["status"]["conditions"] = [*conditions, about]


def _has(item: Object, kind: str) -> bool:
    return any(
        entry["type"] == kind and entry["status"] == "True" for entry in item.get("status", {}).get("conditions", ())
    )


def _is_over(item: Object) -> bool:
    return any(_has(item, kind) for kind in ("Complete", "Completed", "Failed"))


def _reference(item: Object) -> Object:
    about = item["metadata"]
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": about["name"], "uid": about["uid"]}


def _index(pod: Object) -> str:
    return str(pod["metadata"]["labels"][_INDEX])


def _pairs(selector: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, selector.split(",")):
        key, _, value = part.partition("=")
        yield key.strip(), value.lstrip("=").strip()


def _flat(item: Object, prefix: str = "") -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, value in item.items():
        if isinstance(value, dict):
            texts |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            texts[prefix + key] = value
    return texts


def _merged(item: Object, changes: Object) -> Object:
    merged = dict(item)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
