"""What `podlift plan --settings` shows: every setting, its value and its origin."""

from __future__ import annotations

import os
from typing import Any

from ..errors import Problems
from ..job import option_classes
from ..planning.settings import table as settings_table
from ..planning.settings.merge import defaults, gather
from .options import CommandLine
from .output import as_json
from .screen import table


def show_settings(command: CommandLine, *, json_output: bool) -> None:
    problems = Problems()
    entry, given = command.settings(problems)
    gathered = gather(entry, given, command.target, os.environ, problems)
    with problems.collect():
        settings_table.job({**gathered.job, "entry": gathered.job.get("entry", "none")})
    for backend in option_classes.every():
        with problems.collect():
            settings_table.target(backend, gathered.values)
    values = {**defaults(), **gathered.values}
    rows = [(name, _shown(name, value), gathered.origins.get(name, "default")) for name, value in values.items()]
    if json_output:
        settings = [{"name": name, "value": value, "origin": origin} for name, value, origin in rows]
        as_json({"file": gathered.file, "settings": settings})
    else:
        table(("setting", "value", "comes from"), [(name, str(value), origin) for name, value, origin in rows])
    problems.found = gathered.sourced(problems.found)
    problems.raise_if_any()


def _shown(name: str, value: Any) -> Any:
    # The values of variables may be secrets.
    if name == "env":
        return sorted(value)
    value = (
        settings_table.written(settings_table.settings()[name], value) if name in settings_table.settings() else value
    )
    return list(value) if isinstance(value, tuple) else value
