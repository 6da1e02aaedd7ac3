"""A Plan: everything that is decided about a run before it starts, as pure data. No I/O, no clock, no environment."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from .. import ids
from ..errors import CorruptRunError
from ..hardware import accelerators
from . import cluster
from .capabilities import LOCAL, OF_FIRST_PLANS, Capabilities
from .layout import RootPaths, RunPaths
from .payload import Payload

VERSION = 2
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `submit` will do, exactly.

    Args:
        run_id: the run's id.
        root: the folder or the URL below which the run will live.
        backend: the name of the backend.
        job: the Job as JSON.
        kind: "script", "module" or "function".
        target: the script's path in the bundle, or the module.
        function: the function's name, or "".
        argv: command-line arguments of the script or module.
        kwargs: keyword arguments of the function.
        project: the folder that is packaged.
        roots: folders of the bundle that come first on sys.path.
        only: the single file that is packaged, or "" for the whole project.
        digest: sha256 of the bundle.
        files: (path, bytes, sha256, executable) of each file in the bundle; a path that ends with "/" is an empty folder.
        left_out: files of the project that are not packaged, with the reason.
        tasks: names of the tasks; the first one determines success.
        facts: what was probed before planning.
        findings: (level, message) of every check.
        cwd: the folder of the bundle in which the program starts, "" for the top.
        generated: content of the files of the bundle that podlift wrote, by path.
        inputs: absolute paths and URLs of the data, by name.
        requirements: the "source" they were read from, "lines" and "options" in pip's syntax.
        dropped: names of the caller's environment variables that no task sees.
        outside: folders of the caller's machine from which no module of the project may load.
        preload: modules that are imported once, before the tasks are forked; empty if each task starts fresh.
        fresh: why each task starts fresh; "" if tasks are forked.
        own_names: import names of podlift that the project uses for modules of its own.
        warm_start: the checkpoint of another run to start from, as `STORE#COMMIT`; "" for none.
        drill: the "kills" and the random "seed" of a drill; {} otherwise.
        backend_options: the backend's own options as JSON: a Local or a Vertex.
        capabilities: what the backend is like.
        local: this machine's copy of a root in a bucket, "" for a root that is a folder; not part of the JSON.
    """

    run_id: str
    root: str
    backend: str
    job: dict[str, Any]
    kind: str
    target: str
    function: str
    argv: list[str]
    kwargs: dict[str, Any]
    project: str
    roots: list[str]
    only: str
    digest: str
    files: list[list[Any]]
    left_out: list[str]
    tasks: list[str]
    facts: dict[str, Any]
    findings: list[list[str]]
    cwd: str = ""
    generated: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    requirements: dict[str, Any] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    preload: list[str] = field(default_factory=list)
    fresh: str = ""
    own_names: list[str] = field(default_factory=list)
    warm_start: str = ""
    drill: dict[str, Any] = field(default_factory=dict)
    backend_options: dict[str, Any] = field(default_factory=dict)
    capabilities: Capabilities = LOCAL
    local: str = ""

    @property
    def paths(self) -> RunPaths:
        """The run's files on this machine."""
        return RootPaths(self.local or self.root).run(self.run_id)

    @property
    def url(self) -> str:
        """The run's directory: a folder, or a gs:// URL."""
        return RootPaths(self.root).run(self.run_id).url

    @property
    def bundle(self) -> str:
        """The path of the archive on this machine."""
        return RootPaths(self.local or self.root).bundle(self.digest)

    @property
    def members(self) -> tuple[cluster.Task, ...]:
        """The tasks of the cluster."""
        return cluster.members(self.job["resources"], self.backend_options)

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        data = {name: value for name, value in asdict(self).items() if name != "local"}
        return json.dumps({"version": VERSION, **data}, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes, where: str) -> Plan:
        """Parse the output of `to_json`.

        Args:
            text: the file's content.
            where: its path, for the error.

        Raises:
            CorruptRunError: it is damaged, not a plan, or was written by a later podlift.
        """
        try:
            data = json.loads(text)
            if data["version"] == 1:
                data = _from_first(data)
            elif data["version"] != VERSION:
                raise CorruptRunError(
                    f"{where!r} was written by another podlift: version {data['version']!r}, known: 1 to {VERSION}."
                )
            data.pop("local", None)
            known = {item.name: data[item.name] for item in fields(Plan) if item.name in data or _required(item)}
            known["capabilities"] = _capabilities(data)
            plan = Plan(**known)
            _check(plan)
            return replace(plan, backend_options=_options(plan))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, CorruptRunError):
                raise
            raise CorruptRunError(
                f"{where!r} is not a plan of podlift, or it is damaged ({type(error).__name__}: {error}). Nothing was changed."
            ) from None

    def payload(self, attempt: int) -> Payload:
        """Return the payload that the tasks of an attempt read."""
        row = accelerators.row(self.job["resources"]["accelerator"])
        return Payload(
            run_id=self.run_id,
            run_url=self.paths.url,
            store=RunPaths(self.url).store if self.local else "",
            attempt=attempt,
            kind=self.kind,
            target=self.target,
            function=self.function,
            argv=self.argv,
            kwargs=self.kwargs,
            bundle=self.bundle,
            digest=self.digest,
            roots=self.roots,
            tasks=self.tasks,
            writes=self.job["code"]["writes"],
            exit_wait_s=self.job["limits"]["exit_wait_s"],
            cwd=self.cwd,
            inputs=self.inputs,
            max_steps=self.job["limits"].get("max_steps"),
            source_dirs=self.outside,
            checkpoints=self.job.get("checkpoints", {}),
            warm_start=self.warm_start,
            grace_s=self.job["limits"]["grace_s"],
            drill=self.drill,
            tpu=row.name if row.family == "tpu" else "",
            tpu_stand_in=self.capabilities.tpu_stand_in,
            own_names=self.own_names,
        )

    def __str__(self) -> str:
        from .plan_text import lines, text

        return text(lines(self))


