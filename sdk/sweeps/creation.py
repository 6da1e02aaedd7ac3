"""Creates sweeps: checks and plans the specification, compares it with a stored sweep of its name, and writes it."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import util
from typing import Any

from .. import backends, ids
from ..clock import Clock, SystemClock
from ..errors import InputError, Problems, nearest
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..job.setting_names import WORDS, setting_name
from ..job.targets import options_of
from ..planning import diff
from ..planning.pack import packaged
from ..planning.prepare import checked, planned, refuse_inside_task
from ..planning.roots import in_bucket, local_folder
from ..planning.secrets import missing_variables
from ..planning.settings.merge import Destination, gather
from ..process import spawn
from ..process.heartbeats import Heart
from ..records import spending
from ..records.named import remember
from ..records.sync import push
from ..storage import cache
from ..text import and_more, counted, money, shown
from . import arguments, space
from .records import MAX_NAME, Book, SweepRecord, SweepSpec, heartbeat_key, with_parameters

_AMONG = {"mode": ("max", "min"), "pruner": ("none", "asha", "median"), "sampler": ("tpe", "random", "grid")}
# The options of a sweep beside the space and the settings of a job.
CHOSEN = ("metric", "trials", "parallel", "seed", *_AMONG)
# Ends the id of the stored plan; each trial has another id.
_TEMPLATE = "aaaaaa"
# Elsewhere, where the machines of a trial are billed.
_PARALLEL_FAR = 4
# Only these may change when a sweep continues.
_CHANGEABLE = ("trials", "parallel", "max_cost_usd")
# Parts of a plan that follow from others, or from the machine and the moment.
_DERIVED = (
    "job.entry.", "job.args.", "job.inputs.", "job.code.project.", "entry.kind.", "entry.only.", "entry.argv.",
    "entry.kwargs.", "entry.generated.", "entry.initial.", "entry.warm_start.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked sweep, not yet written."""

    spec: SweepSpec
    plan: Plan  # of a trial
    args: Any  # without the parameters

    def lines(self) -> list[tuple[str, str]]:
        """Return the sweep as (label, text), with the price of the whole."""
        spec = self.spec
        pruned = "" if spec.pruner == "none" else f", {spec.pruner} stops bad ones early"
        return [
            ("sweep", f"{spec.name}: {counted(spec.trials, 'trial')}, {spec.parallel} at a time{pruned}"),
            *[("parameter", f"{name}: {each}") for name, each in spec.space.items()],
            ("search", f"{spec.mode} of {spec.metric!r} by {spec.sampler}, seed {spec.seed}"),
            ("price", self._price()),
        ]

    def _price(self) -> str:
        most, limit = spending.most_usd(self.plan), self.spec.max_cost_usd
        if most is None:
            return "nothing is billed"
        least = "at least " if any(price.own is None for price in self.plan.prices) else "at most "
        whole = f"{least}{money(most)} for a trial, {money(most * self.spec.trials)} for all {self.spec.trials}"
        return whole if limit is None else f"{whole}; no trial starts that could bring the sum above {money(limit)}"


def prepare(what: Any, flat_settings: Mapping[str, object], target: Destination, about: Mapping[str, Any]) -> Prepared:
    """Return the sweep that `create` will write, or raise InputError with every mistake; `about` has `space` and `CHOSEN`."""
    refuse_inside_task("sweep")
    check_installed()
    problems, parameters = Problems(), dict[str, space.Parameter]()
    with problems.collect():
        parameters |= space.of(about["space"])
    for name, among in _AMONG.items():
        if about[name] not in among:
            problems.add(f"{name}: unknown. Received: {about[name]!r}. {nearest(str(about[name]), among)}")
    trials, parallel = about["trials"], about["parallel"]
    for name, number in (("trials", trials), ("parallel", 1 if parallel is None else parallel)):
        if not isinstance(number, int) or number < 1:
            problems.add(f"{name} must be a whole number from 1. Received: {number!r}.")
    if not isinstance(about["metric"], str) or not about["metric"]:
        problems.add(f"metric: name the metric that the program reports. Received: {about['metric']!r}.")
    if parameters and isinstance(trials, int):
        problems.messages += _size(parameters, trials, about["sampler"])
    with problems.closing():
        plan, args, limit = _planned(what, flat_settings, target, parameters)
    name = target.name or f"{ids.name_of(plan.run_id)[: MAX_NAME - 5].rstrip('-')}-{secrets.token_hex(2)}"
    spec = {**about, "space": parameters, "parallel": parallel or _parallel(plan, trials, limit), "max_cost_usd": limit}
    return Prepared(spec=SweepSpec(name=name, **spec), plan=replace(plan, run_id=f"{name}-{_TEMPLATE}"), args=args)


