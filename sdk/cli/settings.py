"""The verb that lists the settings, their values and origins: config."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import Problems
from ..planning.settings import table as settings_table
from ..planning.settings.merge import UNNAMED, Settings, Target, defaults, gather
from .output import answer, as_json
from .start import Json
from .watch import on_terminal

Entry = Annotated[
    str | None,
    typer.Argument(
        metavar="[ENTRY]", help="Program whose project is read. Default: the current folder.", show_default=False
    ),
]


def config(entry: Entry = None, json_output: Json = False) -> None:
    """Show every setting, its value and its origin."""
    problems = Problems()
    found = gather(entry or UNNAMED, {}, Target(), os.environ, problems)
    with problems.collect():
        settings_table.job({**found.job, "entry": found.job.get("entry", "none")})
    rows = [(name, _shown(name, value), found.origins.get(name, "default")) for name, value in _values(found).items()]
    if json_output:
        as_json(
            {"file": found.file, "settings": [dict(zip(("name", "value", "origin"), row, strict=True)) for row in rows]}
        )
    elif on_terminal():
        table = Table("setting", "value", "comes from", box=None)
        for row in rows:
            table.add_row(row[0], Text(str(row[1])), Text(row[2]))
        Console().print(table)
    else:
        answer("\n".join("\t".join(map(str, row)) for row in rows))
    problems.found = found.sourced(problems.found)
    problems.raise_if_any()


def _values(found: Settings) -> dict[str, Any]:
    return {**defaults(), **found.values}


def _shown(name: str, value: Any) -> Any:
    # The values of variables may be secrets.
    if name == "env":
        return sorted(value)
    value = settings_table.written(settings_table.SETTINGS[name], value) if name in settings_table.SETTINGS else value
    return list(value) if isinstance(value, tuple) else value
