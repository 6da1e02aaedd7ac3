"""A Plan: everything that is decided about a run before it starts, as pure data. No I/O, no clock, no environment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import ids
from ..errors import CorruptRunError
from ..hardware import accelerators
from ..hardware.pricing import Price, Rental, price
from ..text import emulator_at, html_table
from . import cluster
from .capabilities import LOCAL, Capabilities
from .findings import Facts, Finding
from .job import Job
from .layout import RootPaths, RunPaths
from .payload import Drill, InitialWeights, Payload
from .targets import Keeper, Target, options_of
from .wire import decode

VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `submit` will do, exactly: `plan = sdk.plan("train.py"); print(plan); sdk.submit(plan)`.

    Args:
        run_id: the run's id.
        root: the folder or the URL below which the run will live.
        backend: the name of the backend.
        target: the options of the backend, such as a `Vertex`.
        job: the user's job, with every default.
        code: the packaged code and its entry.
        tasks: names of the tasks; the first one determines success.
        facts: the facts that were probed before planning.
        findings: the result of every check.
        inputs: absolute paths and URLs of the data, by name.
        preload: modules that are imported once, before the tasks are forked; empty if each task starts fresh.
        fresh: why each task starts fresh; "" if tasks are forked.
        warm_start: the checkpoint of another run to start from, as `STORE#COMMIT`; "" for none.
        initial: the weights of a registered model to start from, as `Job.warm_start` asks for; None in the template of a
            schedule, because each firing chooses them.
        drill: the kills of a drill.
        fired: whether the trigger of a schedule starts it, and brings the keeper.
        capabilities: the properties of the backend.
        local: this machine's copy of a root in a bucket, "" for a root that is a folder; not part of the JSON.
        emulator: the address of the emulator that stands in for Google Cloud, such as "127.0.0.1:8123"; "" for none.
    """

    run_id: str
    root: str
    backend: str
    target: Target
    job: Job
    code: PackedCode
    tasks: list[str]
    facts: Facts
    findings: tuple[Finding, ...]
    inputs: dict[str, str] = field(default_factory=dict)
    preload: list[str] = field(default_factory=list)
    fresh: str = ""
    warm_start: str = ""
    initial: InitialWeights | None = None
    drill: Drill | None = None
    fired: bool = False
    capabilities: Capabilities = LOCAL
    local: str = ""
    emulator: str = ""

    @property
    def paths(self) -> RunPaths:
        """The run's files on this machine."""
        return RootPaths(self.local or self.root).run(self.run_id)

    @property
    def url(self) -> str:
        """The run's directory: a folder, or a gs:// URL."""
        return RootPaths(self.root).run(self.run_id).url

    @property
    def place(self) -> str:
        """The backend, and the emulator that replaces a cloud: "vertex, emulator at 127.0.0.1:8123"."""
        if not self.emulator:
            return self.backend
        return f"{self.backend}, {'bucket on the ' if self.capabilities.runs_here else ''}{emulator_at(self.emulator)}"

    @property
    def stands_in(self) -> bool:
        """Whether logical CPU devices stand in for the accelerator, if the job has one."""
        return self.capabilities.stand_ins and not self.target.real_gpus

    @property
    def rentals(self) -> tuple[Rental, ...]:
        """The machines that a job rents in each of its locations, if any."""
        return self.target.rentals(self.job.resources, self.job.limits, self.facts.prices)

    @property
    def prices(self) -> tuple[Price, ...]:
        """The price of a job in each of its locations; none where nothing is billed."""
        return () if self.emulator else tuple(price(rented) for rented in self.rentals)

    @property
    def keeper(self) -> Keeper | None:
        """The keeper, which waits for the run and submits its next jobs, if one was requested."""
        return None if self.fired else self.target.kept_by(self.job.limits, self.job.retry, self.facts.prices)

    @property
    def bundle(self) -> str:
        """The path of the archive on this machine."""
        return RootPaths(self.local or self.root).bundle(self.code.digest)

    @property
    def members(self) -> tuple[cluster.Task, ...]:
        """The tasks of the cluster."""
        return cluster.members(self.job.resources, self.target)

    @property
    def model(self) -> str:
        """The name under which the run's model is registered when the program has succeeded, "" if it is not."""
        job = self.job
        # Drill runs never register a model.
        if self.drill or (job.model is None and job.gate.evaluate is None and job.warm_start is None):
            return ""
        return job.model or ids.name_of(self.run_id)

    @property
    def alone(self) -> list[str]:
        """The tasks that are restarted alone when they are lost; all others are restarted together."""
        return [task for task in self.tasks if cluster.restarts_alone(task, self.tasks)]

    def to_json(self) -> str:
        """Return the plan as JSON text: `text = sdk.plan("train.py").to_json()`."""
        return json.dumps({"version": VERSION, **_to_data(self)}, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes, where: str, *, root: str = "", folder: str = "") -> Plan:
        """Parse the output of `to_json`: `sdk.submit(sdk.Plan.from_json(text, "plan.json"))`.

        Args:
            text: the file's content.
            where: its path, for the error.
            root: the present root of its run, "" for the root that it was submitted to.
            folder: the root's folder on this machine, if the root is a bucket.

        Raises:
            CorruptRunError: it is damaged, not a plan, or was written by a later podlift.
        """
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise CorruptRunError(
                    f"{where!r} was written by another podlift: version {data['version']!r}, known: {VERSION}."
                )
            root = root or data["root"]
            plan = _from_data({**data, "root": root, "local": folder if "://" in root else ""})
            _check(plan)
            return plan
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, CorruptRunError):
                raise
            raise CorruptRunError(
                f"{where!r} is not a plan of podlift, or it is damaged ({type(error).__name__}: {error}). Nothing was changed."
            ) from None

    def payload(self, attempt: int) -> Payload:
        """Return the payload that the tasks of an attempt read."""
        row = accelerators.row(self.job.resources.accelerator)
        return Payload(
            run_id=self.run_id,
            run_url=self.paths.url,
            store=RunPaths(self.url).store if self.local else "",
            attempt=attempt,
            kind=self.code.kind,
            target=self.code.program,
            function=self.code.function,
            argv=self.code.argv,
            kwargs=self.code.kwargs,
            bundle=self.bundle,
            digest=self.code.digest,
            roots=self.code.roots,
            tasks=self.tasks,
            writes=self.job.code.writes,
            limits=self.job.limits,
            checkpoints=self.job.checkpoints,
            cwd=self.code.cwd,
            inputs=self.inputs,
            source_dirs=self.code.outside,
            warm_start=self.warm_start,
            initial=self.initial,
            models=RootPaths(self.root).models if self.initial else "",
            drill=self.drill,
            tpu=row.name if row.family == "tpu" else "",
            gpu=row.name if row.family == "gpu" else "",
            stand_in=self.stands_in,
            copied=sorted([*self.job.copied, *self.job.secrets]),
            secrets={name: secret.version for name, secret in self.job.secrets.items()},
            model=self.model,
            gate=self.job.gate,
        )

    def __str__(self) -> str:
        from .plan_text import lines, text

        return text(lines(self))

    def _repr_html_(self) -> str:
        from .plan_text import lines

        return html_table(lines(self))