def check_installed() -> None:
    """Raise InputError unless Optuna is installed."""
    if util.find_spec("optuna") is None:
        raise InputError("Sweeps need a package that is not installed: optuna. Next: pip install 'podlift[sweep]'.")


def _size(parameters: space.Space, trials: int, sampler: str) -> list[str]:
    counts = {name: None if (among := space.values(each)) is None else len(among) for name, each in parameters.items()}
    many = next((name for name, count in counts.items() if count is None), None)
    if many is not None:
        grid = f"sampler: a grid needs parameters with values that can be counted, and {many} has a range of numbers."
        return [f"{grid} Next: a step, such as 0.0..0.5:0.1, or --sampler random."] if sampler == "grid" else []
    size = math.prod(count or 0 for count in counts.values())
    if size >= trials:
        return []
    return [
        f"The space has {counted(size, 'point')}, fewer than trials={trials}. Next: --trials {size} --sampler grid."
    ]


def _planned(
    what: Any, flat_settings: Mapping[str, object], target: Destination, parameters: space.Space
) -> tuple[Plan, Any, float | None]:
    """Return the plan of a trial, the arguments without parameters, and the limit on the cost of the sweep."""
    problems = Problems()
    settings = gather(what, flat_settings, target, os.environ, problems)
    args, limit = settings.values.get("args"), settings.values.get("max_cost_usd")
    settings = settings.without(["max_cost_usd"])
    swept = options_of(str(settings.values.get("backend", "local"))).swept
    settings = replace(
        settings, values={**swept, **settings.values}, origins={**dict.fromkeys(swept, ""), **settings.origins}
    )
    if target.name is not None:
        with problems.collect():
            ids.check_name(target.name, MAX_NAME)
    if isinstance(limit, int | float) and limit <= 0:
        problems.add(f"max_cost_usd must be above 0. Received: {limit!r}.")
    if args is None or isinstance(args, dict | list):
        twice = [name for name in parameters if isinstance(args, dict) and name in args]
        problems.messages += [
            f"{name} is a parameter of the space and an argument. Next: remove one." for name in twice
        ]
        # A plan of one point: the program is checked with the names of the parameters.
        sample = with_parameters(
            args, {name: each.options[0] if each.options else each.low for name, each in parameters.items()}
        )
        settings = replace(
            settings, values={**settings.values, "args": sample}, origins={**settings.origins, "args": ""}
        )
    plan = planned(settings, os.environ, problems, starting=True)
    mistakes = arguments.unknown(plan, parameters)
    if isinstance(limit, int | float) and (reason := spending.over_limit(plan, limit, 0.0, what="trial")):
        mistakes.append(f"max_cost_usd={limit:g}: no trial could start: {reason.removeprefix('budget: ')}.")
    return checked(plan, settings, mistakes), args, limit


