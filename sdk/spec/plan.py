"""A Plan: everything that was decided about a run before it starts, as pure data. No I/O, no clock, no environment."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from .. import ids
from ..errors import CorruptRunError
from ..hardware import accelerators
from . import cluster
from .layout import RootPaths, RunPaths
from .payload import Payload

VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `submit` will do, exactly.

    Args:
        run_id: the run's id.
        root: the folder below which it will live.
        backend: who runs it.
        job: the Job as JSON.
        kind: "script", "module" or "function".
        target: the script's path in the bundle, or the module.
        function: its name, or "".
        argv: words behind the script's or module's name.
        kwargs: keyword arguments of the function.
        project: the folder that is packaged.
        roots: folders of the bundle that go first on sys.path.
        only: the one file that is packaged, or "" for all of the project.
        digest: sha256 of the bundle.
        files: (path, bytes, sha256, executable) of each file in it; a path that ends with "/" is an empty folder.
        left_out: what of the project is not packaged, and why.
        tasks: names of the tasks; the first one decides about success.
        facts: what was asked of the world.
        findings: (level, message) of every check.
        cwd: the folder of the bundle in which the program starts, "" for the top.
        generated: text of the files of the bundle that podlift wrote, by path.
        inputs: where data lies, by name; absolute paths and URLs.
        requirements: "source" they were read from, "lines" and "options" as pip takes them.
        dropped: names of the caller's environment variables that no task sees.
        outside: folders of the caller's machine from which no module of the project may load.
        preload: modules that are imported once for all tasks, which are forked then; none where each starts fresh.
        fresh: why each does, "" where none does.
        own_names: those of podlift's import names that the project has modules of.
        warm_start: the checkpoint of another run to start with, as `STORE#COMMIT`; "" for none.
        drill: "kills" of tasks on purpose and the "seed" of everything random; {} where nobody drills.
        backend_options: the backend's own value as JSON, such as a Vertex; {} for "local".
        local: where files of a root in a bucket lie on this machine, "" for a root that is a folder; not in its JSON.
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
    local: str = ""

    @property
    def paths(self) -> RunPaths:
        """Where the run's files lie on this machine."""
        return RootPaths(self.local or self.root).run(self.run_id)

    @property
    def url(self) -> str:
        """The run's directory: a folder, or one in a bucket."""
        return RootPaths(self.root).run(self.run_id).url

    @property
    def bundle(self) -> str:
        """Path of the archive on this machine."""
        return RootPaths(self.local or self.root).bundle(self.digest)

    @property
    def members(self) -> tuple[cluster.Task, ...]:
        """The cluster's tasks."""
        return cluster.members(self.job["resources"])

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        data = {name: value for name, value in asdict(self).items() if name != "local"}
        return json.dumps({"version": VERSION, **data}, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes, where: str) -> Plan:
        """Read what `to_json` wrote.

        Args:
            text: the file's content.
            where: its path, for the error.

        Raises:
            CorruptRunError: it is damaged, foreign, or of a later podlift.
        """
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise CorruptRunError(
                    f"{where!r} was written by another podlift: version {data['version']!r}, known is {VERSION}."
                )
            data.pop("local", None)
            known = {item.name: data[item.name] for item in fields(Plan) if item.name in data or _required(item)}
            plan = Plan(**known)
            _check(plan)
            return replace(plan, backend_options=_options(plan))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, CorruptRunError):
                raise
            raise CorruptRunError(
                f"{where!r} is no plan of podlift, or it is damaged ({type(error).__name__}: {error}). Nothing was changed."
            ) from None

    def payload(self, attempt: int) -> Payload:
        """Return what the tasks of one attempt have to read."""
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
            outside=self.outside,
            checkpoints=self.job.get("checkpoints", {}),
            warm_start=self.warm_start,
            grace_s=self.job["limits"]["grace_s"],
            drill=self.drill,
            tpu=row.name if row.family == "tpu" else "",
            tpu_stand_in=self.backend == "local",
            own_names=self.own_names,
        )

    def __str__(self) -> str:
        from .plan_text import lines, text

        return text(lines(self))


def _required(item: Any) -> bool:
    """True for a field that every podlift has written, false for one that was added later."""
    return item.default is MISSING and item.default_factory is MISSING


def _options(plan: Plan) -> dict[str, Any]:
    """Return the backend's value as this podlift writes it: an earlier one knew less of it, and a later one knows more."""
    if plan.backend != "vertex":
        return plan.backend_options
    from .policies import Vertex

    known = {name: value for name, value in plan.backend_options.items() if name in Vertex.model_fields}
    return Vertex(**known).model_dump(mode="json")


def _check(plan: Plan) -> None:
    """Raise where a plan that was read cannot be one that was written."""
    kinds = {"str": str, "list": list, "dict": dict}
    for item in fields(Plan):
        value = getattr(plan, item.name)
        if not isinstance(value, kinds[str(item.type).partition("[")[0]]):
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
    # A plan may come from elsewhere: what it packages and starts lies in its own folder.
    for path in [*(file[0] for file in plan.files), *plan.roots, *plan.generated, plan.cwd]:
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise ValueError(f"path {path!r} leaves its folder")
    for name in ("timeout_s", "grace_s", "exit_wait_s"):
        plan.job["limits"][name]
