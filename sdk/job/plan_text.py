"""A plan as text: (label, text) pairs, the most important first."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..hardware import accelerators, pricing
from ..text import and_more, counted, duration, joined, money, size, visible
from . import cluster
from .job import FromCaller, Variable
from .policies import LONGEST_PACED_S, Checkpoints, shortest_s
from .targets import Keeper

if TYPE_CHECKING:
    from .plan import Plan

# Memory of a process that has imported TensorFlow and Keras: in addition to the tasks forked from it, and without any.
_STANDBY_SHARED, _STANDBY_ALONE = "about 50 MB", "about 400 MB"
_LARGEST = 5
_SHOWN = 8
# Tasks that the short form lists.
_TASKS = 4
# The lines about a cloud in the short form, by the first word of the label: the location, and everything that costs.
_CLOUD = ("region", "location", "cluster", "price", "cap", "cost", "keeper")
# The details that only the whole plan shows: they are long, and readers rarely need them before a submit.
_DETAILS = ("largest", "sys.path", "left out", "submitted by", "its rights", "memory", "not passed")
_QUOTA = "aiplatform.googleapis.com/"
_BEFORE_QUOTA = ("tasks", "price", "cap")


def lines(plan: Plan) -> list[tuple[str, str]]:
    pairs = [*_run(plan), *_replicas(plan), *_cloud(plan), *_code(plan), *_python(plan), *_program(plan)]
    return [*pairs, *((finding.level, finding.message) for finding in plan.findings)]


def page(plan: Plan) -> list[tuple[str, str]]:
    """Return the lines that fit a screen: all but the details, which are counted in the last one."""
    pairs = [(label, value) for label, value in lines(plan) if label not in (*_DETAILS, "quota")]
    quotas = [value.partition(" (")[0].removeprefix(_QUOTA) for label, value in lines(plan) if label == "quota"]
    if quotas:
        at = max(index for index, (label, _) in enumerate(pairs) if label in _BEFORE_QUOTA) + 1
        pairs.insert(at, ("quota", ", ".join(quotas)))
    names = [f"{label} {number}" for label, number in _hidden(plan).items() if number]
    return [*pairs, ("more", f"with -v: {', '.join([*names, 'largest files', 'sys.path'])}")]


def short(plan: Plan) -> list[tuple[str, str]]:
    """Return the lines that `submit` prints first: program, place, price, warnings, and the number of hidden lines."""
    cloud = [(label, value) for label, value in _cloud(plan) if label.split()[0] in _CLOUD]
    findings = [(finding.level, finding.message) for finding in plan.findings if finding.level != "note"]
    pairs = [
        ("run", plan.run_id),
        ("directory", plan.url),
        *([("backend", plan.place)] if plan.emulator else []),
        ("tasks", f"{_hardware(plan)}: {and_more(plan.tasks, _TASKS)}, {plan.backend}"),
        *(_replicas(plan) if plan.job.resources.accelerator != "cpu" else ()),
        ("entry", _entry(plan)),
        ("bundle", _bundle(plan)),
        *cloud,
        *_warm_start(plan),
        *_idle_limit(plan),
        *findings,
    ]
    hidden = {**_hidden(plan), "notes": len(plan.findings) - len(findings)}
    words = ", ".join(f"{name} {number}" for name, number in hidden.items() if number)
    return [*pairs, ("more", f"with -v: {words}" if words else "with -v")]


def _hidden(plan: Plan) -> dict[str, int]:
    return {"left out": len(plan.code.left_out), "variables not passed": len(plan.facts.dropped)}


def text(lines: Sequence[tuple[str, str]], width: int | None = None) -> str:
    """Join pairs to lines; longer ones than `width` are wrapped and indented."""
    # Names of files and arguments may contain anything.
    lines = [(label, visible(value)) for label, value in lines]
    if width is None:
        return "\n".join(f"{label:<12} {value}" for label, value in lines)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * 13, break_on_hyphens=False, break_long_words=False)
    wrapped = []
    for label, value in lines:
        wrapper.initial_indent = f"{label:<12} "
        wrapped.append(wrapper.fill(value) or wrapper.initial_indent)
    return "\n".join(wrapped)


def _run(plan: Plan) -> list[tuple[str, str]]:
    return [
        ("run", plan.run_id),
        ("directory", plan.url),
        ("backend", plan.place),
        ("tasks", f"{_hardware(plan)}: {', '.join(plan.tasks)}"),
        ("entry", f"{plan.code.kind} {_entry(plan)}, started in {plan.code.cwd or 'the top folder'} of the bundle"),
        *_idle_limit(plan),
    ]


def _idle_limit(plan: Plan) -> list[tuple[str, str]]:
    limit_s = plan.job.limits.idle_accelerator_s
    text = f"the run ends once no GPU was used for {duration(limit_s or 0.0)} (limit_idle_accelerator)"
    return [] if limit_s is None else [("idle limit", text)]


def _cloud(plan: Plan) -> list[tuple[str, str]]:
    """Return the location of the job on a cloud, its costs, and the next jobs; an emulator bills nothing."""
    rentals = plan.rentals
    costs = [] if not rentals else pricing.lines(rentals, billed=not plan.emulator)
    costs += [] if plan.emulator else pricing.region_lines(rentals)
    most = plan.job.limits.max_cost_usd
    if rentals and most is not None and not plan.emulator:
        costs.append(
            ("cost limit", f"{money(most)} for all jobs together: a job that could exceed the rest is not submitted")
        )
    return [*plan.target.lines(plan.job.resources), *costs, *(_next_jobs(plan, len(rentals)) if rentals else ())]


def _next_jobs(plan: Plan, locations: int) -> list[tuple[str, str]]:
    """Return the next job after the cloud ends one, the number of next jobs, and the process that submits them."""
    retry, several = plan.job.retry, locations > 1
    where = "the next location" if several else "the same location"
    after_preemption = f"{where}, {_times(retry.preemptions)}" if retry.preemptions != 0 else "none"
    failed = "after a stockout, an internal error or a lost job: "
    if retry.infrastructure == 0:
        failed += "none"
    elif several:
        missing, same = (
            "after a stockout or a missing quota: the next location",
            "after an internal error or a lost job: the same one",
        )
        failed = f"{missing}; {same}; all together {_times(retry.infrastructure)}"
    else:
        failed += f"the same location, {_times(retry.infrastructure)}"
    stays = ". The last location stays" if several else ""
    follows = f"after a preemption: {after_preemption} (retry_preemptions); {failed} (retry_infrastructure){stays}"
    waits = "a process that waits: podlift submit or podlift wait, on any machine"
    keeper = plan.keeper
    if keeper is None:
        waits += ". With --detach and without one, the run ends with its job, and podlift resume continues it"
        return [("next job", follows), ("submitted by", waits)]
    return [
        ("next job", follows),
        ("submitted by", f"the keeper, or {waits}"),
        ("keeper", _keeper(keeper, billed=not plan.emulator)),
        ("its rights", _rights(keeper, plan.root)),
    ]


def _keeper(keeper: Keeper, *, billed: bool) -> str:
    """Return the machine, the limit and the price of the keeper."""
    ends = f"ends with the run, after {duration(keeper.life_s)} at most"
    words = f"{keeper.machine}, which {ends}"
    if not billed:
        return words
    price = keeper.price
    if price.own is None or price.cap is None:
        return f"{words}: its price is not known to podlift"
    return f"{words}: {money(price.own)} an hour, {money(price.cap)} at most"


def _rights(keeper: Keeper, root: str) -> str:
    """Return the least set of rights that the keeper needs; the account of a program needs neither of the first two."""
    bucket = root.removeprefix("gs://").partition("/")[0]
    program = keeper.program_account or "the service account of the program"
    itself = "itself" if program == keeper.account else f"{program} and on itself"
    own = ". The account of the program needs neither of the first two"
    own += ": give the keeper another account (vertex_keeper_service_account)" if program == keeper.account else ""
    return (
        f"as {keeper.account}: aiplatform.customJobs.create, get, list and cancel in the project; iam.serviceAccounts.actAs on "
        f"{itself}; roles/storage.objectAdmin on gs://{bucket} only{own}"
    )


def _times(budget: int | None) -> str:
    return "any number of times" if budget is None else counted(budget, "time")


def _entry(plan: Plan) -> str:
    return (
        f"{plan.code.program}:{plan.code.function}"
        if plan.code.function
        else " ".join([plan.code.program, *plan.code.argv])
    )


def _hardware(plan: Plan) -> str:
    accelerator, tasks = plan.job.resources.accelerator, len(plan.tasks)
    # Parameter servers have no accelerator.
    servers = 0 if accelerator == "cpu" else plan.job.resources.ps
    words = f"{tasks - servers} x {accelerator}"
    row = accelerators.row(accelerator)
    if plan.stands_in and row.family != "cpu":
        words += f" (a stand-in: {counted(accelerators.per_task(row), 'logical CPU device')})"
    return f"{words}, {servers} x cpu" if servers else words


def _replicas(plan: Plan) -> list[tuple[str, str]]:
    """Return how a global batch is divided, and the memory of each replica, if a synchronous strategy has several."""
    row, tasks = accelerators.row(plan.job.resources.accelerator), len(cluster.in_step(plan.tasks))
    count = accelerators.in_step(row, tasks)
    if count == 1 or plan.job.resources.ps:
        return []
    division = f"{32 * count // tasks} for each task and 32 on each replica" if 1 < tasks < count else "32 on each"
    lines = [
        (
            "replicas",
            f"{count} with a synchronous strategy: {32 * count} examples in a batch are {division}. Use multiples of {count}",
        )
    ]
    if row.memory_gib:
        here = plan.facts.memory_gib if plan.stands_in else None
        shared = f"; here they share {here:.0f} GiB, {here / count:.1f} GiB each" if here else ""
        lines.append(("memory", f"{row.memory_gib} GiB for each replica{shared}"))
    return lines


def _bundle(plan: Plan) -> str:
    count = sum(not file.path.endswith("/") for file in plan.code.files)
    return f"{counted(count, 'file')}, {size(sum(file.size for file in plan.code.files))} of {plan.code.project}"


def _code(plan: Plan) -> list[tuple[str, str]]:
    largest = sorted((file for file in plan.code.files if file.size), key=lambda file: (-file.size, file.path))[
        :_LARGEST
    ]
    lines = [
        ("bundle", f"{_bundle(plan)}, sha256 {plan.code.digest[:12]}"),
        ("largest", ", ".join(f"{file.path} ({size(file.size)})" for file in largest) or "none"),
        ("sys.path", ", ".join(root or "the top folder" for root in plan.code.roots)),
    ]
    lines += [("written", f"{path}, by podlift") for path in plan.code.generated]
    lines += [("left out", text) for text in plan.code.left_out[:_SHOWN]]
    if len(plan.code.left_out) > _SHOWN:
        lines.append(("left out", f"and {len(plan.code.left_out) - _SHOWN} more: podlift plan --json lists them all"))
    return lines


def _python(plan: Plan) -> list[tuple[str, str]]:
    if not plan.capabilities.runs_here:
        return [("python", "from the image; missing requirements are installed when a task starts")]
    if plan.job.code.isolated:
        python = f"{plan.facts.python}, a fresh environment"
    else:
        libraries = {"TensorFlow": plan.facts.tensorflow, "Keras": plan.facts.keras}
        installed = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
        python = " with ".join(filter(None, (plan.facts.python, installed))) + ", as here"
    if plan.preload:
        start = _start(plan, ", ".join(plan.preload))
    else:
        start = f"each task starts its own Python: {plan.fresh}"
    return [("python", python), ("start", start)]


def _start(plan: Plan, modules: str) -> str:
    several, stays = len(plan.tasks) > 1 or plan.target.start == "fork", plan.target.start != "anew"
    if not several:
        return f"its own Python; a process that imports {modules} stands by for restarts ({_STANDBY_ALONE})"
    forked = f"forked from one process that has imported {modules}"
    return f"{forked} and stands by for restarts ({_STANDBY_SHARED})" if stays else forked


def _program(plan: Plan) -> list[tuple[str, str]]:
    lines = []
    needed = plan.code.requirements
    if needed.lines:
        lines.append(("requires", f"{len(needed.lines)} of {needed.source}: {and_more(needed.lines, _SHOWN)}"))
    lines += [("input", f"{name}: {url}") for name, url in plan.inputs.items()]
    lines.append(("checkpoints", _checkpoints(plan.job.checkpoints, plan.url, plan.warm_start)))
    lines.append(("restarts", _restarts(plan)))
    lines += _model(plan)
    lines += _warm_start(plan)
    if plan.job.env:
        lines.append(("variables", ", ".join(_variable(plan, *variable) for variable in plan.job.env.items())))
    if plan.facts.dropped:
        lines.append(("not passed", f"{', '.join(plan.facts.dropped)}: variables of this shell; --env NAME passes one"))
    return lines


def _variable(plan: Plan, name: str, value: Variable) -> str:
    if isinstance(value, str):
        return name
    if isinstance(value, FromCaller) or (plan.capabilities.runs_here and value.file is None):
        return f"{name} (from this shell)"
    return f"{name} (from {value.file if plan.capabilities.runs_here else value.version})"


def _model(plan: Plan) -> list[tuple[str, str]]:
    if not plan.model:
        return []
    gate, registered = plan.job.gate, f"{plan.model}: registered when the program has succeeded"
    if gate.evaluate is None:
        return [("model", f"{registered}; nothing is promoted")]
    better = "higher" if gate.mode == "max" else "lower"
    least = f" by {gate.min_gain} at least" if gate.min_gain != "0" else ""
    words = f"{gate.evaluate} on {gate.data}; promoted if {gate.measured} is {better} than the champion's{least}"
    if gate.guards:
        words += f", and {joined(gate.guards, 'and')}"
    if gate.ask_below is not None:
        words += f"; a gain below {gate.ask_below} needs an approval"
    return [
        ("model", registered),
        ("gate", f"{words}; evaluated on {plan.tasks[0]} at the end of the run{_wait(plan)}"),
    ]


def _wait(plan: Plan) -> str:
    """Return the cost of the job's machines during the evaluation of the gate, "" where they are not billed."""
    if not plan.prices:
        return ""
    hourly = plan.prices[0].own
    how_much = "their price is not known to podlift" if hourly is None else f"{money(hourly / 60)} a minute"
    return f", while all machines of the job are billed: {how_much}"