def _parallel(plan: Plan, trials: int, limit: float | None) -> int:
    """Return how many trials run at the same time: by CPUs here, by the cost and the known quotas elsewhere."""
    if plan.capabilities.runs_here:
        return min(trials, max(1, plan.facts.cpus // len(plan.tasks)))
    most = spending.most_usd(plan) or 0.0
    affordable = int(limit // most) if limit is not None and most else _PARALLEL_FAR
    allowed = backends.load(plan.backend).services.most_runs(plan)
    return max(1, min(trials, affordable, _PARALLEL_FAR if allowed is None else min(allowed, _PARALLEL_FAR)))


def create(prepared: Prepared, clock: Clock | None = None) -> SweepRecord:
    """Write a sweep, or continue the one of its name, and start its driver on this machine if its runs are supervised here."""
    clock, spec = clock or SystemClock(), prepared.spec
    plan = prepared.plan
    plan = packaged(replace(plan, local=local_folder(plan.root, os.environ)))
    book = Book(plan.root)
    if (before := book.find(spec.name)) is not None:
        return _continued(book, before, prepared, plan, clock)
    shared = _shared(plan, spec.parallel, plan.facts.cpus)
    backend = backends.load(plan.backend)
    backend.check(backend.render(shared))
    if plan.local:
        push.upload_archive(plan.bundle, RootPaths(plan.root).bundle(plan.code.digest))
    key = book.put_plan(spec.name, shared)
    record = SweepRecord(
        id=secrets.token_hex(4), spec=spec, bundle=plan.code.digest, plan=key, args=prepared.args, created=clock.now()
    )
    if in_bucket(plan.root):
        remember("sweep", [spec.name], plan.root)
    if not book.add(record):
        return _continued(book, book.read(spec.name), prepared, plan, clock)
    start(book, record, plan, clock)
    return record


def _shared(plan: Plan, parallel: int, cpus: int) -> Plan:
    """Return the plan with the share of the CPUs that each of this number of trials gets."""
    return replace(plan, target=plan.target.divided(parallel, cpus)) if len(plan.tasks) == 1 else plan


def _continued(book: Book, before: SweepRecord, prepared: Prepared, plan: Plan, clock: Clock) -> SweepRecord:
    """Continue a stored sweep with the same space and program, perhaps with more trials."""
    spec, name = prepared.spec, prepared.spec.name
    changes = [
        f"{field} was {getattr(before.spec, field)!r}, and is {getattr(spec, field)!r} now"
        for field in SweepSpec.__dataclass_fields__
        if field not in (*_CHANGEABLE, "space") and getattr(before.spec, field) != getattr(spec, field)
    ]
    old, new = before.spec.space, spec.space
    for each in dict.fromkeys([*old, *new]):
        if old.get(each) != new.get(each):
            was, now = (str(parameters[each]) if each in parameters else "not there" for parameters in (old, new))
            changes.append(f"the space has another {each}: it was {was}, and is {now} now")
    # The stored ones are JSON, which has lists for tuples; no arguments are none in each form.
    args = json.loads(json.dumps(prepared.args))
    if (before.args or None) != (args or None):
        changes.append(f"the arguments were {shown(before.args)}, and are {shown(args)} now")
    stored = book.plan(before)
    changes += _differences(stored, _shared(plan, before.spec.parallel, stored.facts.cpus))
    if changes:
        step = f"Next: another --name, or podlift sweep resume {name}, which continues it as it was"
        raise InputError([f"The sweep {name!r} exists: {change}. {step}." for change in changes])
    changed = {field: getattr(spec, field) for field in _CHANGEABLE}
    if spec.max_cost_usd is None:
        changed["max_cost_usd"] = before.spec.max_cost_usd  # a limit is never lost without a word
    record = book.change(name, spec=replace(before.spec, **changed))
    return resume(book, record, plan, clock)


def _differences(old: Plan, new: Plan) -> list[str]:
    """Return a sentence for each difference between two plans that a sweep may not have."""
    changes = diff.compare(old, new, ({}, {}))
    files = [change.path for change in changes if change.section == "code"]
    sentences = [f"the code is another one ({and_more(files, 5)})"] if files else []
    for change in changes:
        if change.section not in ("entry", "job", "target") or f"{change.section}.{change.path}.".startswith(_DERIVED):
            continue
        group, _, rest = change.path.partition(".")
        name = "the program" if (change.section, group) == ("entry", "target") else change.path
        if change.section == "target" and group != "backend":
            # Each backend has other options.
            if old.backend != new.backend:
                continue
            name = setting_name(f"{new.backend}.{group}")
        elif change.section == "job" and group in WORDS:
            name = setting_name(f"{group}.{rest.partition('.')[0]}")
        was = "not there" if change.kind == "added" else shown(change.before)
        now = "not there" if change.kind == "removed" else shown(change.after)
        sentences.append(f"{name} was {was}, and is {now} now")
    return list(dict.fromkeys(sentences))


def resume(book: Book, record: SweepRecord, plan: Plan, clock: Clock) -> SweepRecord:
    """Continue a sweep: one that has ended begins again, and a driver is started if none is alive."""
    if book.end(record) is not None or book.is_cancelled(record):
        record = book.change(record.spec.name, resumes=record.resumes + 1, resumed=clock.now())
    start(book, record, plan, clock)
    return record


def start(book: Book, record: SweepRecord, plan: Plan, clock: Clock) -> bool:
    """Start a driver as a detached process, and return True; False if one is alive, or if the waiting client is the driver."""
    if not plan.capabilities.supervised_here or book.heartbeat(record).is_live(clock.now()):
        return False
    check_variables(book, record, plan)
    folder = cache.cache_folder(os.environ) / "drivers"
    folder.mkdir(parents=True, exist_ok=True)
    log = str(folder / f"{record.spec.name}-{record.id}.log")
    process = spawn.detached("sdk.sweeps.driver", book.root, record.spec.name, log, cwd=str(folder), log=log)
    # It needs seconds to begin; its heartbeat keeps other clients from starting another one meanwhile.
    if identity := spawn.identity(process.pid):
        Heart(book.store, heartbeat_key(record), identity, clock, log).beat()
    return True


def check_variables(book: Book, record: SweepRecord, plan: Plan) -> None:
    """Raise InputError if this process lacks variables of the runs: a driver hands its own ones to them."""
    missing = missing_variables(plan.job, os.environ, here=plan.capabilities.runs_here)
    if missing and not book.is_cancelled(record):
        raise InputError(missing)