def _required(item: Any) -> bool:
    """True for a field that every version of podlift writes, False for one that was added later."""
    return item.default is MISSING and item.default_factory is MISSING


# What belonged to every job in plans of version 1, and belongs to one backend now.
_MOVED = {
    "local": (("resources", "network"), ("resources", "cluster"), ("code", "start")),
    "vertex": (("resources", "machine"), ("resources", "disk_gb"), ("resources", "provisioning")),
}


def _from_first(data: dict[str, Any]) -> dict[str, Any]:
    """Return a plan of version 1, which podlift 0.1.0 wrote, in the shape of today."""
    job = {name: dict(value) if isinstance(value, dict) else value for name, value in data["job"].items()}
    options = dict(data.get("backend_options", {}))
    for backend, moved in _MOVED.items():
        for part, name in moved:
            if name in job[part]:
                value = job[part].pop(name)
                options |= {name: value} if backend == data["backend"] else {}
    # The first version did not restart runs.
    retry = job.get("retry", {"infrastructure": 0, "preemption": 0})
    job["retry"] = {
        "user_errors": retry.get("user", 0),
        "infrastructure": retry["infrastructure"],
        "preemptions": retry["preemption"],
    }
    return {**data, "job": job, "backend_options": options}


def _capabilities(data: dict[str, Any]) -> Capabilities:
    """Return the capabilities of a plan's backend. Other versions may lack some or have more."""
    if "capabilities" not in data:
        return OF_FIRST_PLANS.get(data["backend"], LOCAL)
    found = {
        item.name: data["capabilities"][item.name] for item in fields(Capabilities) if item.name in data["capabilities"]
    }
    if not all(isinstance(value, bool) for value in found.values()):
        raise TypeError(f"capabilities are {found}")
    return Capabilities(**found)


def _options(plan: Plan) -> dict[str, Any]:
    """Return the backend's options with the fields of this version: others may lack some or have more."""
    from .policies import BACKENDS

    backend = BACKENDS.get(plan.backend)
    if backend is None:
        return plan.backend_options
    known = {name: value for name, value in plan.backend_options.items() if name in backend.model_fields}
    return backend(**known).model_dump(mode="json")


def _check(plan: Plan) -> None:
    """Raise if a parsed plan is inconsistent."""
    kinds = {"str": str, "list": list, "dict": dict}
    for item in fields(Plan):
        value = getattr(plan, item.name)
        if item.name != "capabilities" and not isinstance(value, kinds[str(item.type).partition("[")[0]]):
            raise TypeError(f"{item.name} is {type(value).__name__}")
    if [task.name for task in plan.members] != plan.tasks:
        raise ValueError(f"tasks are {plan.tasks}")
    if not ids.is_run_id(plan.run_id) or not _DIGEST.fullmatch(plan.digest):
        raise ValueError(f"run {plan.run_id!r} of bundle {plan.digest!r}")
    for path, size, sha256, executable in plan.files:
        if not (
            isinstance(size, int) and isinstance(executable, bool) and (path.endswith("/") or _DIGEST.fullmatch(sha256))
        ):
            raise ValueError(f"file {path!r}")
    # A plan may come from elsewhere: its paths must stay inside its own folder.
    for path in [*(file[0] for file in plan.files), *plan.roots, *plan.generated, plan.cwd]:
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise ValueError(f"path {path!r} leaves its folder")
    for name in ("timeout_s", "grace_s", "exit_wait_s"):
        plan.job["limits"][name]
