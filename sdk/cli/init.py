"""The verb that writes the project's file for a backend, from the account at its service: init."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from ..checks.check import Proposed, SettingValue, proposed
from ..errors import InputError, Problems
from ..job.setting_names import setting_name
from ..packaging.project import parse_toml
from ..planning.settings import record, table
from ..planning.settings.merge import UNNAMED, Destination, gather
from ..status import EXIT_DONE
from ..text import clipped, counted, joined
from .doctor import setup_of, text
from .options import with_some
from .output import answer, as_json, say
from .parameters import PROPOSED, InitBackend, InitDryRun, Json

_FILE = "podlift.toml"
_SHOWN = 90
_PROPOSED = [setting_name(f"{backend}.{field}") for backend, fields in PROPOSED.items() for field in fields]


@with_some(_PROPOSED)
def init(
    flat_settings: dict[str, object], backend: InitBackend, dry_run: InitDryRun = False, json_output: Json = False
) -> None:
    """Write podlift.toml for a backend: `podlift init vertex`, with the values of your account.

    Values come from options, variables, the file itself, the configuration of the service's tools, and requests that only
    read. What the file has already stays as it is.
    """
    service, problems = setup_of(backend), Problems()
    settings = gather(UNNAMED, flat_settings, Destination(backend=backend), os.environ, problems)
    problems.messages = settings.sourced(problems.messages)
    problems.raise_if_any()
    rows = [(table.settings()[name], name) for name in settings.values if name in table.settings()]
    from_settings = [
        proposed(row.field, _value(settings.values[name]), settings.origins.get(name, ""))
        for row, name in rows
        if row.group == backend
    ]
    proposals = service.proposed({proposal.name: proposal for proposal in from_settings}, os.environ)
    path = Path.cwd() / _FILE
    if settings.file not in ("", str(path)) and not dry_run:
        raise InputError(
            f"Settings are in {settings.file} already. Nothing was written. Next: podlift init {backend} --dry-run prints "
            "what to add there."
        )
    written, added = _text(path, backend, proposals)
    if not dry_run and not _same(path, written):
        _write(path, written)
    if json_output:
        objects = [{**asdict(proposal), "name": setting_name(f"{backend}.{proposal.name}")} for proposal in proposals]
        as_json({"file": str(path), "added": added if not dry_run else [], "settings": objects, "text": written})
    else:
        answer(written.rstrip("\n") if dry_run else "\n".join(map(text, proposals)))
    _summarize([] if dry_run else added, [proposal.name for proposal in proposals if proposal.value is None], backend)
    raise typer.Exit(EXIT_DONE)


def _value(value: object) -> SettingValue:
    if isinstance(value, dict):
        return value
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _text(path: Path, backend: str, proposals: Sequence[Proposed]) -> tuple[str, list[str]]:
    """Return the text of the file with the values, and the names of the new keys."""
    text = record.read(path)
    there = parse_toml(text.encode(), str(path))
    group = there.get(backend, {})
    if not isinstance(group, dict):
        raise InputError(f"{path}: {backend} is not a table. Nothing was written. Received: {group!r}.")
    new = [proposal for proposal in proposals if proposal.name not in group]
    added = [proposal.name for proposal in new if proposal.value is not None]
    text, end = record.without_notes(text), record.line_end(text)
    if "backend" not in there:
        text = f"backend = {_toml(backend)}{end}{end}{text}"
        added = ["backend", *added]
    entries = [
        f"{proposal.name} = {_toml(proposal.value)}"
        if proposal.value is not None
        else f"{record.NOT_FOUND}{proposal.name} ({clipped(proposal.said, _SHOWN)})"
        for proposal in new
    ]
    settings = [line for line in entries if not line.startswith(record.NOT_FOUND)]
    # An inline table cannot be continued below a header, and a header may be a line of a string.
    values = {
        proposal.name: list(proposal.value) if isinstance(proposal.value, tuple) else proposal.value for proposal in new
    }
    expected = {
        "backend": backend,
        **there,
        backend: {**group, **{name: values[name] for name in added if name in values}},
    }
    # A table that has all settings needs no place for a note.
    for lines in (entries, settings):
        new_text = record.added(text, f"[{backend}]", lines) if lines or backend not in there else text
        if record.parsed(new_text) == expected:
            return new_text, added
    raise InputError(
        f"{path}: the table {backend} cannot be extended: it has no header, or its header also stands in a "
        f"string. Nothing was written. Next: add to it: {'; '.join(settings)}."
    )


def _same(path: Path, text: str) -> bool:
    """Return whether a file has these lines already: others may stand at another place."""
    return path.exists() and sorted(record.read(path).split("\n")) == sorted(text.split("\n"))


def _toml(value: SettingValue | None) -> str:
    if isinstance(value, dict):
        return record.inline(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _write(path: Path, text: str) -> None:
    try:
        record.save(path, text)
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be written: {error.strerror}. Next: --dry-run prints its text."
        ) from error


def _summarize(added: list[str], missing: list[str], backend: str) -> None:
    say(f"{_FILE}: {joined(added, 'and')} written." if added else f"{_FILE}: nothing written.")
    if missing:
        many = f"{counted(len(missing), 'setting')} not found ({', '.join(missing)})"
        say(f"{many}. Next: run the commands printed there, then podlift init {backend} again.")
    else:
        say(f"Next: podlift doctor --backend {backend}")