# The JSON is flat: the code's fields are the plan's, and two have other names there.
_PROGRAM, _TARGET = "target", "backend_options"


def _to_data(plan: Plan) -> dict[str, object]:
    data = asdict(plan)
    code, facts, target = data.pop("code"), data.pop("facts"), data.pop("target")
    program, _ = code.pop("program"), data.pop("local")
    return {
        **data,
        **code,
        _TARGET: target,
        _PROGRAM: program,
        "files": [list(file.values()) for file in code["files"]],
        "findings": [[finding.level, finding.message] for finding in plan.findings],
        "dropped": facts.pop("dropped"),
        "facts": {name: value for name, value in facts.items() if value != {} and (name, value) != ("prices", None)},
        "drill": data["drill"] or {},
        "restarts": {"alone": plan.alone, "together": [task for task in plan.tasks if task not in plan.alone]},
    }


def _from_data(data: Mapping[str, Any]) -> Plan:
    missing = {"timeout_s", "grace_s", "exit_wait_s"} - data["job"]["limits"].keys()
    if missing:
        raise ValueError(f"limits without {', '.join(sorted(missing))}")
    plan = {
        **data,
        "code": {**data, "program": data[_PROGRAM]},
        "facts": {**data["facts"], "dropped": data["dropped"]},
        "target": decode(options_of(data["backend"]), data[_TARGET]),
        "drill": data["drill"] or None,
    }
    return decode(Plan, plan)


def _check(plan: Plan) -> None:
    """Raise if a parsed plan is inconsistent, or names an accelerator that does not exist (KeyError)."""
    accelerators.row(plan.job.resources.accelerator)
    if [task.name for task in plan.members] != plan.tasks:
        raise ValueError(f"tasks are {plan.tasks}")
    if not ids.is_run_id(plan.run_id) or not _DIGEST.fullmatch(plan.code.digest):
        raise ValueError(f"run {plan.run_id!r} of bundle {plan.code.digest!r}")
    for file in plan.code.files:
        if not (file.path.endswith("/") or _DIGEST.fullmatch(file.sha256)):
            raise ValueError(f"file {file.path!r}")
    # A plan may come from elsewhere: its paths must stay inside its own folder.
    for path in [*(file.path for file in plan.code.files), *plan.code.roots, *plan.code.generated, plan.code.cwd]:
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise ValueError(f"path {path!r} leaves its folder")


@dataclass(frozen=True)
class PackedFile:
    """A file of a bundle, or an empty folder."""

    path: str  # with "/"; a folder's path ends in "/"
    size: int
    sha256: str  # "" for a folder
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class PackedRequirements:
    """The packages that the tasks need, in pip's syntax."""

    source: str = ""  # the name of the file that was read, "list", or "" if there are no requirements
    lines: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PackedCode:
    """The files of a run and its entry."""

    kind: str  # "script", "module" or "function"
    program: str  # the script's path in the bundle, or the module
    function: str  # its name, or ""
    project: str  # the folder that is packaged
    roots: list[str]  # folders of the bundle that come first on sys.path
    only: str  # the single file that is packaged, or "" for the whole project
    digest: str  # sha256 of the bundle
    files: tuple[PackedFile, ...]  # sorted by path
    left_out: list[str]  # files of the project that are not packaged, with the reason
    cwd: str = ""  # the folder of the bundle in which the program starts, "" for the top
    generated: Mapping[str, str] = field(default_factory=dict)  # content of the files that podlift wrote, by path
    outside: list[str] = field(default_factory=list)  # folders of this machine from which no module of it may load
    requirements: PackedRequirements = field(default_factory=PackedRequirements)
    argv: list[str] = field(default_factory=list)  # of the script or module
    kwargs: dict[str, object] = field(default_factory=dict)  # of the function
