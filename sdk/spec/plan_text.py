"""A plan as a person reads it: pairs of a word and what it is, in the order in which they matter."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..hardware import accelerators, pricing

if TYPE_CHECKING:
    from .plan import Plan

_LARGEST = 5
_SHOWN = 8
# Tasks that a short plan names.
_TASKS = 4


def lines(plan: Plan) -> list[tuple[str, str]]:
    """Return what there is to say about a plan."""
    cloud = _about_cloud(plan) if plan.backend == "vertex" else []
    found = [*_about_run(plan), *cloud, *_about_code(plan), *_about_surroundings(plan)]
    return [*found, *((level, message) for level, message in plan.findings)]


def short(plan: Plan) -> list[tuple[str, str]]:
    """Return the few lines that a submit begins with: what, where, at what price, each warning, and how much more there is."""
    cloud = _about_cloud(plan) if plan.backend == "vertex" else []
    more = len(plan.tasks) - _TASKS
    tasks = ", ".join(plan.tasks[:_TASKS]) + (f" and {more} more" if more > 0 else "")
    count, size = sum(not file[0].endswith("/") for file in plan.files), sum(file[1] for file in plan.files)
    # What rented machines cost or lack may stand in a note.
    findings = [(level, message) for level, message in plan.findings if level != "note" or cloud]
    found = [
        ("run", plan.run_id),
        ("directory", plan.url),
        ("tasks", f"{_hardware(plan)}: {tasks}, {plan.backend}"),
        ("entry", _start(plan)),
        ("bundle", f"{count} files, {_megabytes(size)} of {plan.project}"),
        *cloud,
        *findings,
    ]
    hidden = {
        "left out": len(plan.left_out),
        "variables not passed": len(plan.dropped),
        "notes": len(plan.findings) - len(findings),
    }
    said = ", ".join(f"{name} {number}" for name, number in hidden.items() if number)
    return [*found, ("more", f"with -v{f': {said}' if said else ''}")]


def text(lines: Sequence[tuple[str, str]], width: int | None = None) -> str:
    """Return pairs as lines of a word and what it is.

    Args:
        lines: the pairs.
        width: longer ones are broken, with their rest below its beginning; None breaks none.
    """
    if width is None:
        return "\n".join(f"{name:<12} {said}" for name, said in lines)
    return "\n".join(
        textwrap.fill(
            said,
            width,
            initial_indent=f"{name:<12} ",
            subsequent_indent=" " * 13,
            break_on_hyphens=False,
            break_long_words=False,
        )
        or f"{name:<12} "
        for name, said in lines
    )


def _about_run(plan: Plan) -> list[tuple[str, str]]:
    return [
        ("run", plan.run_id),
        ("directory", plan.url),
        ("backend", plan.backend),
        ("tasks", f"{_hardware(plan)}: {', '.join(plan.tasks)}"),
        ("entry", f"{plan.kind} {_start(plan)}, started in {plan.cwd or 'the top'} of the bundle"),
    ]


def _start(plan: Plan) -> str:
    return f"{plan.target}:{plan.function}" if plan.function else " ".join([plan.target, *plan.argv])


def _hardware(plan: Plan) -> str:
    """Return how many tasks have what; parameter servers have no accelerator."""
    asked, counted = plan.job["resources"]["accelerator"], len(plan.tasks)
    plain = 0 if asked == "cpu" else plan.job["resources"].get("ps", 0)
    return f"{counted - plain} x {asked}" + (f", {plain} x cpu" if plain else "")


def _about_cloud(plan: Plan) -> list[tuple[str, str]]:
    options, disk_gb = plan.backend_options, plan.backend_options["disk_gb"]
    lines = [
        ("project", options["project"] or "<project>"),
        ("region", ", then ".join(options["regions"])),
        ("image", options["image"] or "<image>"),
    ]
    for pool in accelerators.pools(plan.job["resources"], options):
        row = pool.accelerator
        chips = "" if row.family == "cpu" else f" with {row.title or row.name} x {row.count or row.chips}"
        lines.append(
            (f"pool {pool.index}", f"{pool.role}: {pool.replicas} x {pool.machine}{chips}, {disk_gb} GB of disk")
        )
    return [*lines, *pricing.lines(plan.job, options)]


def _about_code(plan: Plan) -> list[tuple[str, str]]:
    count, size = sum(not file[0].endswith("/") for file in plan.files), sum(file[1] for file in plan.files)
    largest = sorted((file for file in plan.files if file[1]), key=lambda file: (-file[1], file[0]))[:_LARGEST]
    lines = [
        ("bundle", f"{count} files, {_megabytes(size)} of {plan.project}, sha256 {plan.digest[:12]}"),
        ("largest", ", ".join(f"{file[0]} ({_megabytes(file[1])})" for file in largest) or "none"),
        ("sys.path", ", ".join(root or "the top" for root in plan.roots)),
    ]
    lines += [("written", f"{path}, by podlift") for path in plan.generated]
    lines += [("left out", text) for text in plan.left_out[:_SHOWN]]
    if len(plan.left_out) > _SHOWN:
        lines.append(("left out", f"and {len(plan.left_out) - _SHOWN} more: podlift plan --json lists them all"))
    return lines


def _about_surroundings(plan: Plan) -> list[tuple[str, str]]:
    if plan.backend != "local":
        here = [("python", "that of the image; requirements that it lacks are installed when a task starts")]
        return [*here, *_about_program(plan)]
    versions = f"{plan.facts['python']} with TensorFlow {plan.facts['tensorflow']}, Keras {plan.facts['keras']}"
    isolated = plan.job["code"].get("isolated", False)
    lines = [("python", f"{plan.facts['python']}, a fresh environment" if isolated else f"{versions}, as here")]
    shared = f"forked from one process that has imported {', '.join(plan.preload)}"
    lines += [("start", shared if plan.preload else f"each task in a Python of its own: {plan.fresh}")]
    return [*lines, *_about_program(plan)]


def _about_program(plan: Plan) -> list[tuple[str, str]]:
    needed, source = plan.requirements.get("lines", []), plan.requirements.get("source", "")
    lines = [("requires", f"{len(needed)} of {source}: {_some(needed)}")] if needed else []
    lines += [("input", f"{name}: {place}") for name, place in plan.inputs.items()]
    lines += [("checkpoints", _saving(plan.job["checkpoints"], plan.warm_start))] if "checkpoints" in plan.job else []
    given = [name if isinstance(value, str) else f"{name} (yours)" for name, value in plan.job["env"].items()]
    lines += [("variables", ", ".join(given))] if given else []
    if plan.dropped:
        lines.append(("not passed", f"{', '.join(plan.dropped)}: variables of this shell; --env NAME passes one"))
    return lines


def _saving(policy: Mapping[str, Any], warm_start: str) -> str:
    """Return when and what is saved of a training, in words."""
    steps = [f"every {policy['every_steps']} steps"] if policy["every_steps"] else []
    when = steps + ([f"every {policy['every_s']:g} s"] if policy["every_s"] else []) + ["at the end of fit"]
    kept = f"the last {policy['keep_last']} are kept" + (
        f", and the best by {policy['best']}" if policy["best"] else ""
    )
    saved = (
        f"fit is protected: saved {', '.join(when)}; {kept}" if policy["auto"] else f"only by ctx.checkpoint(); {kept}"
    )
    return saved + (f"; starts with the state of {warm_start}" if warm_start else "")


def _some(names: Sequence[str]) -> str:
    """Return the first names of many, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 10_000 else f"{size} bytes"
