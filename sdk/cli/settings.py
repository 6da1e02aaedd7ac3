"""The verb that shows settings: config."""

from __future__ import annotations

import os
from typing import Any

from ..errors import Problems
from ..job import option_classes
from ..planning.settings import table as settings_table
from ..planning.settings.merge import defaults, gather
from .options import CommandLine, with_settings
from .output import as_json
from .parameters import Backend, Changed, Json, Name, Online, Root, Words
from .screen import table


@with_settings(backend=Backend, root=Root, name=Name, online=Online, words=Words)
def config(command: CommandLine, changed: Changed = False, json_output: Json = False) -> None:
    """Show every setting, its value and its origin.

    Options count too; an entry is not needed.
    """
    problems = Problems()
    entry, flat_settings = command.settings(problems)
    gathered = gather(entry, flat_settings, command.target, os.environ, problems)
    with problems.collect():
        settings_table.job({**gathered.job, "entry": gathered.job.get("entry", "none")})
    for backend in option_classes.every():
        with problems.collect():
            settings_table.target(backend, gathered.values)
    values = {**defaults(), **gathered.values}
    rows = [
        (name, _visible_value(name, value), gathered.origins.get(name, "default")) for name, value in values.items()
    ]
    rows = [row for row in rows if not (changed and row[2] == "default")]
    if json_output:
        settings = [{"name": name, "value": value, "origin": origin} for name, value, origin in rows]
        as_json({"file": gathered.file, "settings": settings})
    else:
        lines = [(name, str(value), origin) for name, value, origin in rows]
        table(("setting", "value", "comes from"), lines, under=True)
    problems.messages = gathered.sourced(problems.messages)
    problems.raise_if_any()


def _visible_value(name: str, value: Any) -> Any:
    # The values of variables may be secrets.
    if name == "env":
        return sorted(value)
    value = (
        settings_table.written(settings_table.settings()[name], value) if name in settings_table.settings() else value
    )
    return list(value) if isinstance(value, tuple) else value