def _warm_start(plan: Plan) -> list[tuple[str, str]]:
    """Return the weights that the run starts from."""
    if plan.job.warm_start is None:
        return []
    if plan.initial is None:
        which = "the champion" if plan.job.warm_start == "champion" else "the newest version"
        return [
            ("warm start", f"{which} of {plan.model!r} at the time of the firing, weights only; fresh if there is none")
        ]
    if not plan.initial.version:
        return [("warm start", f"none, {plan.initial}")]
    return [("warm start", f"{plan.initial}, weights only: files {plan.initial.manifest[:12]}")]


def _restarts(plan: Plan) -> str:
    retry = plan.job.retry
    budgets = {
        "an error in the program": retry.user_errors,
        "a failure of the infrastructure": retry.infrastructure,
        "a preemption": retry.preemptions,
    }
    often = [f"after {cause} {_times(budget)}" for cause, budget in budgets.items() if budget != 0]
    if not often:
        return "none (retry_user_errors, retry_infrastructure, retry_preemptions)"
    return f"{_scope(plan)}; {', '.join(often)}"


def _scope(plan: Plan) -> str:
    if len(plan.tasks) == 1:
        return "the task, from its last checkpoint"
    if not plan.alone:
        return "all tasks together, from the last checkpoint"
    alone, together = _roles(plan.alone), _roles([task for task in plan.tasks if task not in plan.alone])
    # A cluster without a chief has a first worker instead.
    together = [plan.tasks[0] if role in alone else role for role in together]
    return (
        f"a lost {joined(alone, 'or')} restarts alone, and the others continue; a lost {joined(together, 'or')} restarts all "
        "from the last checkpoint, and later steps are repeated"
    )


def _roles(tasks: Sequence[str]) -> list[str]:
    roles = [cluster.role_of(task) for task in tasks]
    return list(dict.fromkeys("parameter server" if role == "ps" else role for role in roles))


def _checkpoints(policy: Checkpoints, store: str, warm_start: str) -> str:
    when = [f"every {policy.every_steps} steps"] if policy.every_steps else []
    at_risk = [f"{policy.every_steps} steps"] if policy.every_steps else []
    if policy.seconds:
        when.append(f"every {duration(policy.seconds)}")
        at_risk.append(duration(policy.seconds))
    elif policy.is_paced:
        least, most = duration(shortest_s(store)), duration(LONGEST_PACED_S)
        when.append(f"every {least} to {most} (1% of the time)")
        at_risk.append(f"{least} to {most}")
    words = f"fit saves {', '.join([*when, 'at its end'])}" if policy.auto else "saved by ctx.checkpoint() only"
    words += f"; at risk: {' or '.join(at_risk) or 'all since the last save'}"
    words += f"; the last {policy.keep_last} are kept"
    if policy.best:
        words += f", and the best by {policy.best}"
    if warm_start:
        words += f"; starts from {warm_start}"
    return words
