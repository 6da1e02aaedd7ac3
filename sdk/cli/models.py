"""The verbs of registered models: `podlift models VERB`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import cast

import typer

from .. import api
from ..backends.vertex.options import Vertex
from ..errors import CorruptObjectError, InputError, Problems
from ..hardware.regions import CHEAPEST
from ..job.layout import RootPaths
from ..model_registry import listing
from ..model_registry.evidence import Evidence
from ..model_registry.listing import Listing, VersionRow
from ..model_registry.models import Model, ModelVersion
from ..model_registry.records import ChampionRecord, Move, VersionData, shown_time
from ..planning.roots import in_cloud_storage
from ..planning.settings import table as settings_table
from ..planning.settings.merge import UNNAMED, Destination, gather
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_USER, State
from ..text import clipped, counted, size
from . import parameters as p
from .help import VerbHelp, group
from .output import answer, as_json, numbers, say
from .screen import facts, table, width

models = group("models", help="Register the models of runs, and choose the champion among them.")


def _find(name: str, root: str | None) -> Model:
    return api.models(root)[name]


@models.command("list", cls=VerbHelp)
def list_models(root: p.Root = None, json_output: p.Json = False) -> None:
    """List the models with their champions."""
    summaries = [_summary(model) for model in api.models(root).all()]
    if json_output:
        as_json(summaries)
        return
    keys = ("name", "champion", "latest", "versions", "awaiting", "root")
    rows = [[str(row[key] or "-") for key in keys] for row in summaries]
    table(("model", "champion", "latest", "versions", "await approval", "root"), rows, whole=("model",), under=True)
    for row in summaries:
        _say_damage(str(row["name"]), cast("list[str]", row["damage"]))
    if not summaries:
        say("There are no models. Next: podlift models add RUN")


def _say_damage(name: str, sentences: Iterable[str]) -> None:
    for text in sentences:
        say(f"{name}: {text}")


def _summary(model: Model) -> dict[str, object]:
    """Return the line of a model. A damaged one has the reason, and leaves the others as they are."""
    try:
        return _summary_of(model, listing.of(model))
    except CorruptObjectError as error:
        unknown = Listing(record=ChampionRecord(), rows=(), left_out=0)
        return {**_summary_of(model, unknown), "versions": len(model.numbers()), "damage": [str(error)]}


def _summary_of(model: Model, version_list: Listing) -> dict[str, object]:
    return {
        "name": model.name,
        "root": model.root,
        "champion": version_list.record.champion,
        "latest": version_list.rows[-1].number if version_list.rows else 0,
        "versions": len(version_list.rows),
        "awaiting": version_list.awaiting,
        "damage": version_list.damage,
    }


def facts_of(version: ModelVersion, row: VersionRow | None = None) -> dict[str, object]:
    record, model = version.record, version.model
    evaluations, state = (row.evaluations, row.state) if row else (version.evidence(), model.state(version))
    facts: dict[str, object] = {**asdict(record), "root": model.root, "evidence": [*map(asdict, evaluations)]}
    # The number of the record's form is none of the printed object's.
    del facts["version"]
    return {**facts, "state": state, "run_state": record.state}


@models.command(cls=VerbHelp)
def status(
    name: p.ModelName,
    version: p.VersionOrAll = None,
    verify: p.VerifyFiles = False,
    verbose: p.WholeDigests = False,
    root: p.Root = None,
    json_output: p.Json = False,
) -> None:
    """Show a model with its versions and the history of its champion, or one version."""
    model = _find(name, root)
    number = None if version is None else model.version(version).number
    version_list = listing.of(model)
    chosen = [row for row in version_list.rows if number in (None, row.number)]
    damage = {row.number: [*row.damage, *(row.version.damage() if verify and row.version else [])] for row in chosen}
    if json_output:
        facts = [_version_facts(row, damage[row.number] if verify or row.damage else None) for row in chosen]
        moves = [asdict(move) for move in version_list.record.moves]
        as_json({**_summary_of(model, version_list), "history": moves, "shown": facts})
    elif number is None:
        _show_model(version_list)
    else:
        for row in chosen:
            _show_version(row, model.version(number), None if verbose else _DIGITS)
    for number, sentences in damage.items():
        _say_damage(f"version {number}", sentences)
    if verify:
        say(f"{counted(len(chosen) - sum(map(bool, damage.values())), 'version')} of {len(chosen)} verified")
    raise typer.Exit(EXIT_INFRASTRUCTURE if any(damage.values()) else EXIT_DONE)


def _version_facts(row: VersionRow, damage: Sequence[str] | None) -> dict[str, object]:
    facts = facts_of(row.version, row) if row.version else {"number": row.number, "state": row.state}
    return facts if damage is None else {**facts, "damage": damage}


def _show_model(version_list: Listing) -> None:
    rows = [
        (str(row.number), row.state, *_judged(row.evaluations[-1] if row.evaluations else None), *_about(row.version))
        for row in version_list.rows
    ]
    header = ("version", "state", "gate", "measured", "run", "registered", "size", "metrics in training")
    table(header, rows, whole=("run",), under=True)
    for move in version_list.record.moves:
        say(_line(move))
    champion = next((row.version for row in version_list.rows if row.number == version_list.record.champion), None)
    if champion is not None:
        _say_upload(champion)


def _judged(evidence: Evidence | None) -> tuple[str, str]:
    """Return the outcome of an evaluation, and the metric that decided it."""
    if evidence is None:
        return "-", "-"
    gate, value = evidence.gate, evidence.metrics.get(evidence.gate.measured)
    return evidence.outcome, "-" if value is None else numbers({f"{gate.measured} on {gate.data}": value})


def _about(version: ModelVersion | None) -> tuple[str, str, str, str]:
    if version is None:
        return "-", "-", "-", ""
    record = version.record
    return record.run, shown_time(record.created), size(record.size_bytes), numbers(record.metrics)


def _line(move: Move) -> str:
    before = f"version {move.before}" if move.before else "none"
    note = f": {move.note}" if move.note else ""
    return f"{shown_time(move.time)}  {move.cause}  {before} -> version {move.champion}, by {move.by}{note}"


def _show_version(row: VersionRow, version: ModelVersion, digits: int | None) -> None:
    record, state = version.record, row.state
    lines = [("model", f"{record.model}, version {record.number}"), ("state", state)]
    lines += [("ask", record.ask)] if record.ask else []
    lines += evidence_lines(row.evaluations, asks=state == "awaits approval", digits=digits)
    lines += [("run", f"{record.run} ({record.state})"), ("url", record.run_url)]
    lines += [("program", " ".join([record.program, *record.args])), ("code", record.bundle[:digits])]
    for name, data in record.data.items():
        lines.append(("data", f"{name}, when registered: {_data_text(data, digits)}"))
    lines += [("training", numbers(record.metrics) or "-")]
    lines += [("parent", f"version {record.parent}" if record.parent else "none")]
    lines += [("warm start", str(record.warm_start))] if record.warm_start else []
    lines += [("created", f"{shown_time(record.created)} by {record.by}"), ("manifest", record.manifest[:digits])]
    lines += [("file", f"{file.path}  {size(file.size_bytes)}") for file in version.files()]
    colour = State.PENDING if state == "awaits approval" else State.SUCCEEDED
    answer(facts(lines, width(sys.stdout), colour), colours=True)


def _data_text(data: VersionData, digits: int | None) -> str:
    return f"{data.location} {data.digest[:digits] or data.problem}"


@models.command(cls=VerbHelp)
def add(
    ref: p.Ref,
    model: p.NameOfModel = None,
    path: p.PathInOutputs = "model",
    ask: p.Ask = "",
    root: p.Root = None,
    json_output: p.Json = False,
) -> None:
    """Register the model of a run as a new version.

    Its files are copied. Nothing is promoted.
    """
    version = api.models(root).add(ref, model=model, path=path, ask=ask)
    compared = " --as-compared" if version.record.ask else ""
    _say_version(
        version, "registered", f"podlift models promote {version.record.model} {version.number}{compared}", json_output
    )


def _say_version(version: ModelVersion, what: str, following: str, json_output: bool) -> None:
    record = version.record
    if json_output:
        as_json(facts_of(version))
    else:
        answer(str(version.number))
    say(f"{record.model}: version {record.number} of the run {record.run} is {what}. Next: {following}")


def _say_upload(version: ModelVersion) -> None:
    """Name the commands that register a version with the service that can serve it, where one is configured."""
    try:
        commands = upload_commands(version)
    except InputError as error:  # of the settings: the promotion itself is done
        commands = str(error)
    if commands:
        say(f"{version.record.model}: for Vertex AI's Model Registry: {commands}")


@models.command(cls=VerbHelp)
def promote(
    name: p.ModelName,
    version: p.PromotedVersion = None,
    previous: p.Previous = False,
    expect: p.Expect = None,
    as_compared: p.AsCompared = False,
    note: p.Note = "",
    root: p.Root = None,
    json_output: p.Json = False,
) -> None:
    """Make a version the champion.

    Its files are verified first. If another process moves the champion meanwhile, nothing is changed.
    """
    if as_compared and expect is not None:
        raise InputError("--as-compared expects the champion of the comparison, and --expect another: use one of them.")
    if previous == (version is not None) or (previous and (as_compared or expect is not None)):
        raise InputError(
            "Name the version, or use --previous alone, which returns to the champion before this one. Nothing was changed. "
            f"Next: podlift models promote {name} VERSION."
        )
    model = _find(name, root)
    if version is None:
        promoted = model.rollback(note=note)
    else:
        promoted = model.promote(version, expect=expect, as_compared=as_compared, note=note)
    _say_version(
        promoted, "the champion again" if previous else "the champion", f"podlift get {name}:champion", json_output
    )
    _say_upload(promoted)


@models.command(cls=VerbHelp)
def evaluate(
    name: p.ModelName,
    version: p.Version,
    promote: p.PromoteIfBetter = False,
    root: p.Root = None,
    json_output: p.Json = False,
) -> None:
    """Let the gate judge a version on this machine.

    The gate comes from the project here, else from the version's run. The exit code is 0 if it promotes the version, else 1.
    """
    model = _find(name, root)
    judged = model.evaluate(version, promote=promote)
    if json_output:
        as_json(asdict(judged))
    else:
        lines = [*evidence_lines([judged], asks=promote and judged.outcome == "ask")]
        answer(facts(lines, width(sys.stdout)))
    promotes = judged.outcome == "promote"
    if judged.champion == judged.number:
        say(f"{name}: version {judged.number} is the champion already, and was compared with itself.")
    elif promote:
        say(f"{name}: version {judged.number} {'is the champion' if promotes else 'was not promoted'}.")
    else:
        following = f"podlift models evaluate {name} {judged.number} --promote"
        say(f"A rehearsal: nothing was written or promoted.{f' Next: {following}' if promotes else ''}")
    raise typer.Exit(EXIT_DONE if promotes else EXIT_USER)


@models.command(cls=VerbHelp)
def remove(
    name: p.ModelName,
    version: p.Version,
    force: p.ForceRemoval = False,
    root: p.Root = None,
    json_output: p.Json = False,
) -> None:
    """Remove a version that is not the champion.

    Its number is not used again. podlift remove removes its files, a day after they were last used.
    """
    removed = _find(name, root).remove(version, force=force)
    if json_output:
        as_json(asdict(removed))
        return
    answer(str(removed.number))
    if removed.size_bytes is None:
        freed = "Files of a version are damaged, so it is not known how much is freed;"
    else:
        freed = f"{size(removed.size_bytes)} of its files belong to no other version, and"
    say(
        f"{name}: version {removed.number} is removed. {freed} the run {removed.run} is no longer kept for it. "
        "Next: podlift remove"
    )


# The table of a gate is as wide as a terminal of 80 columns; a digest is cut as in a plan.
_WIDEST, _DIGITS = 30, 12
_HOLDS = {True: "holds", False: "fails", None: "not checked"}


def evidence_lines(
    evaluations: Sequence[Evidence], *, asks: bool, digits: int | None = _DIGITS
) -> Iterator[tuple[str, str]]:
    """Yield the results and the decision of the last evaluation, as (label, text)."""
    if not evaluations:
        return
    last = evaluations[-1]
    yield "gate", f"{last.outcome}: {last.reason}"
    if asks:
        yield "next", f"podlift models promote {last.model} {last.number} --as-compared"
    against = f"version {last.champion}, then the champion" if last.champion else "no champion"
    yield "compared", f"with {against}, by {last.gate.evaluate}, {shown_time(last.time)}"
    yield "on", f"{last.gate.data}: {_data_text(last.data, digits)}"
    for guard in last.guards:
        yield "guard", f"{_HOLDS[guard.holds]}: {guard}"
    yield from (("", text) for text in _metrics_table(last))
    if len(evaluations) > 1:
        yield "earlier", "; ".join(f"{past.outcome} (champion {past.champion or 'none'})" for past in evaluations[:-1])


def _metrics_table(evidence: Evidence) -> Iterator[str]:
    ours, theirs = evidence.metrics, evidence.champion_metrics
    names = sorted({*ours, *theirs})
    if not names:
        return
    others = [f"version {evidence.champion}", "difference"] if evidence.champion else []
    rows = [["", f"version {evidence.number}", *others]]
    for name in names:
        mine, other = ours.get(name), theirs.get(name)
        change = "-" if mine is None or other is None else f"{mine - other:+.4f}"
        rows.append(
            [
                clipped(name, _WIDEST),
                *[_shown_metric(ours, name), _shown_metric(theirs, name), change][: len(rows[0]) - 1],
            ]
        )
    width = max(len(row[0]) for row in rows)
    for name, *figures in rows:
        yield f"{name:<{width}} {' '.join(f'{figure:>12}' for figure in figures)}"


def _shown_metric(metrics: Mapping[str, float | None], name: str) -> str:
    value = metrics.get(name)
    return "-" if name not in metrics else "nan" if value is None else f"{value:.4f}"


def upload_commands(version: ModelVersion) -> str:
    """Return the commands that register a version in Vertex AI's Model Registry; "" without a project or files in a bucket.

    The flags are from https://cloud.google.com/sdk/gcloud/reference/ai/models/upload.
    """
    model, number, problems = version.model, version.number, Problems()
    if not in_cloud_storage(model.root):
        return ""
    values = gather(UNNAMED, {}, Destination(backend="vertex"), os.environ, problems).values
    with problems.closing():
        target = Vertex.of(settings_table.target("vertex", values))
    if not target.project:
        return ""
    region, local = target.region_names[0], f"{model.name}-{number}"
    if region == CHEAPEST:
        region = "REGION"  # which one a run gets is decided when it is planned
    folder = f"{RootPaths(model.root).models}/exports/{model.name}/{number:06d}"
    names = f"projects/{target.project}/locations/{region}/models/{model.name}"
    first = all(move.champion == number for move in model.history())
    upload = {
        "project": target.project,
        "region": region,
        "display-name": model.name,
        **({"model-id": model.name} if first else {"parent-model": names}),
        "version-aliases": "champion",
        "artifact-uri": folder,
        "container-image-uri": "IMAGE",
    }
    commands = (
        ("podlift", "get", f"{model.name}:{number}", local, f"--root={model.root}"),
        ("gcloud", "storage", "rsync", "--recursive", local, folder),
        ("gcloud", "ai", "models", "upload", *(f"--{flag}={text}" for flag, text in upload.items())),
    )
    return " && ".join(map(shlex.join, commands))
